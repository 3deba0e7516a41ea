"""metrics.json: its schema, reading it back, and comparing runs by it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from albert.reports import read_report, report_schema, write_report
from albert.reports.compare_runs import differing_table, fitting, metrics_table, read_runs
from albert.reports.sections import Table
from data.errors import InputError
from tests.albert.report_samples import CORPUS, comparison, contamination, model, pretraining, report_of
from tests.commands import refused, run_here


def test_the_command_prints_the_schema_and_reports_follow_it(page):
    schema = json.loads(run_here("report", "schema").stdout)
    assert schema == report_schema()
    Draft202012Validator.check_schema(schema)
    metrics = json.loads((page.parent / "metrics.json").read_text(encoding="utf-8"))
    assert not list(Draft202012Validator(schema).iter_errors(metrics))
    metrics["pretraining"]["history"][0]["step"] = "0"
    assert list(Draft202012Validator(schema).iter_errors(metrics))


def test_a_report_is_read_back_as_it_was_and_its_schema_describes_fields(whole_report, page, tmp_path):
    assert whole_report.evaluations and whole_report.bases and whole_report.corpora
    assert whole_report.pretraining.audits and whole_report.pretraining.events
    assert read_report(page.parent) == read_report(page) == whole_report
    with pytest.raises(InputError, match="no report in .*misspelt: there is no .*misspelt/metrics.json"):
        read_report(page.parent / "misspelt")  # not the report that it would lie in
    empty = report_of()
    assert empty.verdict == "Corpus only: nothing was trained."
    assert read_report(write_report(empty, tmp_path / "空")) == empty
    parts = report_schema()["$defs"]
    described = parts["Comparison"]["properties"]["chance"]["description"]
    assert described == "main metric of a constant or random answer on the reported split"
    assert parts["Summary"]["required"] == ["mean", "half_width", "values"]
    assert all(not part["additionalProperties"] for part in parts.values() if part.get("type") == "object")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two reports: one without a second corpus, one contaminated and with another rate."""
    folder, made = tmp_path_factory.mktemp("runs"), []
    for name, accuracies, mixed, found, rate in (
        ("first", [0.80, 0.81, 0.82], None, 0, 1e-4),
        ("第二", [0.84, 0.85, 0.86], "general", 7, 5e-5),
    ):
        after = model("after", accuracies, contamination=(contamination(found),))
        judged = comparison(model("before", [0.70, 0.71, 0.73]), after)
        settings = {f"pretraining: {name}": {"learning_rate": rate, "seed": 0}}
        report = report_of(judged, pretraining=pretraining(folder, mixed), settings=settings)
        made.append(write_report(report, folder / name).parent)
    return made


def test_figures_of_runs_stand_side_by_side(runs):
    table = metrics_table(read_runs(runs))
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ("Figure", "first", "第二")
    assert rows["茶事 test accuracy: after"] == ("81.0 ± 5.6", "85.0 ± 5.2")
    assert rows["茶事 test accuracy: after against before"] == ("+9.7 ± 3.9", "+14.2 ± 4.8")
    assert rows["held-out MLM accuracy, general"] == ("–", "30.0% → 28.0%")
    assert differing_table(read_runs(runs)).rows == (("pretraining: learning_rate", "0.0001", "5e-05"),)


def test_settings_are_compared_among_runs_of_a_kind():
    def differing(*settings):
        runs = [report_of(settings=one) for one in settings]
        return differing_table(dict(zip("abcd", runs, strict=False))).rows

    one, two = {"rate": 1, "steps": 3}, {"rate": 2, "steps": 3}
    arms = [{"arm: x": one, "arm: y": one, "sizes": {"tokens": 5}}, {"arm: x": one, "arm: y": two}]
    assert differing(*arms) == (("arm 2: rate", "1", "2"),)
    assert differing({"x": one}, {"x": one}, {"y": one}, {"y": two}) == (("y: rate", "–", "–", "1", "2"),)


def test_versions_of_a_corpus_stand_for_the_paths_of_its_shards_and_a_changed_file_is_named():
    def made(version):
        parts = {"settings": {"x": {"shards": [str(version)]}}, "checksums": {"t.tsv": str(version) * 64}}
        return report_of(corpora=[replace(CORPUS, version=version)], **parts)

    of_corpus = ("corpus: 茶", "version 2, efefefef", "version 3, efefefef")
    rows = (of_corpus, ("sha256: t.tsv", "22222222", "33333333"))
    assert differing_table({"a": made(2), "b": made(3)}).rows == rows


@pytest.mark.parametrize("width, runs", [(200, 13), (80, 3), (10, 1)])
def test_a_table_of_many_runs_is_divided_to_fit_the_console(width, runs):
    names = tuple(f"run-{n:02}" for n in range(14))
    rows = (("准确率" * 5, *(f"{n} ± 1.25" for n in range(14))), ("only in one", "5", *"–" * 13))
    parts = list(fitting(Table("caption", ("Figure", *names), rows), width))
    assert tuple(name for part in parts for name in part.columns[1:]) == names
    assert [len(row) for row in (parts[0].columns, *parts[0].rows)] == [1 + runs] * 3
    assert [len(part.rows) for part in parts] == [2] + [1] * (len(parts) - 1)
    assert [part.caption for part in parts] == [""] * (len(parts) - 1) + ["caption"]


def test_compare_prints_a_table_and_leaves_a_page(runs, tmp_path):
    done = run_here("report", "compare", *runs)
    assert done.returncode == 0 and "第二" in done.stdout and "+14.2 ± 4.8" in done.stdout
    page = Path(done.stdout.strip().splitlines()[-1].removeprefix("page "))
    assert page.parent.parent == runs[0].parent and page.is_file()
    again = run_here("report", "compare", *runs, page.parent)  # as reports/* names it then
    assert again.stdout == done.stdout, again.stderr
    assert run_here("report", "compare", *runs, "--output", tmp_path / "out").returncode == 0
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "It helped: +9.7" in html and "第二: Contamination: " in html
    assert html.count("<svg") == 3 and "http" not in html.replace("http://www.w3.org", "")


def test_a_damaged_report_and_a_single_one_are_refused_in_one_line(runs, tmp_path):
    for content, complaint in (
        ("{", "cannot be read as JSON"),
        ("[1]", "is not a JSON object"),
        ('{"schema_version": 4}', "has schema version 4, but this version of jixu reads 5"),
        ('{"schema_version": 5}', "is damaged, make the report again: title is missing"),
    ):
        (tmp_path / "metrics.json").write_text(content)
        refused(run_here("report", "compare", runs[0], tmp_path), complaint)
    refused(run_here("report", "compare", runs[0]), "name two or more")


def test_the_verdict_is_computed_again_from_the_outcomes(runs, tmp_path):
    metrics = json.loads((runs[0] / "metrics.json").read_text(encoding="utf-8"))
    models = metrics["evaluations"][0]["models"]
    worse, better = (one["outcomes"] for one in models)
    models[0]["outcomes"], models[1]["outcomes"] = better, worse
    (tmp_path / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    untouched, swapped = read_runs([runs[0], tmp_path]).values()
    assert untouched == read_report(runs[0])
    like = shutil.copytree(runs[0], tmp_path / "first (1)")
    assert [*read_runs([runs[0], runs[0], like])] == ["first (1)", "first (2)", "first (1) (3)"]
    assert swapped.verdict.startswith("It hurt: −9.7")
    told = "metrics.json has another verdict than its outcomes: It helped: +9.7"
    assert swapped.warnings[-1].startswith(told)
    for broken in (worse[:-8], worse[1:], worse.swapcase()):
        models[0]["outcomes"] = broken
        (tmp_path / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
        with pytest.raises(InputError, match=f"outcomes in {tmp_path} are damaged"):
            read_runs([runs[0], tmp_path])
