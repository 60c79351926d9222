"""`yolo-airflow profiles`: what the store knows, for people and for programs."""

from __future__ import annotations

from yolo_airflow_provider.commands import accuracy, card, history, prune, spectrum, transfer, usage
from yolo_airflow_provider.commands.arguments import Subparsers


def add_parser(commands: Subparsers) -> None:
    """Add `profiles` and its commands."""
    text = "Ask the profile store."
    actions = commands.add_parser(
        "profiles",
        help=text,
        description=f"{text} All but import and prune read only its views, for which the role yolo_reader is enough.",
    ).add_subparsers(dest="action", required=True)
    for module in (card, history, usage, accuracy, spectrum, transfer, prune):
        module.add_parser(actions)
