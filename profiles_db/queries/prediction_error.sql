-- How good were the last 10,000 memory predictions, by what they stood on? error_percent above zero: predicted too much.
SELECT
    basis,
    COUNT(*) AS predictions,
    AVG(ABS(error_percent)) AS mean_error_percent,
    MAX(ABS(error_percent)) AS largest_error_percent,
    SUM(CASE WHEN error_percent < 0 THEN 1 ELSE 0 END) AS predicted_too_little,
    AVG(100.0 * within_interval) AS within_interval_percent
FROM (SELECT * FROM prediction_error ORDER BY decided_at DESC LIMIT 10000) AS newest
WHERE error_percent IS NOT NULL
GROUP BY basis
ORDER BY predictions DESC;
