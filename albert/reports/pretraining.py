"""What a report tells of a pretraining: held-out scores before and after, curves, and audits of what was
really fed to the model.

The facts are PretrainResult as JSON has it. A plot is drawn where its figures are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from albert.reports.plots import Interval, Line, Plot, columns, curves, intervals
from albert.reports.sections import (
    MISSING,
    Facts,
    Section,
    Table,
    change,
    decimal,
    number,
    pairs_table,
    percent,
    size,
)

_HELD_OUT = "held_out_mlm_loss"
# 97.5% point of the normal distribution
_Z = 1.959964


def training_section(facts: Facts, name: str, title: str) -> Section:
    """The section; `name` makes the ids of its plots unique."""
    events = facts.get("events") or []
    notes = [probe_note(facts["probe"])] if facts.get("probe") else []
    return Section(
        title=title,
        warnings=tuple(notice[:1].upper() + notice[1:] for notice in facts["notices"]),
        notes=tuple(notes),
        tables=tuple(t for t in (held_out_table(facts), run_table(facts), _event_table(events)) if t.rows),
        plots=tuple([*_curves(facts, name), *_layer_plots(facts, name), *_audit_plots(facts, name)]),
    )


def held_out_corpora(history: Sequence[Facts]) -> list[str]:
    """Names of the corpora that held-out scores were kept of: "" for the run's own, then those mixed in."""
    found = {key.partition("@")[2] for record in history for key in record if key.startswith(_HELD_OUT)}
    return sorted(found)


def key_of(metric: str, corpus: str) -> str:
    """A metric's key in the history's records."""
    return f"{metric}@{corpus}" if corpus else metric


def first_and_last(history: Sequence[Facts], key: str) -> tuple[float, float] | None:
    """A metric's first and last value; None if it was not measured."""
    values = [record[key] for record in history if record.get(key) is not None]
    return (values[0], values[-1]) if values else None


def held_out_table(facts: Facts) -> Table:
    """Scores on held-out documents before and after, a row for each corpus and metric."""
    corpora, rows = held_out_corpora(facts["history"]), []
    for corpus in corpora:
        for metric, called, show, difference in (
            ("held_out_mlm_loss", "MLM loss", decimal, decimal),
            ("held_out_mlm_accuracy", "MLM accuracy", percent, change),
            ("held_out_sop_accuracy", "sentence-order accuracy", percent, change),
        ):
            ends = first_and_last(facts["history"], key_of(metric, corpus))
            if ends is not None:
                what = f"{called}, {_corpus_name(facts, corpus)}" if len(corpora) > 1 else called
                rows.append((what, *map(show, ends), _signed(difference(ends[1] - ends[0]))))
    caption = (
        "On held-out documents, which training never sees: the same documents and masks before and after. "
        "A change of accuracy is in points."
    )
    return Table(
        caption, ("Held out", "before", f"after {number(facts['steps'])} steps", "change"), tuple(rows)
    )


def _signed(text: str) -> str:
    return text if text[0] in "+−" else f"+{text}"


def _corpus_name(facts: Facts, corpus: str) -> str:
    return corpus or str(facts.get("corpus") or "own corpus")


def run_table(facts: Facts) -> Table:
    """What the run was, and what its audits counted."""
    audits = facts.get("audits") or {}
    resumed = number(facts["resumed_from"]) if facts["resumed_from"] else MISSING
    return pairs_table(
        "",
        ("The run", "figure"),
        [
            ("parameters", number(facts["parameters"])),
            ("steps", number(facts["steps"])),
            ("tokens", number(facts["tokens"])),
            ("tokens a second", number(facts["tokens_per_second"])),
            ("peak learning rate", f"{facts['learning_rate']:.2g}"),
            ("resumed at step", resumed),
            ("best checkpoint", PurePath(facts.get("best_checkpoint") or MISSING).name),
            ("time the trainer waited for data", percent(audits.get("loader_wait_share"))),
            ("peak memory", size(audits.get("peak_memory_bytes"))),
            ("tokens masked", percent(audits.get("mask_rate"))),
            ("masked words masked whole", percent(audits.get("whole_word_coverage"))),
        ],
    )


def probe_note(probe: Facts) -> str:
    """What the checkpoint knew before."""
    return (
        "Before training, the checkpoint it began from predicted masked whole words with a loss of "
        f"{probe['mlm_loss']:.2f} (ln V, of a model that knows nothing, is {probe['uniform_loss']:.2f}) and "
        f"an accuracy of {percent(probe['mlm_accuracy'])}, on {number(probe['masked_tokens'])} tokens of "
        f"{number(probe['sentences'])} held-out sequences."
    )


def _event_table(events: Sequence[Facts]) -> Table:
    rows = tuple(
        (str(n), number(event["step"]), str(event["kind"]).replace("_", " "), str(event["text"]))
        for n, event in enumerate(events, 1)
    )
    return Table(
        "What went wrong and what was done", ("Event", "step", "kind", "what"), rows, words=(0, 2, 3)
    )


def _points(history: Sequence[Facts], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in history if record.get(key) is not None]


def _curves(facts: Facts, name: str) -> list[Plot]:
    history = facts["history"]
    marks = [(n, event["step"]) for n, event in enumerate(facts.get("events") or [], 1)]
    plots = []
    for metric, title, unit in (
        ("mlm_loss", "MLM loss", "nats, lower is better"),
        ("mlm_accuracy", "MLM accuracy", "share of masked tokens"),
        ("sop_accuracy", "Sentence-order accuracy", "share of pairs"),
    ):
        lines = _held_out_lines(facts, metric)
        if lines:
            lines = [Line("training", _points(history, metric), role="behind"), *lines]
            level = ("chance", 0.5) if metric == "sop_accuracy" else None
            plots.append(curves(f"{name}-{metric}", title, unit, lines, level=level, events=marks))
    for key, title, unit in (
        ("tokens_per_second", "Throughput", "tokens a second"),
        ("gradient_norm", "Gradient norm", "before clipping"),
        ("learning_rate", "Learning rate", "as scheduled"),
    ):
        if line := _points(history, key):
            lines = [Line("training", line, marked=False)]
            plots.append(curves(f"{name}-{key}", title, unit, lines, from_zero=True, events=marks))
    return plots


def _held_out_lines(facts: Facts, metric: str) -> list[Line]:
    corpora = held_out_corpora(facts["history"])
    lines = []
    for corpus in corpora:
        legend = f"held out, {_corpus_name(facts, corpus)}" if len(corpora) > 1 else "held out"
        lines.append(Line(legend, _points(facts["history"], key_of(f"held_out_{metric}", corpus))))
    return [line for line in lines if line.points]


def _layer_plots(facts: Facts, name: str) -> list[Plot]:
    plots = []
    for key, title, unit in (
        ("distance", "Change by a layer", "L2 distance of input and output"),
        ("cosine", "Angle kept by a layer", "cosine of input and output"),
    ):
        if facts.get("layers"):
            line = Line("held out", [(layer["layer"], layer[key]) for layer in facts["layers"]])
            plots.append(curves(f"{name}-layers-{key}", title, unit, [line], x_label="layer"))
    return plots


def _audit_plots(facts: Facts, name: str) -> list[Plot]:
    audits = facts.get("audits") or {}
    plots = []
    if rates := audits.get("mask_rate_by_word_length"):
        rule = audits.get("rule_mask_rate")
        plots.append(
            columns(
                f"{name}-mask-rate", "Mask rate by word length", "share of the tokens of such words",
                list(rates.items()), x_label="tokens to a word", as_percent=True,
                expected=None if rule is None else [rule] * len(rates),
            )
        )  # fmt: skip
    if counts := audits.get("ngram_histogram"):
        total, expected = max(sum(counts.values()), 1), audits.get("ngram_expected_shares")
        plots.append(
            columns(
                f"{name}-ngrams", "Words masked together", "share of n-grams",
                [(n, count / total) for n, count in counts.items()], x_label="words", as_percent=True,
                expected=None if expected is None else [expected.get(n, 0.0) for n in counts],
            )
        )  # fmt: skip
    if rows := _swapped_by_length(audits.get("sop_balance_by_length") or []):
        title, unit = "Sentence pairs swapped, by length", "% of pairs, with the 95% interval"
        plots.append(intervals(f"{name}-sop-balance", title, unit, rows, level=50.0))
    return plots


def _swapped_by_length(buckets: Sequence[Facts]) -> list[Interval]:
    rows = []
    for bucket in buckets:
        n = bucket["in_order"] + bucket["swapped"]
        if n:
            low, high = wilson(bucket["swapped"], n)
            label = f"{bucket['length_from']} to {bucket['length_to']} tokens, {n:,} pairs"
            rows.append(Interval(label, (), 100 * bucket["swapped"] / n, 100 * low, 100 * high))
    return rows


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927).

    >>> tuple(round(end, 3) for end in wilson(5, 10))
    (0.237, 0.763)
    """
    share, z2 = successes / n, _Z**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * (share * (1 - share) / n + z2 / (4 * n * n)) ** 0.5
    return centre - half, centre + half
