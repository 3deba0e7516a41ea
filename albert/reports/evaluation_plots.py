"""The plots of an evaluation: each is drawn where its figures are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from albert.evaluation import label_of, metric_name, reported, subject
from albert.reports.plots import Interval, Line, Plot, confusion, curves, intervals, reliability
from albert.reports.pretraining import held_out_corpora, key_of
from albert.reports.sections import Facts

MOST_LABELS = 30  # of a confusion matrix that can be read
_MOST_LINES = 4  # of a plot whose lines can be told apart


def evaluation_plots(facts: Facts, name: str) -> list[Plot]:
    """Scores, what they differ by, and what they come from; `name` makes the plots' ids unique."""
    plots = [_score_plot(facts, name)]
    if facts["differences"]:
        baseline = facts["models"][0]["name"]
        rows = [(one["model"], one) for one in facts["differences"]]
        plots.append(_difference_plot(f"{name}-differences", f"Change against {baseline}", "points", rows))
    if facts["steps"]:
        rows, unit = [(one["model"], one) for one in facts["steps"]], "points against the one before"
        plots.append(_difference_plot(f"{name}-steps", "What each change does", unit, rows))
    if lines := model_lines(facts, _dev_by_epoch):
        title = f"Dev {metric_name(facts['metric'])} while fine-tuning"
        plots.append(curves(f"{name}-epochs", title, "points, mean of the seeds", lines, x_label="epoch"))
    if lines := model_lines(facts, _accuracy_by_confidence):
        unit = "accuracy by confidence, all seeds"
        plots.append(reliability(f"{name}-calibration", "Calibration", unit, lines))
    return [*plots, *confusion_plots(facts, name), *_pretraining_plots(facts, name)]


def model_lines(facts: Facts, points_of: Callable[[Facts], Sequence[tuple[float, float]]]) -> list[Line]:
    """A line for each model that has points. Of more than can be told apart, only the first and the one that
    the verdict is about are named, the others drawn thin behind them.
    """
    named = {model["name"] for model in facts["models"]}
    if len(named) > _MOST_LINES:
        named = {facts["models"][0]["name"], subject(facts)["name"]}
    lines, behind = [], []
    for model in facts["models"]:
        if not (found := points_of(model)):
            continue
        if model["name"] not in named:
            behind.append(Line("" if behind else "the others", found, "behind"))
        else:
            role = "baseline" if model["name"] == facts["models"][0]["name"] else "main"
            lines.append(Line(model["name"], found, role))
    return [*behind, *lines]


def confusion_plots(facts: Facts, name: str) -> list[Plot]:
    """What the first model and the one the verdict is about took for what; none where labels are too many."""
    if len(facts["labels"]) > MOST_LABELS:
        return []
    models = [facts["models"][0], *([subject(facts)] if facts["differences"] else [])]
    return [
        confusion(f"{name}-confusion{n}", f"Confusion: {model['name']}", facts["labels"], model["confusion"])
        for n, model in enumerate(models)
        if model["confusion"]
    ]


def score_interval(label: str, score: Facts) -> Interval:
    """A score of seeds in points, a standard deviation each way; of a single seed none is known."""
    mean, deviation = 100 * score["mean"], 100 * score["deviation"]
    ends = (mean - deviation, mean + deviation) if len(score["values"]) > 1 else (None, None)
    return Interval(label, [100 * value for value in score["values"]], mean, *ends)


def _score_plot(facts: Facts, name: str) -> Plot:
    metric, rows = facts["metric"], []
    for model in facts["models"]:
        rows.append(score_interval(label_of(model), reported(model)[metric]))
    title = f"{facts['split']} {metric_name(metric)}"
    unit = "points: each seed, mean ± standard deviation"
    return intervals(f"{name}-scores", title[0].upper() + title[1:], unit, rows)


def _difference_plot(name: str, title: str, unit: str, differences: Sequence[tuple[str, Facts]]) -> Plot:
    rows = []
    for label, one in differences:
        ends = [None if end is None else 100 * end for end in (one["low"], one["high"])]
        rows.append(Interval(label, [100 * value for value in one["values"]], 100 * one["mean"], *ends))
    return intervals(name, title, f"{unit}: each seed, mean and 95% interval", rows, level=0.0, signed=True)


def _dev_by_epoch(model: Facts) -> list[tuple[float, float]]:
    by_epoch: dict[int, list[float]] = {}
    for seed in model["seeds"]:
        for record in seed["curve"]:
            by_epoch.setdefault(record["epoch"], []).append(100 * record["dev"])
    return [(epoch, sum(scores) / len(scores)) for epoch, scores in sorted(by_epoch.items())]


def _accuracy_by_confidence(model: Facts) -> list[tuple[float, float]]:
    bins = model["calibration"]["bins"] if model["calibration"] else []
    return [(one["confidence"], one["accuracy"]) for one in bins]


def _pretraining_plots(facts: Facts, name: str) -> list[Plot]:
    """The held-out losses of the runs that made the models, a plot for each corpus they were kept of."""
    plots = []
    histories = [model["pretraining"] for model in facts["models"]]
    for corpus in sorted({corpus for history in histories for corpus in held_out_corpora(history)}):
        key = key_of("held_out_mlm_loss", corpus)
        lines = model_lines(
            facts,
            lambda model, key=key: [
                (r["step"], r[key]) for r in model["pretraining"] if r.get(key) is not None
            ],
        )
        title = "Pretraining: held-out MLM loss" + (f", {corpus}" if corpus else "")
        plots.append(curves(f"{name}-pretraining-{len(plots)}", title, "nats, lower is better", lines))
    return plots
