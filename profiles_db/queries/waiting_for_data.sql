-- Which models leave the device waiting for images? More loader workers or a cache help these first.
SELECT model, imgsz, product, mig_profile, gflops, peak_device_bytes, images_per_second, data_wait_percent
FROM model_spectrum
WHERE data_wait_percent >= 20
ORDER BY data_wait_percent DESC;
