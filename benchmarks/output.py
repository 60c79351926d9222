"""How a benchmark reports: a table for people, or one JSON object, on stdout; progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.machine import Machine


def progress(text: str) -> None:
    """Say what is being done; never on stdout, which belongs to the result."""
    print(text, file=sys.stderr, flush=True)


def report(
    name: str,
    machine: Machine,
    *,
    figures: Mapping[str, Any],
    rows: Sequence[Sequence[str]],
    closing: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Print a result.

    Args:
        name: of the benchmark.
        machine: where it ran.
        figures: what the JSON object holds, besides the name and the machine.
        rows: the table, its head first.
        closing: lines below the table.
        as_json: print the JSON object instead of the table.
    """
    if as_json:
        print(json.dumps({"benchmark": name, **figures, "machine": machine.as_dict()}))
        return
    print("\n".join([f"{name}: {machine}", "", *table(rows), "", *closing]))


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns: the first to the left, numbers to the right, a rule below the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) if number else cell.ljust(width) for number, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return [lines[0].rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in lines[1:])]
