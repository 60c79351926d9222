"""ProfileProbeOperator: a few real training steps, to know what a training will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yolo_airflow_provider.contract import JobResult, JobSpec, ProbeJob
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.operators import parameters
from yolo_airflow_provider.operators.base import Proposal
from yolo_airflow_provider.operators.model import ModelOperator
from yolo_airflow_provider.operators.plan import read_data

DEFAULT_BATCHES = (2, 8, 16)
"""Wide apart for the slope of the line, small enough for a small slice."""


class ProfileProbeOperator(ModelOperator):
    """Measures memory, step time and data wait at two or three batch sizes, and stores them.

    Each point runs Ultralytics' own trainer for a handful of steps on the most crowded images, with optimizer, EMA
    and one validation pass. A batch that does not fit is a point too.

    :param batches: batch sizes, ascending; `auto` for 2, 8 and 16 as far as the data set goes. (templated)
    :param steps: measured steps a batch size, after one to warm up. (templated)

    Returns `{"model": ..., "points": [one measurement a batch]}`.
    """

    template_fields: Sequence[str] = (*ModelOperator.template_fields, "batches", "steps")

    def __init__(self, *, batches: Sequence[int] | str = "auto", steps: int | str = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches
        self.steps = steps

    def _propose(self, accelerator: Accelerator) -> Proposal:
        source = read_data(self.data)
        common = self._common(source)
        batches = self._batches(source.images)
        stored = self._known(common, accelerator)
        # Refuses a budget that holds no training at all, before a probe is spent on it.
        _, choice = self._choose(common, accelerator, stored, batch=None, source=source, max_batch=max(batches))
        known = {candidate.batch for candidate in choice.candidates if candidate.ran_out}
        if known:
            batches = [batch for batch in batches if batch < min(known)] or [1]
            self.log.info("batch %d is known to run out of memory; probing %s", min(known), batches)
        job = ProbeJob(**common, batches=tuple(batches), steps=parameters.whole_number("steps", self.steps, least=1))
        return Proposal(job, self._need(common, accelerator, stored, batch=max(batches)), amp=job.amp)

    def _batches(self, images: int | None) -> list[int]:
        asked = parameters.batch_list(self.batches)
        if asked is None:
            return sorted({min(batch, images or batch) for batch in DEFAULT_BATCHES})
        if images is not None and max(asked) > images:
            raise BadInput(f"batches={asked}: {max(asked)} is larger than the data set's {images} training images")
        return asked

    def _returned(self, spec: JobSpec, result: JobResult) -> dict[str, Any]:
        return {
            "model": result.model.model_dump(mode="json") if result.model else None,
            "points": [point.model_dump(mode="json", exclude_none=True) for point in result.measurements],
        }
