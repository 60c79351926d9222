"""The choice of a batch for an accelerator: the largest whose upper bound fits, with its reasons."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.planner.evidence import Evidence, Observation, sort_evidence
from yolo_airflow_provider.planner.memory import Estimate, MemoryModel, Prior, fit
from yolo_airflow_provider.planner.need import Constants, Workload, needed
from yolo_airflow_provider.planner.sentence import Told, gib, sentence
from yolo_airflow_provider.planner.timing import EpochTime

DEFAULT_MARGIN_PERCENT = 10.0
DEFAULT_MAX_BATCH = 64
"""Ultralytics' nominal batch size (`nbs`): gradients are accumulated up to it, so a larger batch changes the training
and not only its speed."""

FALLBACK_BATCH = 16
"""Where nothing is known: Ultralytics' own default. Its size is measured by the run, and the next one knows."""

CPU_RUNTIME_BYTES = 300 * 2**20
"""Less than any worker holds once torch and Ultralytics are imported, whatever the build (0.55 to 0.8 GiB with torch
2.14's CUDA build and a nano model, before the first image). What lies above is for the run to find out."""

LEAST_BATCH = 4
"""Below it the statistics of batch normalisation are noise (Wu and He, Group Normalization, 2018, figure 1: the error
rises below 8 and doubles at 2). The effective batch is kept by accumulating gradients up to the nominal 64."""
NEIGHBOURS = 3
"""Candidates on either side of the largest that fits which a decision keeps."""
THROUGHPUT_LOSS = 0.05
"""A larger batch that was measured to be slower by more than this is not worth its memory."""

Why = Literal["measured", "line", "scaled", "predicted", "fallback", "given"]


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
        min_batch: smallest batch to choose, as far as the data set has as many images.
        workload: what is trained, for a prediction where nothing was measured; None where the architecture is unknown.
        constants: of that prediction, where history corrected them.
        time: seconds of an epoch by batch, None where they cannot be told.
        epochs: of the training, None for a probe.
        cards: whole cards that share a batch out (DDP); each takes as many images of it.
    """

    model: str
    imgsz: int
    accelerator: Accelerator
    batch: int | None = None
    images: int | None = None
    max_batch: int = DEFAULT_MAX_BATCH
    kept: int | None = None
    margin_percent: float = DEFAULT_MARGIN_PERCENT
    min_batch: int = 1
    workload: Workload | None = None
    constants: Constants | None = None
    time: Callable[[int], EpochTime | None] | None = None
    epochs: int | None = None
    cards: int = 1

    @property
    def label(self) -> str:
        """What it runs on, for people."""
        return self.accelerator.counted(self.cards)

    @property
    def prior(self) -> Prior | None:
        """What the architecture predicts for a batch."""
        work = self.workload
        return None if work is None else lambda batch: needed(work, batch, self.constants)


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
    time: EpochTime | None = None


def choose(question: Question, observations: Sequence[Observation]) -> Choice:
    """Decide a batch from the observations of the same configuration.

    Raises:
        NothingFits: the budget is smaller than the smallest batch needs; the message names what would fit.
        ValueError: the asked batch is not positive or larger than the data set.
    """
    _check(question)
    evidence = sort_evidence(observations)
    model = fit(evidence, question.prior)
    _refuse_hopeless(question, model)
    candidates = _consider(question, model)
    fitting = [candidate.batch for candidate in candidates if not candidate.why_not]
    asked = question.batch if question.batch is not None else _kept(question)
    as_asked = False
    if asked is not None and not _ruled_out(question, model, asked):
        batch, as_asked = asked, True
    else:
        batch = _fastest(fitting, evidence) if fitting else _fallback(question, model)
        batch = max(question.cards, batch - batch % question.cards)
    memory = model.estimate(batch)
    why: Why = "given" if as_asked else _why(memory, batch in fitting)
    time = question.time(batch) if question.time is not None else None
    seconds = time.expected_seconds if time is not None else _epoch_seconds(evidence, question.images)
    told = Told(
        what=f"{question.model} at {question.imgsz} on {question.label}",
        batch=batch,
        asked=question.batch,
        why=why,
        budget_bytes=question.accelerator.memory_bytes,
        margin_percent=question.margin_percent,
        memory=memory,
        time=time,
        seconds=seconds,
        epochs=question.epochs,
    )
    return Choice(
        batch=batch,
        why=why,
        memory=memory,
        epoch_seconds=seconds,
        candidates=_explained(candidates, batch),
        evidence=tuple(evidence.ids),
        sentence=sentence(told, evidence),
        time=time,
    )


def cannot_share(accelerator: Accelerator) -> str:
    """Why several of them cannot train one model together; empty for whole cards, which can."""
    if accelerator.kind == "gpu":
        return ""
    return (
        f"several processes share a batch out over NCCL, which takes whole cards, and {accelerator.label} is none:"
        ' slices have no path to each other ("Duplicate GPU detected", pytorch#130181). Ask for one larger slice, or'
        " for whole cards"
    )


def candidate_batches(limit: int) -> list[int]:
    """Batches worth considering up to `limit`: every one to 8, then steps of 2 to 32, of 4 to 64, of 8 beyond."""
    steps = [*range(1, 8), *range(8, 32, 2), *range(32, 64, 4), *range(64, limit + 8, 8)]
    kept = [batch for batch in steps if batch <= limit]
    return kept if not kept or kept[-1] == limit else [*kept, limit]


def _check(question: Question) -> None:
    asked, images, cards = question.batch, question.images, question.cards
    if cards > 1 and (why := cannot_share(question.accelerator)):
        raise ValueError(why)
    if images is not None and images < cards:
        raise ValueError(f"{images} training images cannot be shared out among {cards} cards")
    if asked is not None and asked % cards:
        raise ValueError(f"batch={asked} cannot be shared out among {cards} cards: use a multiple of {cards}")
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
            f"a budget of {gib(budget)} holds no training on cpu: torch and Ultralytics alone take more than"
            f" {gib(CPU_RUNTIME_BYTES)}; give the task more memory"
        )
    least = _least(question)
    smallest = model.estimate(least)
    failed = model.known_not_to_fit(least, budget)
    if failed is not None or (smallest is not None and _too_large(smallest, budget)):
        need = f"about {gib(smallest.expected_bytes)}" if smallest else f"more than {gib(budget)}"
        raise NothingFits(
            f"{question.model} at {question.imgsz} needs {need} for batch {least}, the budget on"
            f" {question.accelerator.label} is {gib(budget)}; {_alternatives(question, model, least, budget)}"
        )


def _too_large(smallest: Estimate, budget: int) -> bool:
    # What is only a bound (scaled without a shape) or a prediction refuses where even its lower end is too much.
    if smallest.basis in ("scaled", "predicted"):
        return smallest.low_bytes > budget and smallest.basis == "predicted"
    return smallest.expected_bytes > budget


def _least(question: Question) -> int:
    """The smallest batch to choose: what was asked for, else what batch normalisation bears and the data set has."""
    if question.batch is not None:
        return question.cards
    # Each card has statistics of its own: Ultralytics does not synchronise batch normalisation.
    least = question.min_batch * question.cards
    return max(question.cards, min(least, question.max_batch, question.images or least))


def _alternatives(question: Question, model: MemoryModel, least: int, budget: int) -> str:
    """What would fit instead, nearest first."""
    found = []
    usable = _usable(question)
    for batch in range(least - question.cards, 0, -question.cards):
        estimate = model.estimate(batch)
        if estimate is not None and estimate.high_bytes <= usable and model.known_not_to_fit(batch, budget) is None:
            found.append(f"batch={batch} would fit, which batch normalisation bears badly")
            break
    work = question.workload
    if work is not None:
        stride = work.architecture.stride
        for imgsz in range(question.imgsz - stride, stride, -stride):
            if needed(replace(work, imgsz=imgsz), least, question.constants).high <= usable:
                found.append(f"imgsz={imgsz} would fit with batch {least}")
                break
    estimate = model.estimate(least)
    if estimate is not None:
        more = estimate.high_bytes / (1 - question.margin_percent / 100)
        found.append(f"so would {gib(int(more))} of memory")
    return ", ".join(found) if found else "use a smaller imgsz or model, or more memory"


def _fastest(fitting: Sequence[int], evidence: Evidence) -> int:
    """The largest batch that fits, or a smaller one where larger ones were measured to be slower."""
    rates: dict[int, float] = {}
    for seen in (*evidence.runs, *evidence.probes):
        if seen.images_per_second:
            rates[seen.batch] = max(rates.get(seen.batch, 0.0), seen.images_per_second)
    largest = max(fitting)
    tried = {batch: rate for batch, rate in rates.items() if batch <= largest}
    if not tried:
        return largest
    best = max(tried, key=lambda batch: (tried[batch], batch))
    slower = [b for b, rate in rates.items() if best < b <= largest and rate < tried[best] * (1 - THROUGHPUT_LOSS)]
    return max(batch for batch in candidate_batches(largest) if batch < min(slower)) if slower else largest


def _consider(question: Question, model: MemoryModel) -> list[Candidate]:
    limit = min(question.max_batch, question.images or question.max_batch)
    if question.batch is not None:
        limit = min(limit, question.batch)
    least = _least(question)
    batches = [batch for batch in candidate_batches(limit) if batch >= least and batch % question.cards == 0]
    # Where the limit itself cannot be shared out and nothing below it either, the smallest that can be stands.
    batches = batches or [least]
    if not model.measured:
        return _around_the_largest(question, model, batches)
    batches = sorted({*batches, *(batch for batch in model.measured if least <= batch <= limit)})
    return [_candidate(question, model, batch) for batch in batches]


def _around_the_largest(question: Question, model: MemoryModel, batches: Sequence[int]) -> list[Candidate]:
    """The candidates next to the largest that fits, and a few of the others.

    Without a measured training, which may be proven to fit though its upper bound does not, what fits is all that is no
    larger than the largest that fits: it is found by halving.
    """
    seen: dict[int, Candidate] = {}

    def candidate(place: int) -> Candidate:
        if place not in seen:
            seen[place] = _candidate(question, model, batches[place])
        return seen[place]

    below = bisect.bisect_left(range(len(batches)), True, key=lambda place: bool(candidate(place).why_not))
    for place in range(max(0, below - NEIGHBOURS), min(len(batches), below + NEIGHBOURS)):
        candidate(place)
    return [seen[place] for place in sorted(seen)]


def _candidate(question: Question, model: MemoryModel, batch: int) -> Candidate:
    estimate = model.estimate(batch)
    budget = question.accelerator.memory_bytes
    failed = model.known_not_to_fit(batch, budget)
    if failed is not None:
        why = f"batch {failed.batch} ran out of memory in {gib(failed.budget_bytes)} (measurement {failed.id})"
    elif estimate is None:
        why = "nothing measured"
    elif budget is None:
        why = "the budget is not known"
    elif estimate.high_bytes > _usable(question) and not _proven(model, batch, budget):
        why = f"up to {gib(estimate.high_bytes)}, over {gib(_usable(question))}"
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
    if budget is not None and (model.line is not None or (model.prior is not None and model.single is None)):
        return _least(question)  # it fits on the expected value, though not on the upper bound
    limits += [
        max(1, failure.batch // 2) for failure in model.failures if model.known_not_to_fit(failure.batch, budget)
    ]
    if model.single is not None and budget is not None:
        limits.append(max(1, model.single[0] // 2))
    return max(_least(question), min(limits)) if model.prior is not None else min(limits)


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
