-- Which models run out of memory, on which slices, and what is the smallest batch that failed there?
SELECT
    model, imgsz, precision, product, mig_profile, outcome,
    COUNT(*) AS failures,
    MIN(batch) AS smallest_failed_batch,
    MAX(finished_at) AS last_at
FROM oom_history
GROUP BY model, imgsz, precision, product, mig_profile, outcome
ORDER BY failures DESC;
