"""What GPUs and MIG slices are, and what there is to compute on. Stands on nothing else of the provider."""

from __future__ import annotations
