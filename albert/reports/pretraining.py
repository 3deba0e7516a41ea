"""The section on a pretraining run: held-out scores before and after, curves, and audits of its data.

A plot is drawn only if its figures exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scipy.stats import binomtest

from albert.pretraining import AUDITED_TOKENS, Audits, Event, PretrainResult
from albert.reports.plots import Interval, Line, Plot, columns, curves, intervals
from albert.reports.sections import (
    MISSING,
    Section,
    Strong,
    Table,
    capitalised,
    change,
    counted,
    decimal,
    decimal_change,
    number,
    pairs_table,
    percent,
    size,
)
from data.instances import LengthAudit

History = Sequence[Mapping[str, float]]  # the records of a run
Show = Callable[[float], str]
# what is measured on held-out documents: its name and unit, and how the figure and its change are shown
SHOWN: dict[str, tuple[str, str, Show, Show]] = {
    "mlm_loss": ("MLM loss", "nats, lower is better", decimal, decimal_change),
    "mlm_accuracy": ("MLM accuracy", "share of masked tokens", percent, change),
    "sop_accuracy": ("sentence-order accuracy", "share of pairs", percent, change),
}
OWN = "own corpus"


def training_section(result: PretrainResult, title: str) -> Section:
    return Section(
        title=title,
        warnings=tuple(map(capitalised, result.notices)),
        notes=(f"Before training, {result.probe.describe()}.",) if result.probe else (),
        tables=(held_out_table(result), run_table(result), _event_table(result.events)),
        plots=(*_curves(result), *_layer_plots(result), *_audit_plots(result)),
    )


class Measured(NamedTuple):
    """A figure, with the ends of its 95% interval if it has one."""

    value: float
    ends: tuple[float, float] | None = None

    def show(self, show: Show) -> str:
        """The figure as text, its interval in brackets."""
        shown = show(self.value)
        return shown if self.ends is None else f"{shown} ({' to '.join(map(show, self.ends))})"

    @property
    def leaves_out_0(self) -> bool:
        return self.ends is not None and (self.ends[0] > 0 or self.ends[1] < 0)


class HeldOutFigure(NamedTuple):
    """A figure of a corpus's held-out documents before and after a run, on the same documents and masks."""

    corpus: str  # "" for the run's own
    metric: str  # of SHOWN
    before: Measured
    after: Measured
    change: Measured  # its interval, if there is one, is paired


def held_out_figures(history: History) -> list[HeldOutFigure]:
    """What was measured at both ends, by corpus: the run's own, then those mixed in."""
    figures = []
    for corpus in held_out_corpora(history):
        for metric in SHOWN:
            if measured := _ends(history, metric, corpus):
                figures.append(HeldOutFigure(corpus, metric, *measured))
    return figures


def held_out_corpora(history: History) -> list[str]:
    """The corpora with held-out scores: "" for the run's own, then the names of those mixed in."""
    keys = (key.partition("@") for key in {key for record in history for key in record})
    return sorted({corpus for metric, _, corpus in keys if metric == "held_out_mlm_loss"})


def _key(metric: str, corpus: str) -> str:
    """A held-out metric's key in the records of the history."""
    return f"held_out_{metric}@{corpus}" if corpus else f"held_out_{metric}"


def _ends(history: History, metric: str, corpus: str) -> tuple[Measured, Measured, Measured] | None:
    """A metric's first and last value on the same documents, those of the larger sample if there are two, and
    its change; None if it was not measured.
    """
    key = _key(metric, corpus)
    records = [record for record in history if key in record or f"full_{key}" in record]
    if not records:
        return None
    first, last = records[0], records[-1]
    sample = "full_" if f"full_{key}" in first and f"full_{key}" in last else ""
    before, after = (_measured(record, sample + key) for record in (first, last))
    of_change = sample + _key(f"{metric}_change", corpus)
    changed = _measured(last, of_change) if of_change in last else Measured(after.value - before.value)
    return before, after, changed


def _measured(record: Mapping[str, float], key: str) -> Measured:
    metric, at, corpus = key.partition("@")
    low, high = (f"{metric}_{end}{at}{corpus}" for end in ("low", "high"))
    return Measured(record[key], (record[low], record[high]) if low in record else None)


def held_out_table(result: PretrainResult) -> Table:
    """Scores on held-out documents before and after, a row for each corpus and metric."""
    corpora, rows = held_out_corpora(result.history), []
    for one in held_out_figures(result.history):
        called, _, show, show_change = SHOWN[one.metric]
        what = f"{called}, {one.corpus or OWN}" if len(corpora) > 1 else called
        text = one.change.show(show_change)
        changed = Strong(text) if one.change.leaves_out_0 else text
        rows.append((what, one.before.show(show), one.after.show(show), changed))
    caption = (
        "On held-out documents, which training never sees: the same documents and masks before and after. "
        "A change of accuracy is in points. In brackets: the 95% interval over documents, of this run alone; "
        "that of a change is paired. Bold: it leaves out 0. "
        + " ".join(_sample(result.history, corpus) for corpus in corpora)
    )
    # a run that was stopped may have gone on since
    last = max((record["step"] for record in result.evaluations()), default=result.steps)
    return Table(caption, ("Held out", "before", f"after {number(last)} steps", "change"), tuple(rows))


def _sample(history: History, corpus: str) -> str:
    """What a corpus's scores were measured on."""
    found = (
        _ends(history, name, corpus)
        for name in ("documents", "masked_tokens", "pairs", "seen", "bigram_loss")
    )
    documents, tokens, pairs, seen, bigrams = (ends and ends[0].value for ends in found)
    if not (documents and tokens):
        return ""
    text = f"{capitalised(corpus or OWN)}: {number(documents)} documents, {number(tokens)} masked tokens"
    between = points_of(history, _key("masked_tokens", corpus))[0][1]
    if between < tokens:
        text += f" (curves and log: the first {number(between)})"
    if pairs:
        text += f", {number(pairs)} sentence pairs in both orders"
    if bigrams is not None:
        text += f"; counting pairs of neighbours in training text gives a loss of {decimal(bigrams)}"
    return text + ("." if seen is None else f"; {percent(seen)} of their 13-grams stand in training text.")


def run_table(result: PretrainResult) -> Table:
    """The size and speed of the run, and what its audits counted."""
    audits = result.audits or Audits()
    masks, lengths = audits.masks, audits.by_length
    unordered = sum(one.unordered for one in lengths)
    instances = sum(one.in_order + one.swapped + one.unordered for one in lengths)
    figures = {
        "parameters": number(result.parameters),
        "steps": number(result.steps),
        "tokens": number(result.tokens),
        "times the corpus was read, about": decimal(result.passes, 2),
        "tokens a second": number(result.tokens_per_second),
        "peak learning rate": f"{result.learning_rate:.2g}",
        "resumed at step": number(result.resumed_from or None),
        "best checkpoint": result.best_checkpoint.name if result.best_checkpoint else MISSING,
        "time the trainer waited for data": percent(audits.loader_wait_share),
        "peak memory": size(audits.peak_memory_bytes),
        "tokens masked": percent(masks.rate if masks else None),
        "masked words whose tokens are all masked": percent(masks.whole_words if masks else None),
        "masked words that have a similar word": percent(masks.similar_words if masks else None),
        "instances without an order label": percent(unordered / instances if instances else None),
    }
    table = pairs_table(("The run", "figure"), figures)
    if not audits.masks:
        return table
    caption = (
        f"Masks and order labels are those of the first tokens that the run's own corpus gave, at most "
        f"{number(AUDITED_TOKENS)}."
    )
    return replace(table, caption=caption)


def _event_table(events: Sequence[Event]) -> Table:
    records = [
        {"Event": str(n), "step": number(one.step), "kind": one.kind.replace("_", " "), "what": one.text}
        for n, one in enumerate(events, 1)
    ]
    return Table.of("What went wrong and what was done", records, words=("Event", "kind", "what"))


def points_of(history: History, key: str) -> list[tuple[float, float]]:
    """A metric over the steps."""
    return [(record["step"], record[key]) for record in history if key in record]


def loss_plots(title: str, histories: Mapping[str, History], baseline: str | None = None) -> list[Plot]:
    """The held-out loss of several runs, by name, a plot for each corpus; the line of a baseline is grey."""
    plots = []
    for corpus in sorted({corpus for history in histories.values() for corpus in held_out_corpora(history)}):
        lines = [
            Line(name, points_of(one, _key("mlm_loss", corpus)), "baseline" if name == baseline else "main")
            for name, one in histories.items()
        ]
        unit = SHOWN["mlm_loss"][1]
        plots.append(curves(f"{title}, {corpus}" if corpus else title, unit, lines))
    return plots


def _curves(result: PretrainResult) -> list[Plot]:
    history, corpora = result.history, held_out_corpora(result.history)
    marks = [(n, event.step) for n, event in enumerate(result.events, 1)]
    plots = []
    for metric, (title, unit, *_) in SHOWN.items():
        lines = [
            Line(
                f"held out, {corpus or OWN}" if len(corpora) > 1 else "held out",
                points_of(history, _key(metric, corpus)),
            )
            for corpus in corpora
        ]
        if any(line.points for line in lines):
            lines = [Line("training", points_of(history, metric), role="behind"), *lines]
            level = ("chance", 0.5) if metric == "sop_accuracy" else None
            plots.append(curves(capitalised(title), unit, lines, level=level, events=marks))
    for key, title, unit in (
        ("tokens_per_second", "Throughput", "tokens a second"),
        ("gradient_norm", "Gradient norm", "before clipping"),
        ("learning_rate", "Learning rate", "as scheduled"),
    ):
        if line := points_of(history, key):
            lines = [Line("training", line, marked=False)]
            plots.append(curves(title, unit, lines, from_zero=True, events=marks))
    return plots


def _layer_plots(result: PretrainResult) -> list[Plot]:
    plots = []
    for key, title, unit in (
        ("distance", "Change by a layer", "L2 distance of input and output"),
        ("cosine", "Angle kept by a layer", "cosine of input and output"),
    ):
        if points := [(one.layer, getattr(one, key)) for one in result.layers]:
            plots.append(curves(title, unit, [Line("held out", points)], x_label="layer"))
    return plots


def _audit_plots(result: PretrainResult) -> list[Plot]:
    audits, plots = result.audits or Audits(), []
    if (masks := audits.masks) and (rule := audits.rule_mask_rate):
        by_length = [(f"≤ {one.high}", one.mask_rate) for one in audits.by_length]
        for by, rates in (("word", list(masks.by_word_length.items())), ("sequence", by_length)):
            title, unit = f"Mask rate by {by} length", f"share of the tokens of such {by}s"
            expected = [rule] * len(rates)
            plots.append(columns(title, unit, rates, x_label=f"tokens to a {by}", expected=expected))
    if ngrams := audits.ngrams:
        total = max(sum(ngrams.counts.values()), 1)
        shares = [(n, count / total) for n, count in ngrams.counts.items()]
        expected = [ngrams.expected_shares.get(n, 0.0) for n in ngrams.counts]
        plots.append(
            columns("Words masked together", "share of n-grams", shares, x_label="words", expected=expected)
        )
    if rows := _swapped_by_length(audits.by_length):
        title, unit = "Sentence pairs swapped, by length", "% of pairs, with the 95% interval"
        plots.append(intervals(title, unit, rows, level=50.0))
    return plots


def _swapped_by_length(buckets: Sequence[LengthAudit]) -> list[Interval]:
    rows = []
    for bucket in buckets:
        if n := bucket.in_order + bucket.swapped:
            test = binomtest(bucket.swapped, n)
            low, high = test.proportion_ci(method="wilson")  # Wilson 1927
            label = f"{bucket.low} to {bucket.high} tokens, {counted(n, 'pair')}"
            rows.append(Interval(label, (), 100 * test.statistic, (100 * low, 100 * high)))
    return rows
