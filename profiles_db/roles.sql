-- Two group roles of the profile store, and what each may do. `yolo-airflow db roles` runs this on the store; so does
-- psql: `psql -v ON_ERROR_STOP=1 -d yolo_profiles -f roles.sql`, as the owner of the tables. It can be run again at
-- any time, and `yolo-airflow db upgrade` does so where the roles are there: a view that was made anew has lost its
-- grants. Neither role can log in: people and Airflow get logins of their own and become members, for instance
-- `CREATE ROLE alice LOGIN PASSWORD '...' IN ROLE yolo_reader`.
--
-- yolo_writer: Airflow's tasks. Appends facts, keeps the summaries; deletes nothing, changes no table.
-- yolo_reader: people and dashboards. Reads the views, and which revision they are of.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'yolo_writer') THEN
        CREATE ROLE yolo_writer NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'yolo_reader') THEN
        CREATE ROLE yolo_reader NOLOGIN;
    END IF;
END
$$;

DO $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO yolo_writer, yolo_reader', current_schema());
END
$$;

GRANT SELECT, INSERT ON model, measurement, epoch, decision, profile, usage_day TO yolo_writer;
GRANT UPDATE ON decision, profile, usage_day TO yolo_writer;
GRANT USAGE ON SEQUENCE model_id_seq, measurement_id_seq TO yolo_writer;

GRANT SELECT ON
    yolo_profiles_version,
    run_history, epoch_history, decision_history, prediction_error, oom_history, usage_by_dag, resource_card,
    model_spectrum, model_facts
TO yolo_writer, yolo_reader;
