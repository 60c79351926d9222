-- What does each training that ran so far need, by its newest measurement? Memory in MiB.
SELECT
    model_type, input_size, precision, batch, dataset, product, mig_profile,
    estimated_gpu_memory / 1048576 AS gpu_memory_mib,
    host_memory / 1048576 AS host_memory_mib,
    cpu_cores, dataloader_workers, expected_duration_per_epoch, compute_bound_by
FROM resource_card
ORDER BY model_type, input_size;
