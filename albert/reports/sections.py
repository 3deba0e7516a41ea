"""The parts of a page, sections of notes, tables and plots without any HTML; and the format of figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from albert.evaluation import Difference, Summary
from albert.reports.plots import Plot

MISSING = "–"


class Strong(str):
    """A cell that stands out, such as a difference that is more than noise."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text. The columns at `words` hold words, the others figures."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)

    @classmethod
    def of(
        cls, caption: str, records: Iterable[Mapping[str, str]], words: Collection[str] | None = None
    ) -> Table:
        """A row for each record and a column for each name that any has a value of, the first or those in
        `words` of words; a dash where one lacks it.
        """
        records = list(records)
        names = dict.fromkeys(name for record in records for name in record)
        columns = tuple(name for name in names if any(one.get(name, MISSING) != MISSING for one in records))
        rows = tuple(tuple(record.get(name, MISSING) for name in columns) for record in records)
        places = (0,) if words is None else tuple(n for n, name in enumerate(columns) if name in words)
        return cls(caption, columns, rows, places)

    def to_markdown(self) -> str:
        """The table in the Markdown of GitHub and Prefect."""
        rules = ["---" if n in self.words else "---:" for n in range(len(self.columns))]
        lines = [self.columns, rules, *([_marked(cell) for cell in row] for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.caption}\n" if self.caption else f"{table}\n"


def _marked(cell: str) -> str:
    escaped = cell.replace("|", "\\|").replace("\n", " ")
    return f"**{escaped}**" if isinstance(cell, Strong) else escaped


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to read, with a remark."""

    text: str
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page under its own title; its `details` are folded. The page leaves out tables without
    rows, and sections without content.
    """

    title: str
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    tables_below: tuple[Table, ...] = ()  # under the plots
    passages: tuple[Passage, ...] = ()
    details: tuple[Section, ...] = ()

    @property
    def has_content(self) -> bool:
        texts = (self.warnings, self.notes, self.code, self.plots, self.passages, self.details)
        return any(texts) or any(table.rows for table in (*self.tables, *self.tables_below))


def _show(value: float | None, spec: str, scale: int = 1, unit: str = "") -> str:
    """
    >>> number(1234567), percent(0.5), points(0.8634), change(-0.0016), change(-1e-17)
    ('1,234,567', '50.0%', '86.3', '−0.2', '+0.0')
    """
    # a minus sign is as wide as a plus, a hyphen is not
    return MISSING if value is None else f"{scale * value:{spec}}{unit}".replace("-", "−")


number = partial(_show, spec=",.0f")
percent = partial(_show, spec=".1f", scale=100, unit="%")
points = partial(_show, spec="z.1f", scale=100)  # of a share or a correlation
change = partial(_show, spec="+z.1f", scale=100)  # of a difference of shares, in points with its sign


def decimal(value: float | None, places: int = 3) -> str:
    return _show(value, f".{places}f")


def decimal_change(value: float, places: int = 3) -> str:
    return _show(value, f"+z.{places}f")


def plus_minus(value: str, half_width: float | None) -> str:
    """A figure with half the width of its 95% interval, in points.

    >>> plus_minus("86.0", 0.004)
    '86.0 ± 0.4'
    """
    return value if half_width is None else f"{value} ± {points(half_width)}"


def gain(difference: Difference) -> str:
    """Show a difference in points with its interval."""
    return plus_minus(change(difference.mean), difference.half_width)


def without(difference: Difference, examples: int) -> str:
    """Say how many of the split's examples a difference leaves out, if any."""
    if not difference.left_out:
        return ""
    of_all = counted(examples, "example")
    return f", without the {number(difference.left_out)} of {of_all} that only one of them may have read"


def spread(score: Summary) -> str:
    """Show a score in points with its interval.

    >>> spread(Summary(0.86, 0.004, (0.856, 0.864)))
    '86.0 ± 0.4'
    """
    return plus_minus(points(score.mean), score.half_width)


def size(count: float | None) -> str:
    """
    >>> size(16_600_000)
    '16.6 MB'
    """
    if count is None:
        return MISSING
    unit = "B"
    for larger in ("kB", "MB", "GB"):
        if count >= 1000:
            count, unit = count / 1000, larger
    return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"


def capitalised(text: str) -> str:
    """The text with a capital first letter; `str.capitalize` would make the others small."""
    return text[:1].upper() + text[1:]


def counted(n: int, one: str) -> str:
    """
    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n:,} {one}{'' if n == 1 else 's'}"


def pairs_table(names: tuple[str, str], pairs: Mapping[str, str], words: tuple[int, ...] = (0,)) -> Table:
    """A table of two columns without the pairs whose value is missing."""
    return Table("", names, tuple(pair for pair in pairs.items() if pair[1] != MISSING), words)
