"""How a command says that it cannot do what it was asked for."""

from __future__ import annotations


class CommandError(RuntimeError):
    """A command cannot go on; the message says why and what to do, and is all that a person sees."""
