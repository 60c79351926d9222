"""One script a claim: `python -m benchmarks.NAME`; results in docs/benchmarks.md."""

from __future__ import annotations
