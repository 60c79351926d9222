"""The worker's log: short plain lines on standard output, which Airflow shows in the task's log, and a copy in the
run's folder, which is there when Airflow's was lost with the pod.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO


def say(line: str) -> None:
    """Write one line and flush it, so that it is seen while the work goes on."""
    print(line, flush=True)


def gib(memory_bytes: float | None) -> str:
    """Memory for people: `3.42 GiB`, or `?` where it was not measured."""
    return "?" if memory_bytes is None else f"{memory_bytes / 2**30:.2f} GiB"


def duration(seconds: float) -> str:
    """Time for people: `48 s`, `12 min`, `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Write everything that Python prints to `path` too, a line at a time; a pod that restarts appends.

    The copy is a convenience: where the folder cannot be written or the disk is full, the run goes on without it.
    What native code writes to the file descriptors themselves is not in it.
    """
    log = _LogFile(path)
    streams = sys.stdout, sys.stderr
    # A stand-in is all that print, logging and traceback need of a stream.
    sys.stdout, sys.stderr = (_Tee(stream, log) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        log.close()


class _LogFile:
    def __init__(self, path: Path) -> None:
        self._file: TextIO | None = None
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Line buffered: a kill loses the line that is being written, no other.
            self._file = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")

    def write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError:
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # closing writes what is left, and the disk is as full as before
                file.close()


class _Tee:
    """A stream that is written to as before, and a copy of each text for the log file."""

    def __init__(self, stream: TextIO, log: _LogFile) -> None:
        self._stream = stream
        self._log = log

    def write(self, text: str) -> int:
        self._log.write(text)  # first: what somebody saw before a kill is in the copy
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
