"""The report as an HTML page that needs nothing but itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from albert.reports.content import CorpusFacts, Report
from albert.reports.plots import bars, curves, intervals, ranked
from data.files import write_text

_HERE = Path(__file__).parent


def write_report(report: Report, folder: Path) -> Path:
    """Write metrics.json and index.html into `folder`; returns the page's path."""
    content = json.dumps(asdict(report), ensure_ascii=False, indent=2, default=str, allow_nan=False)
    page = render(report)
    write_text(folder / "metrics.json", content + "\n")
    write_text(folder / "index.html", page)
    return folder / "index.html"


def render(report: Report) -> str:
    """The page's HTML."""
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    environment.filters.update(number=_number, percent=_percent, points=_points)
    return environment.get_template("report.html").render(
        report=report,
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
        corpora=[(facts, _corpus_plots(facts, number)) for number, facts in enumerate(report.corpora)],
        trainings=[
            (title, facts, _training_plots(facts, name))
            for title, facts, name in (
                ("Continued pretraining" if report.base else "Pretraining", report.pretraining, "continued"),
                ("Base model", report.base, "base"),
            )
            if facts
        ],
        evaluation_plots=_evaluation_plots(report),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}" if math.isfinite(value) else "unknown"


def _corpus_plots(facts: CorpusFacts, number: int) -> list[str]:
    name = f"corpus{number}"
    return [
        bars(f"{name}-lengths", "Instances by length", "tokens, up to", "instances", facts.lengths),
        bars(
            f"{name}-words",
            "Words by length",
            "characters",
            "words",
            [(f"{n}+" if n >= 6 else n, count) for n, count in facts.word_lengths],
        ),
        ranked(f"{name}-frequent", "Most frequent words", list(facts.top_words)[:12]),
    ]


def _training_plots(facts: Mapping[str, object], name: str) -> list[str]:
    history = facts["history"]

    def line(key: str) -> list[tuple[float, float]]:
        return [(record["step"], record[key]) for record in history if key in record]

    plots = [
        curves(
            f"{name}-loss",
            "MLM loss",
            "nats",
            [("training", line("mlm_loss")), ("held out", line("held_out_mlm_loss"))],
        ),
        curves(
            f"{name}-accuracy",
            "MLM accuracy",
            "share",
            [("training", line("mlm_accuracy")), ("held out", line("held_out_mlm_accuracy"))],
        ),
    ]
    if line("held_out_sop_accuracy"):
        lines = [("training", line("sop_accuracy")), ("held out", line("held_out_sop_accuracy"))]
        plots.append(curves(f"{name}-sop", "Sentence-order accuracy", "share", lines))
    plots.append(
        curves(f"{name}-speed", "Speed", "tokens a second", [("training", line("tokens_per_second"))])
    )
    changes = facts["layers"]
    if changes:
        for key, title in (("distance", "Change by a layer"), ("cosine", "Angle kept by a layer")):
            label = "L2 distance, input to output" if key == "distance" else "cosine, input to output"
            points = [(change["layer"], change[key]) for change in changes]
            plots.append(
                curves(f"{name}-layers-{key}", title, label, [("held out", points)], x_label="layer")
            )
    return plots


def _evaluation_plots(report: Report) -> list[str]:
    if report.evaluation is None:
        return []
    split = report.evaluation["split"]
    plots = []
    for metric, title in (("accuracy", "Accuracy"), ("macro_f1", "Macro F1")):
        groups = [
            (row["model"], s["mean"], s["deviation"], s["values"])
            for row in report.evaluation["models"]
            for s in [row[f"{split}_{metric}"]]
        ]
        plots.append(
            intervals(f"eval-{metric}", f"{title} on {split}, each seed and the mean", "share", groups)
        )
    return plots
