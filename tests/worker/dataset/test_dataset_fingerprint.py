from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from yolo_airflow_provider.worker.dataset.fingerprint import Entry, fingerprint

NAMES = {0: "cell", 1: "plate"}

entries = st.builds(
    Entry,
    split=st.sampled_from(["train", "val", "test"]),
    path=st.text(max_size=6),
    image_sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    rows=st.lists(st.text(max_size=6), max_size=3).map(tuple),
)
sets = st.lists(entries, min_size=1, max_size=5)


def of(items: list[Entry]) -> str:
    return fingerprint(items, names=NAMES, task="detect")


@given(items=sets, data=st.data())
def test_the_order_of_reading_does_not_matter(items: list[Entry], data: st.DataObject) -> None:
    assert of(items) == of(data.draw(st.permutations(items)))
    assert len(of(items)) == 64


@given(items=sets, other=sets)
def test_different_sets_differ(items: list[Entry], other: list[Entry]) -> None:
    key = lambda entry: (entry.split, entry.path, entry.image_sha256, entry.rows)  # noqa: E731
    assert (of(items) == of(other)) == (sorted(items, key=key) == sorted(other, key=key))


@given(items=sets, data=st.data())
def test_any_change_of_one_image_changes_it(items: list[Entry], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(items) - 1))
    entry = items[index]
    changed = [
        replace(entry, split=entry.split + "x"),
        replace(entry, path=entry.path + "x"),
        replace(entry, image_sha256=entry.image_sha256[::-1] + "x"),
        replace(entry, rows=(*entry.rows, "")),
    ]
    for change in changed:
        assert of([*items[:index], change, *items[index + 1 :]]) != of(items)


def test_names_task_and_settings_count() -> None:
    items = [Entry("train", "a", "0" * 64, ("0 1 1 1 1",))]
    base = of(items)
    assert fingerprint(items, names={0: "cell", 1: "plates"}, task="detect") != base
    assert fingerprint(items, names={0: "plate", 1: "cell"}, task="detect") != base
    assert fingerprint(items, names=NAMES, task="obb") != base
    assert fingerprint(items, names=NAMES, task="detect", settings={"kpt_shape": [1, 2]}) != base
    assert fingerprint(items, names={1: "plate", 0: "cell"}, task="detect", settings={}) == base


def test_names_that_are_not_utf8_have_one_too() -> None:
    assert of([Entry("train", "a\udcff.png", "0" * 64, ())]) != of([Entry("train", "a\udcfe.png", "0" * 64, ())])
