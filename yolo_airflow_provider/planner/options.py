"""Which accelerator, where several would do: the cheapest, the fastest or the smallest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cards import device
from yolo_airflow_provider.planner.choice import Choice

Objective = Literal["cost", "time", "fit"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)


@dataclass(frozen=True)
class Option:
    """Something that the training fits on.

    Attributes:
        accelerator: what it is.
        choice: of the batch there.
        epochs: of the training, 1 where they are not known.
        free: it can be had now, as far as is known.
        cards: so many of it.
    """

    accelerator: Accelerator
    choice: Choice
    epochs: int = 1
    free: bool = True
    cards: int = 1

    @property
    def seconds(self) -> float:
        """Expected of the whole training; infinite where nothing is known."""
        time = self.choice.time
        return math.inf if time is None else time.expected_seconds * self.epochs

    @property
    def share(self) -> float:
        """Of a card that others cannot have meanwhile; 1 for what is not known."""
        known = device(self.accelerator)
        return 1.0 if known is None else known.share

    @property
    def card_seconds(self) -> float:
        """What the training costs: seconds of a whole card."""
        return self.seconds * self.share * self.cards


def best(options: Sequence[Option], objective: Objective) -> int:
    """Place of the option to take: free ones first, then by the objective, then the smallest.

    Args:
        options: at least one.
        objective: `cost` weighs the seconds by the share of the card, `time` takes the fastest, `fit` the smallest.
    """
    return min(range(len(options)), key=lambda place: (_key(options[place], objective), place))


def why_not(option: Option, taken: Option, objective: Objective) -> str:
    """Why another was taken, for a table of candidates."""
    if taken.free and not option.free:
        return "in use"
    if objective == "fit":
        return "larger"
    if objective == "time":
        return f"takes {_times(option.seconds, taken.seconds)} as long"
    return f"costs {_times(option.card_seconds, taken.card_seconds)} as much"


def _key(option: Option, objective: Objective) -> tuple[bool, float, float]:
    size = float(option.accelerator.memory_bytes or math.inf)
    # A prediction is good to a few percent at best: nearly as good is as good, and then the smaller one is taken.
    score = {"cost": option.card_seconds, "time": option.seconds, "fit": 0.0}[objective]
    steps = round(math.log(score) / math.log(1.02)) if 0 < score < math.inf else (0 if score == 0 else math.inf)
    return not option.free, steps, size


def _times(value: float, least: float) -> str:
    return "an unknown time" if not math.isfinite(value) or least <= 0 else f"{value / least:.2f} times"
