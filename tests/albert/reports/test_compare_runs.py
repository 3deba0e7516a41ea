"""metrics.json: its published schema, and runs compared by it."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from albert.evaluation import records as comparison_records
from albert.reports import Report, build_report, write_report
from albert.reports.compare_runs import comparison_page, differing_table, metrics_table, read_runs
from albert.reports.content import pretraining_facts
from albert.reports.page import SCHEMA_FILE, metrics_validator, read_metrics
from data.errors import InputError
from flows.__main__ import main
from tests import ROOT
from tests.albert.report_samples import (
    AUDITS,
    CORPUS,
    EVENTS,
    comparison,
    contamination,
    model,
    pretraining,
)


def test_the_schema_is_one():
    Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def test_the_command_prints_the_schema():
    command = [sys.executable, "-m", "flows", "report", "schema"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def test_a_report_is_by_the_schema(page):
    metrics = read_metrics(page.parent)
    assert metrics["evaluations"] and metrics["pretraining"] and metrics["bases"] and metrics["corpora"]


def test_a_report_with_nothing_but_its_verdict_is_by_the_schema(tmp_path):
    page = write_report(build_report(title="t", command="c"), tmp_path)
    assert read_metrics(page)["verdict"] == "Corpus only: nothing was trained."


@pytest.mark.parametrize(
    "record, definition",
    [
        (Report, None),
        (comparison_records.Comparison, "evaluation"),
        (comparison_records.ModelResult, "model"),
        (comparison_records.SeedResult, "seed"),
        (comparison_records.Difference, "difference"),
        (comparison_records.ChangedExample, "changed_example"),
        (comparison_records.Cost, "cost"),
        (comparison_records.Intrinsic, "intrinsic"),
        (comparison_records.Contamination, "contamination"),
        (comparison_records.Calibration, "calibration"),
        (comparison_records.ClassScore, "class"),
        (comparison_records.SliceScore, "slice"),
        (comparison_records.Summary, "summary"),
        (type(CORPUS), "corpus"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_the_schema_names_every_field_of_the_records(record, definition):
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    described = schema["$defs"][definition] if definition else schema
    derived = {"is_contaminated"} if definition == "evaluation" else set()
    assert set(described["properties"]) == {field.name for field in fields(record)} | derived
    assert set(described["required"]) == set(described["properties"])


def test_audits_and_events_are_by_the_schema(tmp_path):
    facts = pretraining_facts(pretraining(tmp_path, "general")) | {"audits": AUDITS, "events": EVENTS}
    part = {"$ref": "#/$defs/pretraining", "$defs": metrics_validator().schema["$defs"]}
    validator = metrics_validator().evolve(schema=part)
    assert not list(validator.iter_errors(facts))
    wrong = facts | {"events": [{"step": "10", "kind": "rollback", "text": "t"}]}
    assert [error.json_path for error in validator.iter_errors(wrong)] == ["$.events[0].step"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two reports: one without a second corpus, one contaminated and with another rate."""
    folder, made = tmp_path_factory.mktemp("runs"), []
    for name, accuracies, mixed, found, rate in (
        ("first", [0.80, 0.81, 0.82], None, 0, 1e-4),
        ("第二", [0.84, 0.85, 0.86], "general", 7, 5e-5),
    ):
        after = model("after", accuracies, contamination=(contamination(found),))
        report = build_report(
            title=name,
            command="c",
            pretraining=pretraining(folder, mixed),
            evaluations=[comparison(model("before", [0.70, 0.71, 0.73]), after)],
            settings={f"pretraining: {name}": {"learning_rate": rate, "seed": 0}},
        )
        made.append(write_report(report, folder / name).parent)
    return made


def test_figures_of_runs_stand_side_by_side(runs):
    table = metrics_table(read_runs(runs))
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ("Figure", "first", "第二")
    assert rows["茶事 test accuracy: after"] == ("81.0 ± 1.0", "85.0 ± 1.0")
    assert rows["茶事 test: after against before"] == ("+9.7 (+9.0 to +10.3)", "+13.7 (+13.0 to +14.3)")
    assert rows["held-out MLM accuracy, general"] == ("–", "30.0% → 28.0%")
    assert differing_table(read_runs(runs)).rows == (("pretraining: learning_rate", "0.0001", "5e-05"),)


def test_settings_of_several_arms_are_compared_one_by_one(tmp_path):
    made = []
    for run, rates in (("a", (1, 2)), ("b", (1, 3))):
        settings = {f"arm: {name}": {"rate": rate} for name, rate in zip("xy", rates, strict=True)}
        alone = {"sizes": {"tokens": 5}} if run == "a" else {}
        report = build_report(title=run, command="c", settings={**settings, **alone})
        made.append(write_report(report, tmp_path / run).parent)
    assert differing_table(read_runs(made)).rows == (("arm 2: rate", "2", "3"),)


def test_the_page_of_a_comparison_tells_verdicts_and_warnings(runs):
    html = comparison_page(read_runs(runs))
    assert "It helped: +9.7" in html and "第二: Contaminated: " in html
    assert html.count("<svg") == 3 and "http" not in html.replace("http://www.w3.org", "")


def test_compare_prints_a_table_and_leaves_a_page(runs, tmp_path, capsys):
    assert main(["report", "compare", *map(str, runs)]) == 0
    said = capsys.readouterr().out
    assert "第二" in said and "+13.7 (+13.0 to +14.3)" in said
    page = Path(said.strip().splitlines()[-1].removeprefix("page "))
    assert page.parent.parent == runs[0].parent and page.is_file()
    assert main(["report", "compare", *map(str, runs), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(
    "content, complaint",
    [
        (None, "no report in"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("\udcff", "cannot be read"),
        ('{"verdict": "old"}', "is not by the schema"),
        ("[]", "is not by the schema"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(runs, tmp_path, capsys, content, complaint):
    folder = tmp_path / "bad"
    folder.mkdir()
    if content is not None:
        (folder / "metrics.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert main(["report", "compare", str(runs[0]), str(folder)]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_one_run_is_not_compared(runs):
    with pytest.raises(InputError, match="name two or more"):
        read_runs(runs[:1])
