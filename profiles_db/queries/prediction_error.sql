-- How good are the memory predictions, by what they stood on? error_percent above zero: predicted too much.
SELECT
    basis,
    COUNT(*) AS predictions,
    AVG(ABS(error_percent)) AS mean_error_percent,
    MAX(ABS(error_percent)) AS largest_error_percent,
    AVG(100.0 * within_interval) AS within_interval_percent
FROM prediction_error
WHERE error_percent IS NOT NULL
GROUP BY basis
ORDER BY predictions DESC;
