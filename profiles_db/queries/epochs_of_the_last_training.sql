-- How did the last training that has epochs on record go, epoch by epoch?
SELECT e.dag_id, e.run_id, e.try_number, e.epoch, e.seconds, e.images_per_second, e.data_wait_percent, e.metrics
FROM epoch_history AS e
JOIN (
    SELECT dag_id, run_id, task_id, map_index
    FROM run_history
    WHERE kind = 'train' AND trained_seconds > 0
    ORDER BY finished_at DESC, id DESC
    LIMIT 1
) AS last
    ON e.dag_id = last.dag_id AND e.run_id = last.run_id AND e.task_id = last.task_id AND e.map_index = last.map_index
ORDER BY e.try_number, e.epoch;
