"""docs/user-pain.md names every test that is named after a row, and no other."""

from __future__ import annotations

import re

from tests_support import ROOT


def test_rows_and_tests_know_each_other() -> None:
    named = re.findall(r"`(test_[a-e]\d+_\w+)`", (ROOT / "docs" / "user-pain.md").read_text(encoding="utf-8"))
    written = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_[a-e]\d+_\w+)\(", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    assert set(named) == written


def test_every_row_has_a_test_of_its_number() -> None:
    lines = (ROOT / "docs" / "user-pain.md").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if re.match(r"\| [B-E]\d", line):
            tests = "_".join(re.findall(r"`(test_\w+)`", line)) + "_"
            for row in re.findall(r"[B-E]\d+", line.split("|")[1]):
                assert f"_{row.lower()}_" in tests, f"{row}: {line}"
