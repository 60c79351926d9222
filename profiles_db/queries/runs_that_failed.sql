-- What of the last 10,000 runs failed, in which DAG and for which reason, and what was said last?
SELECT dag_id, task_id, outcome, failures, message, finished_at
FROM (
    SELECT
        dag_id, task_id, outcome, message, finished_at,
        COUNT(*) OVER (PARTITION BY dag_id, task_id, outcome) AS failures,
        ROW_NUMBER() OVER (PARTITION BY dag_id, task_id, outcome ORDER BY finished_at DESC, id DESC) AS place
    FROM (SELECT * FROM run_history ORDER BY finished_at DESC, id DESC LIMIT 10000) AS newest
    WHERE outcome <> 'succeeded'
) AS ordered
WHERE place = 1
ORDER BY failures DESC;
