"""The plots of reports. Each shows its spread; axes of counts and speeds begin at zero."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# colours that the SVG is drawn with, and the variables of the page that replace them
_NAMES = ("ink", "soft", "faint", "accent", "bad", "page")
_COLOURS = tuple(f"#0{n}0{n}0{n}" for n in range(1, 7))
INK, SOFT, FAINT, ACCENT, BAD, PAGE = _COLOURS
_STYLE: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",  # text stays text: the reader has Chinese fonts
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "path.simplify_threshold": 1.0,  # a long line keeps its spikes, and no more points than it has pixels
    "font.size": 11.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0.2,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
}
_LONGEST = 39  # letters of a name in a legend
# a legend's entry; matplotlib's labels cannot begin with _, which names of models can
Named = tuple[str, Artist | Container]
_WIDTH = 5.0  # inches: 360 units of the SVG, about its pixels on a phone and in a column


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot and its caption; it is drawn when the page is written."""

    title: str
    unit: str  # of the values; says which direction is better if one is
    description: str  # for readers who do not see it
    paint: Callable[[Axes], None]
    height: float = 2.9  # inches

    def svg(self, name: str) -> str:
        """Draw it as an element of the page; `name` makes its ids unique."""
        with rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
            figure = Figure(figsize=(_WIDTH, self.height), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.subplots()
            axes.patch.set_alpha(0)
            self.paint(axes)
            sink = io.StringIO()
            # text stays text, so it does not matter which glyphs matplotlib's own font lacks
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(sink, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        return _page_element(sink.getvalue(), name, self.title, self.description)


def _page_element(svg: str, name: str, title: str, description: str) -> str:
    """Turn matplotlib's file into an element of the page, with its ids, colours and font, and a name."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    body = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\1{name}-", body)
    body = re.sub(r"font: ([^;\"]*?)'[^\";]*", r"font: \1var(--font)", body)
    for stand_in, variable in zip(_COLOURS, _NAMES, strict=True):
        body = body.replace(stand_in, f"var(--{variable})")
    return (
        f'{head} role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>{body}'
    )


def _legend_above(axes: Axes, named: Sequence[Named]) -> None:
    """Put a legend above the axes, where it covers nothing; in two columns if names are short."""
    names, artists = [shortened(name) for name, _ in named], [artist for _, artist in named]
    columns = 2 if max(map(cell_len, names)) <= 20 else 1
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.02), "ncols": columns}
    axes.legend(artists, names, fontsize=11, labelcolor=SOFT, **place)


def shortened(name: str, longest: int = _LONGEST) -> str:
    """Cut the middle out of a name that is wider than `longest` Latin letters; a Chinese one is two wide.

    >>> shortened("general-v1-tiny-df359d8f-steps-2000/checkpoint-2000")
    'general-v1-tiny-df3…000/checkpoint-2000'
    """
    if cell_len(name) <= longest:
        return name
    return f"{set_cell_size(name, longest // 2)}…{set_cell_size(name[::-1], longest // 2)[::-1]}"


_STYLES = list(product(("-", (0, (4, 2)), (0, (1, 1.5))), (ACCENT, INK)))
_DESCRIBED = 24  # most values that a description names
_TICKS = 9  # most labels under columns
_LONGEST_ROW = 56  # letters of a name above a row of intervals
_LEGEND_ROW = 0.24  # inches
_ROUND = [1, 2, 5, 10]  # steps of an axis


@dataclass(frozen=True, slots=True)
class Line:
    legend: str
    points: Sequence[tuple[float, float]]  # (x, y)
    # a baseline is grey; lines that do not matter are thin and behind
    role: Literal["main", "baseline", "behind"] = "main"
    marked: bool = True  # whether points are drawn as dots


@dataclass(frozen=True, slots=True)
class Interval:
    """A row in a plot of intervals."""

    label: str
    values: Sequence[float]  # single values, such as those of seeds
    mean: float
    ends: tuple[float, float] | None  # of the interval; None: there is none


def _tick(value: float, _: object = None) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{round(value, 12):g}"


def _short(value: float) -> str:
    """
    >>> _short(3928.7), _short(0.0000215)
    ('3,930', '2.15e-05')
    """
    return _tick(float(f"{value:.3g}"))


def curves(
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    x_label: str = "step",
    from_zero: bool = False,
    level: tuple[str, float] | None = None,
    events: Sequence[tuple[int, float]] = (),
) -> Plot:
    """Draw lines over steps, with a named `level` to compare with and `events` (number, x) to mark."""
    lines = [line for line in lines if line.points]

    def paint(axes: Axes) -> None:
        named = _paint_lines(axes, lines)
        if level is not None:
            named.append((level[0], axes.axhline(level[1], color=SOFT, linewidth=1, linestyle=(0, (1, 2)))))
        _mark_events(axes, events)
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label, loc="right")
        is_whole = all(float(x).is_integer() for line in lines for x, _ in line.points)
        # one step alone is the only label: by default two are asked for, whole or not
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=is_whole, steps=_ROUND, min_n_ticks=1))
        axes.xaxis.set_major_formatter(_tick)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_ROUND))
        axes.yaxis.set_major_formatter(_tick)
        if len(lines) > 1 or level is not None:
            _legend_above(axes, named)

    ends = ", ".join(
        f"{line.legend} from {_short(line.points[0][1])} to {_short(line.points[-1][1])}"
        for line in lines
        if line.legend
    )
    marked = f"; {len(events)} event{'s' if len(events) > 1 else ''} marked" if events else ""
    height = 2.9 + _LEGEND_ROW * max(len(lines) - 6, 0)
    return Plot(title, unit, f"{ends}{marked}", paint, height)


def _paint_lines(axes: Axes, lines: Sequence[Line]) -> list[Named]:
    named: list[Named] = []
    styles = cycle(_STYLES)
    for line in lines:
        shape: dict[str, Any] = {"linewidth": 1.7}
        if line.role == "behind":
            shape = {"linewidth": 0.9, "color": SOFT, "alpha": 0.75}
        elif line.role == "baseline":
            shape |= {"color": SOFT}
        else:
            style, color = next(styles)
            shape |= {"linestyle": style, "color": color}
        if line.marked and line.role != "behind":
            shape |= {"marker": "o", "markersize": 4}
        (drawn,) = axes.plot(*zip(*sorted(line.points), strict=True), **shape)
        if line.legend:
            named.append((line.legend, drawn))
    return named


def _mark_events(axes: Axes, events: Sequence[tuple[int, float]]) -> None:
    for number, x in events:
        axes.axvline(x, color=BAD, linewidth=0.9, linestyle=(0, (2, 2)))
        axes.annotate(
            str(number), (x, 1), xycoords=("data", "axes fraction"), xytext=(2, -2),
            textcoords="offset points", color=BAD, fontsize=10.5, va="top",
        )  # fmt: skip


def columns(
    title: str,
    unit: str,
    values: Sequence[tuple[str, float]],
    *,
    x_label: str,
    expected: Sequence[float] = (),
) -> Plot:
    """Draw a column for each (label, value). With `expected` values, which are lines, all are shares."""

    def shown(value: float, _: object = None) -> str:
        return f"{100 * value:.3g}%" if expected else _tick(value)

    def paint(axes: Axes) -> None:
        bars = axes.bar(range(len(values)), [value for _, value in values], color=ACCENT, width=0.72)
        if expected:
            x = np.arange(len(values))
            rule = axes.hlines(expected, x - 0.46, x + 0.46, color=INK, linewidth=2)
            _legend_above(axes, [("the rule's", rule), ("measured", bars)])
        every = ceil(len(values) / _TICKS)
        axes.set_xticks(range(len(values))[::-every], [label for label, _ in values][::-every])
        axes.set_xlabel(x_label, loc="right")
        axes.yaxis.set_major_formatter(shown)
        axes.set_ylim(bottom=0)

    words = [f"{label}: {shown(value)}" for label, value in values]
    if expected:
        words = [f"{word} (the rule's {shown(rule)})" for word, rule in zip(words, expected, strict=True)]
    return Plot(title, unit, f"by {x_label}: {', '.join(words[:_DESCRIBED])}", paint)


def intervals(title: str, unit: str, rows: Sequence[Interval], *, level: float | None = None) -> Plot:
    """Draw the values of each row as dots, its mean, and a line between its ends. Names are above the rows,
    where long ones fit. A `level` to compare with is a line; where it is 0, values have a sign.
    """

    def paint(axes: Axes) -> None:
        if level is not None:
            axes.axvline(level, color=INK, linewidth=0.9)
        for y, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
            axes.plot(
                row.values, [y - 0.16] * len(row.values), "o", color=SOFT, alpha=0.6, markersize=4, mew=0
            )
            if row.ends is not None:
                axes.plot(row.ends, [y, y], color=ACCENT, linewidth=2.2, solid_capstyle="butt")
            axes.plot([row.mean], [y], "o", color=ACCENT, markersize=7.5, mew=0)
            axes.annotate(
                shortened(row.label, _LONGEST_ROW), (0, y), xycoords=("axes fraction", "data"), xytext=(0, 8),
                textcoords="offset points", fontsize=11.5, color=INK,
                bbox={"facecolor": PAGE, "linewidth": 0, "pad": 1},
            )  # fmt: skip
        axes.set_yticks([])
        axes.set_ylim(-0.5, len(rows) - 0.35)
        axes.margins(x=0.08)
        axes.grid(visible=True, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_ROUND))
        axes.xaxis.set_major_formatter(_signed if level == 0 else _tick)

    words = "; ".join(
        f"{row.label}: {row.mean:.2f}"
        + (f", from {row.ends[0]:.2f} to {row.ends[1]:.2f}" if row.ends is not None else "")
        + (f", single values {', '.join(f'{value:.2f}' for value in row.values)}" if row.values else "")
        for row in rows
    )
    return Plot(title, unit, words, paint, height=0.6 + 0.6 * max(len(rows), 2))


def _signed(value: float, _: object = None) -> str:
    return f"{round(value, 9):+g}".replace("-", "−") if abs(value) > 1e-9 else "0"
