-- Which models ran out of memory lately, on which slices, and what is the smallest batch that failed there?
SELECT
    model, imgsz, precision, product, mig_profile, outcome,
    COUNT(*) AS failures,
    MIN(batch) AS smallest_failed_batch,
    MAX(finished_at) AS last_at
FROM (SELECT * FROM oom_history ORDER BY finished_at DESC, id DESC LIMIT 10000) AS newest
GROUP BY model, imgsz, precision, product, mig_profile, outcome
ORDER BY failures DESC;
