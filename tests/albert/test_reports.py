import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from albert.diagnostics import LayerChange
from albert.evaluation import Scores
from albert.finetuning import FineTuneResult, SeedResult
from albert.pretraining import PretrainResult
from albert.probe import Probe
from albert.reports import CorpusFacts, build_report, write_report


def pretraining(tmp_path):
    known = Probe(9.1, 0.02, 9.96, 812, 300).to_record()
    history = [{"step": 0, "held_out_mlm_loss": 8.0, "held_out_mlm_accuracy": 0.01, **known}]
    for step in range(10, 50, 10):
        history.append(
            {"step": step, "mlm_loss": 8 - step / 10, "mlm_accuracy": step / 100, "tokens_per_second": 9e3}
        )
        history.append(
            {"step": step, "held_out_mlm_loss": 8 - step / 12, "held_out_mlm_accuracy": step / 110}
        )
    return PretrainResult(
        run_folder=tmp_path / "models/r",
        checkpoint=tmp_path / "models/r/checkpoint-40",
        status="completed",
        steps=40,
        tokens=160_000,
        tokens_per_second=9123.4,
        resumed_from=0,
        history=history,
        notices=("MLM head newly initialised: <it> is not in the checkpoint",),
        learning_rate=2e-4,
        parameters=4_142_594,
        layers=tuple(LayerChange(n, 10.0 / n, 1 - 0.5 / n) for n in range(1, 5)),
    )


def evaluation(first, second):
    seeds = [
        SeedResult(name, seed, 2, Scores(a, a), Scores(a, a - 0.01), 3.0, (0, 1))
        for name, values in (("base", first), ("继续", second))
        for seed, a in enumerate(values)
    ]
    return FineTuneResult(
        task="茶事",
        labels=("是", "否"),
        examples={"train": 100, "dev": 20, "test": 20},
        skipped=("t.tsv, row 3: empty",),
        majority_share=0.5,
        models=("base", "继续"),
        seeds=tuple(seeds),
    )


FACTS = CorpusFacts(
    corpus="茶",
    version=2,
    totals={"documents": 35, "tokens": 12345},
    sop=True,
    unknown_share=0.0123,
    funnel=[{"stage": "filter", "unit": "documents", "in": 40, "out": 35, "reason": "too_short", "count": 5}],
    lengths=[(16, 3), (32, 9), (128, 50)],
    word_lengths=[(1, 100), (2, 300), (6, 2)],
    top_words=[("茶叶", 90), ("香气", 60)],
    samples=[{"text": "[CLS]<茶>[SEP]", "masked": "[MASK]", "sop_label": 1, "doc_id": "ab"}],
)


@pytest.fixture
def page(tmp_path):
    report = build_report(
        title="Did it help?",
        command="python -m flows.end_to_end --demo",
        corpora=[FACTS],
        base=pretraining(tmp_path),
        pretraining=pretraining(tmp_path),
        evaluation=evaluation([0.70, 0.71, 0.72], [0.80, 0.81, 0.815]),
        settings={"fine-tuning": {"epochs": 3}},
    )
    return write_report(report, tmp_path / "reports/r")


class Balance(HTMLParser):
    """Every opened element is closed, in order."""

    VOID = {"meta", "br", "link", "img", "path", "use", "stop"}

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_outside(page):
    html = page.read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(html)
    assert not parser.open
    outside = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#][^"']*)|url\((?!#)([^)]*)|@import|<script""", html)
    assert not outside
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_plots_are_named_svg_in_the_pages_colours(page):
    plots = re.findall(r"<svg.*?</svg>", page.read_text(encoding="utf-8"), re.S)
    assert len(plots) == 3 + 2 * 5 + 2
    for plot in plots:
        root = ET.fromstring(plot)
        assert root.get("role") == "img" and len(root.get("aria-label")) > 10
        assert "var(--ink)" in plot and "#0" not in plot.replace("url(#", "").replace('href="#', "")
    assert any("茶叶" in plot for plot in plots)


def test_text_from_outside_is_escaped(page):
    html = page.read_text(encoding="utf-8")
    assert "<茶>" not in html and "&lt;茶&gt;" in html and "<it>" not in html


def test_metrics_hold_the_same_as_the_page(page):
    metrics = json.loads((page.parent / "metrics.json").read_text(encoding="utf-8"))
    html = page.read_text(encoding="utf-8")
    assert metrics["verdict"] in html and metrics["command"] in html
    assert metrics["evaluation"]["models"][1]["difference"]["is_clear"]
    assert f"{metrics['pretraining']['after']['held_out_mlm_loss']:.3f}" in html
    assert metrics["versions"]["torch"] in html


def test_the_probe_and_what_layers_change_are_shown(page):
    html = page.read_text(encoding="utf-8")
    assert "with a loss of 9.10 (ln V, of a model that knows nothing, is 9.96)" in html
    assert 'aria-label="Change by a layer: held out from 10 to 2.5"' in html
    assert 'aria-label="Angle kept by a layer: held out from 0.5 to 0.875"' in html
    metrics = json.loads((page.parent / "metrics.json").read_text(encoding="utf-8"))["pretraining"]
    assert metrics["layers"][0] == {"layer": 1, "distance": 10.0, "cosine": 0.5}
    assert (
        metrics["probe"]["masked_tokens"] == 812
        and "hardly better than chance" in metrics["probe"]["warning"]
    )


@pytest.mark.parametrize(
    "first, second, verdict",
    [
        ([0.70, 0.71, 0.72], [0.80, 0.81, 0.815], "It helped: +9.8 points"),
        ([0.80, 0.81, 0.82], [0.70, 0.71, 0.715], "It hurt: -10.2 points"),
        ([0.70, 0.71, 0.72], [0.70, 0.73, 0.70], "No clear difference"),
        ([0.70], [0.90], "a single seed says nothing"),
    ],
)
def test_the_verdict_says_what_the_interval_says(first, second, verdict, tmp_path):
    report = build_report(title="t", command="c", evaluation=evaluation(first, second))
    assert verdict in report.verdict
    assert Path(write_report(report, tmp_path / "r")).is_file()


def test_a_report_of_training_alone_is_written_too(tmp_path):
    report = build_report(title="t", command="c", corpora=[FACTS], pretraining=pretraining(tmp_path))
    assert "Held-out MLM loss 8.00" in report.verdict
    assert "Evaluation" not in write_report(report, tmp_path / "r").read_text(encoding="utf-8")
