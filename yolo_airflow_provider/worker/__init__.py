"""What runs inside the pod (or as a child process): checks, probes, trains, exports and measures.

Imports pydantic and the extra `worker` only. Ultralytics (AGPL-3.0) is imported nowhere else in the project.
"""

from __future__ import annotations
