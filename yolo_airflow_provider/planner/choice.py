"""The choice of a batch for an accelerator: the largest whose upper bound fits, with its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.planner.evidence import Evidence, Observation, sort_evidence
from yolo_airflow_provider.planner.memory import Estimate, MemoryModel, fit

DEFAULT_MARGIN_PERCENT = 10.0
DEFAULT_MAX_BATCH = 64
"""Ultralytics' nominal batch size (`nbs`): gradients are accumulated up to it, so a larger batch changes the training
and not only its speed."""

FALLBACK_BATCH = 16
"""Where nothing is known: Ultralytics' own default. Its size is measured by the run, and the next one knows."""

CPU_RUNTIME_BYTES = 300 * 2**20
"""Less than any worker holds once torch and Ultralytics are imported, whatever the build (0.55 to 0.8 GiB with torch
2.14's CUDA build and a nano model, before the first image). What lies above is for the run to find out."""

Why = Literal["measured", "line", "scaled", "fallback", "given"]


class NothingFits(ValueError):
    """Not even the smallest batch fits; the message has the numbers and what to change."""


@dataclass(frozen=True)
class Question:
    """What is to be decided.

    Attributes:
        model: as the store calls it.
        imgsz: side of the square input, pixels.
        accelerator: what the run gets; its memory is the budget.
        batch: what the DAG author asked for, None for "auto".
        images: training images, None where not known yet.
        max_batch: largest batch to choose.
        kept: batch of a try that broke off for a reason that is none of the batch's; taken up again where the author
            asked for none.
        margin_percent: of the budget to leave free.
    """

    model: str
    imgsz: int
    accelerator: Accelerator
    batch: int | None = None
    images: int | None = None
    max_batch: int = DEFAULT_MAX_BATCH
    kept: int | None = None
    margin_percent: float = DEFAULT_MARGIN_PERCENT


@dataclass(frozen=True)
class Candidate:
    """A batch that was considered, and why it was not chosen (empty for the chosen one)."""

    batch: int
    expected_bytes: int | None
    high_bytes: int | None
    why_not: str
    ran_out: bool = False
    """It, or a smaller one, ran out of as much memory before."""


@dataclass(frozen=True)
class Choice:
    """What was chosen and why; `sentence` says it all in one line."""

    batch: int
    why: Why
    memory: Estimate | None
    epoch_seconds: float | None
    candidates: tuple[Candidate, ...]
    evidence: tuple[int, ...]
    sentence: str


def choose(question: Question, observations: Sequence[Observation]) -> Choice:
    """Decide a batch from the observations of the same configuration.

    Raises:
        NothingFits: the budget is smaller than batch 1 needs.
        ValueError: the asked batch is not positive or larger than the data set.
    """
    _check(question)
    evidence = sort_evidence(observations)
    model = fit(evidence)
    _refuse_hopeless(question, model)
    candidates = _consider(question, model)
    fitting = [candidate.batch for candidate in candidates if not candidate.why_not]
    asked = question.batch if question.batch is not None else _kept(question)
    as_asked = False
    if asked is not None and not _ruled_out(question, model, asked):
        batch, as_asked = asked, True
    else:
        batch = max(fitting) if fitting else _fallback(question, model)
    memory = model.estimate(batch)
    why: Why = "given" if as_asked else _why(memory, batch in fitting)
    seconds = _epoch_seconds(evidence, question.images)
    return Choice(
        batch=batch,
        why=why,
        memory=memory,
        epoch_seconds=seconds,
        candidates=_explained(candidates, batch),
        evidence=tuple(evidence.ids),
        sentence=_sentence(question, batch, why, memory, seconds, evidence),
    )


def candidate_batches(limit: int) -> list[int]:
    """Batches worth considering up to `limit`: every one to 8, then steps of 2 to 32, of 4 to 64, of 8 beyond."""
    steps = [*range(1, 8), *range(8, 32, 2), *range(32, 64, 4), *range(64, limit + 8, 8)]
    kept = [batch for batch in steps if batch <= limit]
    return kept if not kept or kept[-1] == limit else [*kept, limit]


def _check(question: Question) -> None:
    asked, images = question.batch, question.images
    if asked is not None and asked < 1:
        raise ValueError(f"batch={asked} is not a batch size: use a number of images from 1, or 'auto'")
    if asked is not None and images is not None and asked > images:
        raise ValueError(
            f"batch={asked} is larger than the data set's {images} training images: use at most {images}, or 'auto'"
        )


def _refuse_hopeless(question: Question, model: MemoryModel) -> None:
    budget = question.accelerator.memory_bytes
    if budget is None:
        return
    if question.accelerator.kind == "cpu" and budget < CPU_RUNTIME_BYTES:
        raise NothingFits(
            f"a budget of {_gib(budget)} holds no training on cpu: torch and Ultralytics alone take more than"
            f" {_gib(CPU_RUNTIME_BYTES)}; give the task more memory"
        )
    smallest = model.estimate(1)
    failed = model.known_not_to_fit(1, budget)
    if failed is not None or (smallest is not None and smallest.basis != "scaled" and smallest.expected_bytes > budget):
        need = f"about {_gib(smallest.expected_bytes)}" if smallest else f"more than {_gib(budget)}"
        raise NothingFits(
            f"{question.model} at {question.imgsz} needs {need} for batch 1, the budget on"
            f" {question.accelerator.label} is {_gib(budget)}; use a smaller imgsz or model, or more memory"
        )


def _consider(question: Question, model: MemoryModel) -> list[Candidate]:
    limit = min(question.max_batch, question.images or question.max_batch)
    if question.batch is not None:
        limit = min(limit, question.batch)
    batches = {*candidate_batches(limit), *(batch for batch in model.measured if batch <= limit)}
    return [_candidate(question, model, batch) for batch in sorted(batches)]


def _candidate(question: Question, model: MemoryModel, batch: int) -> Candidate:
    estimate = model.estimate(batch)
    budget = question.accelerator.memory_bytes
    failed = model.known_not_to_fit(batch, budget)
    if failed is not None:
        why = f"batch {failed.batch} ran out of memory in {_gib(failed.budget_bytes)} (measurement {failed.id})"
    elif estimate is None:
        why = "nothing measured"
    elif budget is None:
        why = "the budget is not known"
    elif estimate.high_bytes > _usable(question) and not _proven(model, batch, budget):
        why = f"up to {_gib(estimate.high_bytes)}, over {_gib(_usable(question))}"
    else:
        why = ""
    return Candidate(
        batch=batch,
        expected_bytes=estimate.expected_bytes if estimate else None,
        high_bytes=estimate.high_bytes if estimate else None,
        why_not=why,
        ran_out=failed is not None,
    )


def _proven(model: MemoryModel, batch: int, budget_bytes: int) -> bool:
    """A training of this batch stayed within as much memory before: that outweighs caution about a repetition."""
    return batch in model.measured and model.measured[batch] <= budget_bytes


def _kept(question: Question) -> int | None:
    limit = min(question.max_batch, question.images or question.max_batch)
    return question.kept if question.kept is not None and question.kept <= limit else None


def _ruled_out(question: Question, model: MemoryModel, batch: int) -> bool:
    """An asked batch is only overruled by knowledge that it does not fit, not by caution."""
    budget = question.accelerator.memory_bytes
    if model.known_not_to_fit(batch, budget) is not None:
        return True
    estimate = model.estimate(batch)
    return estimate is not None and budget is not None and estimate.low_bytes > budget


def _fallback(question: Question, model: MemoryModel) -> int:
    """Nothing known to fit: the default, halved below what failed or is known to be too large."""
    limits = [FALLBACK_BATCH, question.max_batch]
    limits += [question.images] if question.images else []
    limits += [question.batch] if question.batch else []
    budget = question.accelerator.memory_bytes
    if budget is not None and model.line is not None:
        return 1  # the line says that batch 1 fits on the expected value, though not on the upper bound
    limits += [
        max(1, failure.batch // 2) for failure in model.failures if model.known_not_to_fit(failure.batch, budget)
    ]
    if model.single is not None and budget is not None:
        limits.append(max(1, model.single[0] // 2))
    return min(limits)


def _why(memory: Estimate | None, fits: bool) -> Why:
    return memory.basis if memory is not None and fits else "fallback"


def _usable(question: Question) -> int:
    budget = question.accelerator.memory_bytes or 0
    return int(budget * (1 - question.margin_percent / 100))


def _epoch_seconds(evidence: Evidence, images: int | None) -> float | None:
    """Seconds an epoch: trainings of as many images as they are; else by the images."""
    timed = [(run.epoch_seconds, run.images) for run in evidence.runs if run.epoch_seconds and run.images]
    if timed:
        return median(seconds * ((images or count) / count) for seconds, count in timed)
    rates = [probe.images_per_second for probe in evidence.probes if probe.images_per_second]
    return images / max(rates) if rates and images else None


def _explained(candidates: Sequence[Candidate], chosen: int) -> tuple[Candidate, ...]:
    return tuple(
        candidate
        if candidate.why_not or candidate.batch == chosen
        else replace(candidate, why_not="smaller than what fits")
        for candidate in candidates
    )


def _sentence(
    question: Question,
    batch: int,
    why: Why,
    memory: Estimate | None,
    seconds: float | None,
    evidence: Evidence,
) -> str:
    budget = question.accelerator.memory_bytes
    room = f" of {_gib(budget)}" if budget else ""
    left = f" less {question.margin_percent:g} %" if budget else ""
    head = f"{question.model} at {question.imgsz} on {question.accelerator.label}: batch {batch}"
    if question.batch is not None and question.batch != batch:
        head += f" instead of {question.batch}, which does not fit"
    elif why == "given":
        head += " as asked" if question.batch is not None else " as in the try before"
    if memory is not None:
        head += (
            f", {_gib(memory.expected_bytes)} predicted ({_gib(memory.low_bytes)} to {_gib(memory.high_bytes)})"
            f"{room}{left}"
        )
    if seconds is not None:
        head += f", about {seconds:.0f} s an epoch"
    return f"{head}; {_grounds(why, evidence)}"


def _grounds(why: Why, evidence: Evidence) -> str:
    runs, probes = evidence.runs, evidence.probes
    named = []
    if runs:
        newest = runs[0]
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        when = f" of {newest.when}" if newest.when else ""
        named.append(f"the training at batch {newest.batch}{when} (measurement {newest.id}){more}")
    if probes:
        named.append(f"{len(probes)} probe point{'s' if len(probes) > 1 else ''}")
    if evidence.failures:
        failed = evidence.failures[0]
        named.append(f"batch {failed.batch} having run out of memory (measurement {failed.id})")
    if not named:
        return f"nothing measured yet, so this is {'not checked' if why == 'given' else 'a fixed fallback'}"
    if why == "fallback":
        return f"nothing known is sure to fit, a fallback after {', '.join(named)}"
    return f"evidence: {', '.join(named)}"


def _gib(memory_bytes: int | None) -> str:
    return "an unknown budget" if memory_bytes is None else f"{memory_bytes / 2**30:.2f} GiB"
