-- Who used how many hours of which GPU or slice, and how often did it end out of memory?
SELECT
    dag_id, product, mig_profile,
    SUM(training_seconds) / 3600.0 AS training_hours,
    SUM(measurements) AS measurements,
    SUM(out_of_memory) AS out_of_memory,
    MAX(last_at) AS last_at
FROM usage_by_dag
GROUP BY dag_id, product, mig_profile
ORDER BY training_hours DESC;
