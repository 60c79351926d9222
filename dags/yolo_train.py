"""Check, probe, train, export: one YOLO training whose batch is chosen from what was measured before.

Trigger it from the UI: the form asks for everything below. Without a cluster set AIRFLOW__YOLO__EXECUTION=local.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from yolo_airflow_provider.operators.export import ExportOperator
from yolo_airflow_provider.operators.preprocess import PreprocessOperator
from yolo_airflow_provider.operators.probe import ProfileProbeOperator
from yolo_airflow_provider.operators.retry import YOLO_RETRY_POLICY
from yolo_airflow_provider.operators.train import MigTrainOperator

with DAG(
    dag_id="yolo_train",
    schedule=None,
    catchup=False,
    tags=["yolo"],
    doc_md=__doc__,
    params={
        "model": Param(
            "yolov8n",
            type="string",
            minLength=1,
            title="Model",
            description="Architecture, or the path of a .yaml or .pt file.",
            examples=["yolov8n", "yolov8s", "yolov8m", "yolo11n", "yolo11s", "yolo26n"],
        ),
        "data": Param(
            "/data/data.yaml",
            type="string",
            minLength=1,
            title="Data set",
            description="Path of the data.yaml.",
        ),
        "imgsz": Param(640, type="integer", minimum=32, multipleOf=32, title="Input size", description="Pixels."),
        "epochs": Param(100, type="integer", minimum=1, title="Epochs"),
        "batch": Param("auto", type=["string", "integer"], title="Batch", description="A number of images, or auto."),
        "accelerator": Param(
            "auto", type="string", title="Accelerator", description="auto, cpu, gpu or a MIG profile."
        ),
        "memory_budget": Param(
            None,
            type=["null", "string"],
            title="Memory budget",
            description="Such as 4Gi; empty for what the device has.",
        ),
        "format": Param("onnx", type="string", title="Export format", examples=["onnx", "torchscript", "openvino"]),
    },
) as dag:
    preprocess = PreprocessOperator(
        task_id="preprocess",
        data="{{ params.data }}",
        imgsz="{{ params.imgsz }}",
    )
    probe = ProfileProbeOperator(
        task_id="probe",
        model="{{ params.model }}",
        data=preprocess.output,
        imgsz="{{ params.imgsz }}",
        accelerator="{{ params.accelerator }}",
        memory_budget="{{ params.memory_budget }}",
    )
    train = MigTrainOperator(
        task_id="train",
        model="{{ params.model }}",
        data=preprocess.output,
        imgsz="{{ params.imgsz }}",
        epochs="{{ params.epochs }}",
        batch="{{ params.batch }}",
        accelerator="{{ params.accelerator }}",
        memory_budget="{{ params.memory_budget }}",
        retries=3,
        retry_policy=YOLO_RETRY_POLICY,
    )
    export = ExportOperator(task_id="export", weights=train.output, format="{{ params.format }}")

    preprocess >> probe >> train >> export
