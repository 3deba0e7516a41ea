"""Plots as inline SVG that takes its colours and its font from the page: light, dark and print all work."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from unicodedata import east_asian_width

import matplotlib

matplotlib.use("svg")

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# stand-ins that the SVG is written with, and the page's variables that take their place
INK, SOFT, FAINT, ACCENT, BAD, PAGE = (
    "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f", "#111213",
)  # fmt: skip
_VARIABLES = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    FAINT: "var(--faint)",
    ACCENT: "var(--accent)",
    BAD: "var(--bad)",
    PAGE: "var(--page)",
}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: the reader's fonts have Chinese
    "text.parse_math": False,  # a dollar sign in a name is one
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
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0.2,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
}
_LONGEST = 39  # letters of a name in a legend
_WIDTH = 5.0  # inches: 360 units of the SVG, about the pixels it is shown with on a phone and in a column


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn plot: an SVG element, and what stands above it."""

    title: str
    unit: str  # of the values, with the direction that is better where there is one
    svg: str


def draw(
    name: str, title: str, unit: str, description: str, paint: Callable[[Axes], None], height: float = 2.9
) -> Plot:
    """A plot of `height` inches; `name` makes its ids unique on the page, `description` says in words what
    it shows.
    """
    with rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        paint(axes)
        sink = io.StringIO()
        # text stays text, so it does not matter which glyphs matplotlib's own font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(sink, format="svg", metadata=metadata)
    return Plot(title, unit, _of_the_page(sink.getvalue(), name, title, description))


def _of_the_page(svg: str, name: str, title: str, description: str) -> str:
    """matplotlib's file as an element of the page: its ids, colours and font, and an accessible name."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', body)
    body = re.sub(r"font: ([^;\"]*?)'[^\";]*", r"font: \1var(--font)", body)
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, variable)
    named = f'{head} role="img" aria-labelledby="{name}-title {name}-desc">'
    says = (
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>'
    )
    return named + says + body


def legend_above(axes: Axes) -> None:
    """A legend between the title and the axes, where it covers nothing: two columns where names are short."""
    handles, names = axes.get_legend_handles_labels()
    names = [shortened(name) for name in names]
    axes.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.02),
        ncols=2 if max(map(_width, names)) <= 20 else 1,
        fontsize=11,
        labelcolor=SOFT,
    )


def shortened(name: str, longest: int = _LONGEST) -> str:
    """A name that fits into a plot: of a long one the middle is left out.

    >>> shortened("general-v1-tiny-df359d8f-steps-2000/checkpoint-2000")
    'general-v1-tiny-df3…000/checkpoint-2000'
    """
    if _width(name) <= longest:
        return name
    begin, end = name, name
    while _width(begin) > longest // 2:
        begin = begin[:-1]
    while _width(end) > longest // 2:
        end = end[1:]
    return f"{begin}…{end}"


def _width(name: str) -> int:
    """In Latin letters; a Chinese character is as wide as two."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in name)
