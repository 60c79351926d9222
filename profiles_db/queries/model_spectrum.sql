-- Where do the models stand: memory of an image, operations for each byte of it, and how much they wait for data?
SELECT
    model, imgsz, precision, accelerator_kind, product, mig_profile, measurements,
    peak_bytes_per_image / 1048576 AS mib_per_image, flops_per_byte, io_sensitivity_percent
FROM model_spectrum
ORDER BY mib_per_image DESC;
