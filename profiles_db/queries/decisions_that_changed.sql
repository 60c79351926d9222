-- For which task did the planner change its batch, from which run to which, and what did it say?
SELECT dag_id, task_id, map_index, model, imgsz, earlier_batch, batch, decided_at, sentence
FROM (
    SELECT
        dag_id, task_id, map_index, model, imgsz, batch, decided_at, sentence,
        LAG(batch) OVER (PARTITION BY dag_id, task_id, map_index, model, imgsz ORDER BY decided_at) AS earlier_batch
    FROM (SELECT * FROM decision_history ORDER BY decided_at DESC LIMIT 10000) AS newest
) AS sequence
WHERE earlier_batch <> batch
ORDER BY decided_at DESC;
