"""Draws the spectrum of models: memory over compute intensity, coloured by the wait for data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.commands.files import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")

_MIB = 2**20
_MARKERS = "osD^vP*X<>"
_UNKNOWN = "0.75"
# Where a label may stand, in points from its mark: beside it, then further off with a line to it.
_PLACES = [
    (x * step, y * step)
    for step in (7, 13, 20, 28, 38, 50)
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
]


def require_plot(path: Path) -> None:
    """Refuse what cannot be drawn before anything is read.

    Raises:
        CommandError: the file's name is none of a picture, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise CommandError(f"{path} is no picture by its name; let it end in {' or '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            "the plot needs matplotlib: pip install 'yolo-airflow-provider[plot]'; the table needs nothing"
        ) from error


def draw(rows: Sequence[tables.Row], path: Path) -> int:
    """Draw rows of `model_spectrum`.

    Args:
        rows: those without memory or compute intensity are left out.
        path: of the picture, PNG or SVG.

    Returns:
        How many were drawn.

    Raises:
        CommandError: none can be drawn, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [row for row in rows if row["flops_per_byte"] and row["peak_bytes_per_image"]]
    if not points:
        raise CommandError(f"nothing to draw: of {len(rows)} rows none has both its memory and its FLOPs measured")
    figure = Figure(figsize=(11, 7.5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_marks(figure, axes, points)
    _set_up(axes)
    # The layout moves the axes, and labels are placed by where the marks are on the canvas.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    _place_labels(axes, points, canvas.get_renderer(), pixels_per_point=figure.dpi / 72)  # type: ignore[no-untyped-call]
    with new_file(path) as part:
        figure.savefig(part, format=path.suffix[1:])
    return len(points)


def _draw_marks(figure: Figure, axes: Axes, points: Sequence[tables.Row]) -> None:
    """One mark a point: its form says on what it was measured, its colour how long it waited for data."""
    from matplotlib.colors import Normalize

    waits = [row["io_sensitivity_percent"] for row in points if row["io_sensitivity_percent"] is not None]
    # Of a spectrum that waits for nothing, noise is not to fill the scale.
    scale = Normalize(0, max(5.0, *waits)) if waits else Normalize(0, 100)
    devices = sorted({tables.device_text(row) for row in points})
    coloured = None
    for number, device in enumerate(devices):
        here = [row for row in points if tables.device_text(row) == device]
        form: dict[str, Any] = {"s": 55, "marker": _MARKERS[number % len(_MARKERS)], "edgecolors": "0.25"}
        axes.scatter([], [], color="white", label=device or "unknown device", **form)
        if unknown := [row for row in here if row["io_sensitivity_percent"] is None]:
            axes.scatter(*_coordinates(unknown), color=_UNKNOWN, **form)
        if known := [row for row in here if row["io_sensitivity_percent"] is not None]:
            colours = [row["io_sensitivity_percent"] for row in known]
            coloured = axes.scatter(*_coordinates(known), c=colours, cmap="viridis", norm=scale, **form)
    axes.set_title("Measured models" + (f" on {devices[0]}" if len(devices) == 1 and devices[0] else ""))
    if len(devices) > 1:
        axes.legend(title="measured on", fontsize=8, loc="best")
    if coloured is not None:
        figure.colorbar(coloured, ax=axes, label="I/O sensitivity: time that waited for data, % (grey: not measured)")


def _set_up(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(
        xscale="log",
        yscale="log",
        xlabel="compute intensity: FLOPs of a training step per byte of peak memory",
        ylabel="peak memory per image, MiB",
    )
    for axis in (axes.xaxis, axes.yaxis):
        # Ticks at 1, 2 and 5: of powers of ten alone there may be none within the range.
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.margins(0.12)
    axes.grid(visible=True, linewidth=0.3, alpha=0.5)
    axes.set_axisbelow(True)


def _coordinates(rows: Sequence[tables.Row]) -> tuple[list[float], list[float]]:
    x, y = zip(*map(_position, rows), strict=True)
    return list(x), list(y)


def _position(row: tables.Row) -> tuple[float, float]:
    return row["flops_per_byte"], row["peak_bytes_per_image"] / _MIB


def _place_labels(axes: Axes, points: Sequence[tables.Row], renderer: Any, *, pixels_per_point: float) -> None:
    """Put each label where it covers no mark and no other label, as near as there is such a place."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    marks = axes.transData.transform([_position(row) for row in points])
    half = 5 * pixels_per_point
    taken = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in marks]
    inside = axes.get_window_extent(renderer)
    for row in sorted(points, key=_position):
        best: tuple[float, Any, Bbox] | None = None
        for dx, dy in _PLACES:
            label = axes.annotate(
                f"{row['model']}@{row['imgsz']}",
                _position(row),
                xytext=(dx, dy),
                textcoords="offset points",
                fontsize=8,
                ha="left" if dx > 0 else "right" if dx < 0 else "center",
                va="bottom" if dy > 0 else "top" if dy < 0 else "center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "0.5"}
                if max(abs(dx), abs(dy)) > 12
                else None,
            )
            label.update_positions(renderer)
            # Of the text alone: with its line it would cover its own mark.
            extent = Text.get_window_extent(label, renderer)
            covered = (
                sum(_overlap(extent, other) for other in taken)
                + extent.width * extent.height
                - _overlap(extent, inside)
            )
            if best is None or covered < best[0]:
                if best is not None:
                    best[1].remove()
                best = (covered, label, extent)
            else:
                label.remove()
            if covered == 0:
                break
        if best is not None:
            taken.append(best[2])


def _overlap(one: Any, other: Any) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width * height if width > 0 and height > 0 else 0.0
