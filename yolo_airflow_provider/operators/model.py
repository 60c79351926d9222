"""What the probe and the training have in common: a model on a data set on an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.contract import DatasetSummary, JobSpec, profile_name
from yolo_airflow_provider.errors import BadInput, DoesNotFit, YoloError
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.operators import forecast, parameters
from yolo_airflow_provider.operators.base import YoloPodOperator
from yolo_airflow_provider.operators.plan import (
    DataSource,
    host_observations,
    observations,
    profile_key,
    read_data,
)
from yolo_airflow_provider.operators.tries import earlier_tries
from yolo_airflow_provider.planner import host
from yolo_airflow_provider.planner.choice import Choice, NothingFits, Question, choose

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import EvidenceRow

MODEL_PARAMETERS = (
    "model",
    "data",
    "imgsz",
    "accelerator",
    "amp",
    "optimizer",
    "workers",
    "seed",
    "task",
    "trusted_weights",
)


class ModelOperator(YoloPodOperator):
    """Base of the operators that put a model on an accelerator.

    :param model: architecture (`yolov8n`), or the path of a .yaml or .pt file. (templated)
    :param data: path of a data.yaml, or the output of a PreprocessOperator. (templated)
    :param imgsz: side of the square input, pixels; a multiple of the model's stride. (templated)
    :param accelerator: `auto`, `cpu`, `gpu`, a MIG profile such as `1g.10gb`, or a resource name. (templated)
    :param amp: mixed precision, on GPUs. (templated)
    :param optimizer: Ultralytics' name; `auto` lets it choose. (templated)
    :param workers: data loader processes; Ultralytics uses none on `cpu`. (templated)
    :param seed: of all random numbers. (templated)
    :param task: Ultralytics' task. (templated)
    :param trusted_weights: load a .pt as a full pickle. A .pt may run any code when it is loaded, so by default only
        known model classes are reconstructed. (templated)
    """

    template_fields: Sequence[str] = (*YoloPodOperator.template_fields, *MODEL_PARAMETERS)

    def __init__(
        self,
        *,
        model: str,
        data: Any,
        imgsz: int | str = 640,
        accelerator: str = "auto",
        amp: bool | str = True,
        optimizer: str = "auto",
        workers: int | str = 8,
        seed: int | str = 0,
        task: str = "detect",
        trusted_weights: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.data = data
        self.imgsz = imgsz
        self.accelerator = accelerator
        self.amp = amp
        self.optimizer = optimizer
        self.workers = workers
        self.seed = seed
        self.task = task
        self.trusted_weights = trusted_weights

    def _asked_accelerator(self) -> str:
        return self.accelerator

    def _dataset(self) -> DatasetSummary | None:
        return read_data(self.data).summary

    def _common(self, source: DataSource) -> dict[str, Any]:
        """The fields that every model job has, checked."""
        return {
            "model": self.model,
            "data": source.path,
            "imgsz": parameters.whole_number("imgsz", self.imgsz, least=32),
            "task": self.task,
            "trusted_weights": parameters.switch("trusted_weights", self.trusted_weights),
            "amp": parameters.switch("amp", self.amp),
            "optimizer": self.optimizer,
            "workers": parameters.whole_number("workers", self.workers, least=0),
            "seed": parameters.whole_number("seed", self.seed, least=0),
            # A file's content may be another than at its last analysis, which takes seconds.
            "analyse": forecast.known_architecture(self.model) is None,
        }

    def _known(self, common: dict[str, Any], accelerator: Accelerator) -> list[EvidenceRow]:
        """What the store has of this profile."""
        return self._store().evidence(
            profile_key(self.model, common["imgsz"], amp=common["amp"], accelerator=accelerator)
        )

    def _choose(
        self,
        common: dict[str, Any],
        accelerator: Accelerator,
        known: Sequence[EvidenceRow],
        *,
        batch: int | None,
        source: DataSource,
        max_batch: int,
        min_batch: int = 1,
        cached: int = 0,
        epochs: int | None = None,
    ) -> tuple[Question, Choice]:
        """Ask the planner.

        Raises:
            DoesNotFit: nothing fits the accelerator.
            BadInput: the batch is wrong.
        """
        shape = forecast.architecture_of(self.model, self.task, source.architecture, self._store())
        question = Question(
            model=profile_name(self.model),
            imgsz=common["imgsz"],
            accelerator=accelerator,
            batch=batch,
            images=source.images,
            max_batch=max_batch,
            min_batch=min_batch,
            kept=self._earlier.kept_batch(profile_name(self.model), common["imgsz"], accelerator),
            workload=forecast.workload(
                shape,
                common["imgsz"],
                amp=common["amp"],
                optimizer=common["optimizer"],
                accelerator=accelerator,
                dataset=source.summary,
            ),
            time=forecast.epoch_time(
                shape,
                common["imgsz"],
                amp=common["amp"],
                workers=common["workers"],
                cached=cached > 0,
                accelerator=accelerator,
                dataset=source.summary,
                known=known,
            ),
            epochs=epochs,
            constants=forecast.constants_of(
                self._store().relatives(accelerator.kind, accelerator.product), accelerator
            ),
        )
        try:
            return question, choose(question, observations(known, cached=cached))
        except NothingFits as error:
            raise DoesNotFit(str(error)) from None
        except ValueError as error:
            raise BadInput(str(error)) from None

    def _need(
        self,
        common: dict[str, Any],
        accelerator: Accelerator,
        known: Sequence[EvidenceRow],
        *,
        batch: int,
        cached_bytes: int = 0,
    ) -> host.HostNeed:
        """What the pod takes of its node beside the accelerator."""
        workers = common["workers"] if accelerator.kind != "cpu" else 0
        shared = host.shared_bytes(
            batch=batch, imgsz=common["imgsz"], workers=workers, too_small=self._earlier.shm_failures
        )
        return host.training(
            accelerator.kind,
            workers=workers,
            shared=shared,
            cached_bytes=cached_bytes,
            observations=host_observations(known),
        )

    def _next_try(self, spec: JobSpec, try_number: int) -> str:
        """Plan as the next try would, with what this one taught."""
        given = spec.accelerator
        accelerator = Accelerator(
            kind=given.kind,
            product=given.product,
            mig_profile=given.mig_profile,
            memory_bytes=given.memory_budget_bytes,
        )
        self._earlier = earlier_tries(self._store(), spec.identity.model_copy(update={"try_number": try_number}))
        try:
            proposal = self._propose(accelerator)
        except DoesNotFit as error:
            return f"takes another accelerator, if there is one: {error}" if self.accelerator == "auto" else f"{error}"
        except YoloError as error:
            return f"will be refused: {error}"
        need = proposal.need
        planned = [proposal.choice[1].sentence if proposal.choice else "runs the same again"]
        if need.memory_bytes is not None:
            planned.append(f"host memory {need.memory_bytes / 2**30:.2f} GiB ({need.why})")
        if need.shared_bytes:
            planned.append(f"/dev/shm {need.shared_bytes / 2**30:.2f} GiB")
        return "; ".join(planned)
