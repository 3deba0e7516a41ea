"""The plots of an evaluation; each is drawn only if its figures exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from albert.evaluation import Comparison, Difference, ModelResult, Summary, metric_name
from albert.reports.plots import Interval, Line, Plot, curves, intervals
from albert.reports.pretraining import loss_plots
from albert.reports.sections import capitalised

SCORE_UNIT = "points: each seed, mean and 95% interval"
_CHANGE_UNIT = "each seed or pretraining run, mean and 95% interval"
_MOST_LINES = 4  # of a plot whose lines can still be told apart


def evaluation_plots(comparison: Comparison) -> list[Plot]:
    """Scores, differences and what lies behind them."""
    main = comparison.metric
    arms = (*comparison.models, *comparison.baselines)
    rows = [interval_of(one.label, one.reported[main]) for one in arms]
    plots = [intervals(capitalised(f"{comparison.split} {metric_name(main)}"), SCORE_UNIT, rows)]
    if comparison.differences:
        title = f"Change against {comparison.models[0].name}"
        plots.append(_difference_plot(title, "points", comparison.differences))
    if comparison.steps:
        unit = "points against the one before"
        plots.append(_difference_plot("What each change does", unit, comparison.steps))
    shown = comparison.models
    if len(shown) > _MOST_LINES:
        shown = (shown[0], comparison.subject)
    if lines := _lines(shown, _dev_by_epoch):
        title = f"Dev {metric_name(main)} while fine-tuning"
        plots.append(curves(title, "points, mean of the runs still training", lines, x_label="epoch"))
    bins = {one.name: one.calibration.bins for one in shown if one.calibration}
    if lines := _lines(shown, lambda model: [(b.confidence, b.accuracy) for b in bins.get(model.name, ())]):
        unit, perfect = "accuracy by confidence, all seeds", Line("", ((0, 0), (1, 1)), "behind")
        plots.append(curves("Calibration", unit, [perfect, *lines], x_label="mean confidence"))
    histories = {one.name: one.pretraining for one in shown}
    return [*plots, *loss_plots("Pretraining: held-out MLM loss", histories, shown[0].name)]


def _lines(
    models: Sequence[ModelResult], points_of_model: Callable[[ModelResult], Sequence[tuple[float, float]]]
) -> list[Line]:
    """A line for each model that has points, the first one's grey."""
    return [
        Line(one.name, points, "main" if at else "baseline")
        for at, one in enumerate(models)
        if (points := points_of_model(one))
    ]


def interval_of(label: str, one: Summary | Difference) -> Interval:
    """A score or a difference in points with its 95% interval, if it can be told."""
    half = one.half_width
    ends = None if half is None else (100 * (one.mean - half), 100 * (one.mean + half))
    return Interval(label, [100 * value for value in one.values], 100 * one.mean, ends)


def _difference_plot(title: str, unit: str, differences: Sequence[Difference]) -> Plot:
    rows = [interval_of(one.model, one) for one in differences]
    return intervals(title, f"{unit}: {_CHANGE_UNIT}", rows, level=0.0)


def contrast_plot(evaluations: Sequence[Comparison]) -> Plot:
    """What each comparison's verdict is about, one below the other."""
    rows = [
        interval_of(f"{one.task}: {primary.model} against {primary.baseline}", primary)
        for one in evaluations
        if (primary := one.difference(one.subject.name))
    ]
    return intervals("Differences", f"points: {_CHANGE_UNIT}", rows, level=0.0)


def _dev_by_epoch(model: ModelResult) -> list[tuple[float, float]]:
    by_epoch: dict[int, list[float]] = {}
    for seed in model.seeds:
        for record in seed.curve:
            by_epoch.setdefault(record.epoch, []).append(100 * record.dev)
    return [(epoch, sum(scores) / len(scores)) for epoch, scores in sorted(by_epoch.items())]
