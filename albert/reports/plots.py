"""Plots as inline SVG that takes its colours and font from the page, so that light, dark and print all
work.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence

import matplotlib

matplotlib.use("svg")

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# stand-ins that the SVG is written with, and the page's variables that take their place
_INK, _FAINT, _FIRST, _SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--faint)", _FIRST: "var(--first)", _SECOND: "var(--second)"}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: the reader's fonts have Chinese
    "font.size": 11,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.4,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}


def _draw(name: str, title: str, description: str, paint: Callable[[Axes], None]) -> str:
    """An SVG element of a plot; `description` is its accessible name."""
    with rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        figure = Figure(figsize=(5, 3.1), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        paint(axes)
        sink = io.StringIO()
        # text stays text, so it does not matter which glyphs matplotlib's own font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(
            sink, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    svg = sink.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1),
        count=1,
    )
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', svg)
    svg = re.sub(r"font: ([^;\"]*?)'[^\";]*", r"font: \1var(--font)", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def bars(name: str, title: str, x_label: str, y_label: str, values: Sequence[tuple[object, float]]) -> str:
    """A bar for each (label, value)."""

    def paint(axes: Axes) -> None:
        axes.bar([str(label) for label, _ in values], [value for _, value in values], color=_FIRST, width=0.8)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    shown = ", ".join(f"{label}: {value:,.0f}" for label, value in values[:12])
    return _draw(name, title, f"{title}. {shown}", paint)


def ranked(name: str, title: str, values: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, the largest at the top."""

    def paint(axes: Axes) -> None:
        axes.barh([label for label, _ in values][::-1], [value for _, value in values][::-1], color=_FIRST)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    shown = ", ".join(f"{label} {value:,.0f}" for label, value in values[:12])
    return _draw(name, title, f"{title}. {shown}", paint)


def curves(
    name: str,
    title: str,
    y_label: str,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    x_label: str = "step",
) -> str:
    """One or two lines, over training steps unless told otherwise: (legend, points)."""

    def paint(axes: Axes) -> None:
        for (legend, points), colour, style in zip(lines, (_FIRST, _SECOND), ("-", "o-"), strict=False):
            if points:
                axes.plot(
                    *zip(*points, strict=True), style, color=colour, label=legend, linewidth=1.6, markersize=4
                )
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.legend()

    ends = ", ".join(
        f"{legend} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for legend, points in lines if points
    )
    return _draw(name, title, f"{title}: {ends}", paint)


def intervals(
    name: str, title: str, y_label: str, groups: Sequence[tuple[str, float, float, Sequence[float]]]
) -> str:
    """A point with its deviation for each (label, mean, deviation, single values)."""

    def paint(axes: Axes) -> None:
        for x, (_, mean, deviation, values) in enumerate(groups):
            axes.plot([x] * len(values), values, "o", color=_FIRST, alpha=0.45, markersize=5)
            axes.errorbar([x + 0.12], [mean], [deviation], fmt="s", color=_SECOND, capsize=5, markersize=7)
        axes.set_xticks(range(len(groups)), [label for label, *_ in groups])
        axes.set_xlim(-0.5, len(groups) - 0.5)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(y_label)

    shown = ", ".join(
        f"{label} {mean:.3f} plus or minus {deviation:.3f}" for label, mean, deviation, _ in groups
    )
    return _draw(name, title, f"{title}: {shown}", paint)
