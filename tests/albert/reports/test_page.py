import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from albert.evaluation import Intrinsic
from albert.reports import held_out_figures, read_report, report_markdown, write_report
from albert.reports.evaluation import (
    contamination_table,
    evaluation_section,
    intrinsic_table,
    protocol,
    scores_table,
    steps_table,
)
from albert.reports.page import render
from albert.reports.plots import Line, curves
from albert.reports.pretraining import held_out_table, training_section
from albert.reports.sections import Strong
from albert.tasks import Overlap
from tests.albert.report_samples import (
    AUDITS,
    BASE,
    BETTER,
    EVENTS,
    comparison,
    contamination,
    history,
    knowing,
    model,
    pretraining,
    report_of,
    seed_result,
)


@pytest.fixture(scope="session")
def html(page):
    return page.read_text(encoding="utf-8")


def plots_of(html: str) -> list[ET.Element]:
    return [*map(ET.fromstring, re.findall(r"<svg.*?</svg>", html, re.S))]


def descriptions_of(html: str) -> dict[str, str]:
    return {plot[0].text: plot[1].text for plot in plots_of(html)}


def test_the_page_needs_nothing_from_outside_and_every_plot_has_a_description_and_the_pages_colours(html):
    # every element is closed, in order, but meta, which HTML never closes
    ET.fromstring(re.sub(r"(<meta [^>]*)>", r"\1/>", html[html.index("<html") :]))
    outside = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#][^"']*)|url\((?!#)([^)]*)|@import|<script""", html)
    assert not outside
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    plots = plots_of(html)
    assert len(plots) > 20 and any("继续" in "".join(plot.itertext()) for plot in plots)
    for plot, source in zip(plots, re.findall(r"<svg.*?</svg>", html, re.S), strict=True):
        title, description = plot[0], plot[1]
        assert plot.get("role") == "img"
        assert plot.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert title.text and len(description.text) > 10
        assert "var(--" in source and not re.findall(r"#[0-9a-fA-F]{6}\b", source)


def test_the_page_shows_what_the_report_holds(whole_report, html):
    assert "<茶>" not in html and "&lt;茶&gt;" in html and "<it>" not in html  # texts from outside
    assert whole_report.verdict in html and whole_report.command in html
    assert f"{whole_report.pretraining.history[-1]['held_out_mlm_loss']:.3f}" in html
    assert whole_report.versions["torch"] in html
    of_weights = {f"weights of {one.name}": "ab" * 32 for one in whole_report.evaluations[0].models}
    others = {"shards of 茶, version 2": "ef" * 32, "train.tsv": "cd" * 32}
    assert len(of_weights) == 3 and dict(whole_report.checksums) == of_weights | others
    assert all(checksum in html for checksum in whole_report.checksums.values())
    assert "with a loss of 9.10 (a model that knows nothing has ln V = 9.96)" in html
    descriptions = descriptions_of(html)
    assert descriptions["Change by a layer"] == "held out from 10 to 2.5"
    assert descriptions["Angle kept by a layer"] == "held out from 0.5 to 0.875"


def test_confusions_and_rates_are_listed_and_each_seed_of_a_recipe_names_its_pretraining_run():
    recipe = model("recipe", [0.8, 0.81, 0.82] * 2, checkpoints=("a", "b"))
    section = evaluation_section(comparison(BASE, recipe), "t")
    details = {one.title: one for one in section.details}
    assert "each seed or pretraining run" in section.plots[1].unit
    assert "The last epoch was the best for 3 runs of base, 6 runs of recipe: more" in section.notes[0]
    assert "--" not in section.notes[0]  # another job's option has another prefix
    (rates,) = details["Learning rates"].tables
    assert rates.columns == ("Model", "2e-05", "0.0001") and rates.rows[1] == ("recipe", "60.0", "80.0")
    first, confused = details["Confusion"].tables
    assert first.rows == (("否", "是", "7"), ("是", "否", "5")) and "of base" in first.caption
    assert confused.columns[-1] == "times" and confused.caption.endswith("of recipe, over 6 runs")
    named = [row[0] for row in details["Every seed"].tables[0].rows]
    assert named == [BASE.name] * 3 + ["recipe, run 1"] * 3 + ["recipe, run 2"] * 3
    (changed,) = details["2 examples fixed by recipe"].passages
    assert "right in 0 of 3 runs" in changed.about and "right in 3 of 6 runs" in changed.about


def test_what_is_not_trained_has_no_rate_near_certainty_a_bound_and_a_single_seed_no_interval():
    read = model("read", [0.7], seeds=(seed_result(0, {"accuracy": 0.7}, best_epoch=0, learning_rate=8e-4),))
    assert report_of(comparison(read)).verdict.endswith("accuracy on 茶事 test; nothing to compare with.")
    details = evaluation_section(comparison(read), "t").details
    (table,) = next(one.tables for one in details if one.title == "Every seed")
    assert "dev" in table.columns and not {"learning rate", "best epoch"} & set(table.columns)
    cells = scores_table(comparison(BASE, model("sure", [0.95, 0.95, 0.96]))).rows[1][-2:]
    assert cells == ("+24.3 ± 5.9", "< 0.001") and isinstance(cells[0], Strong)
    found = comparison(BASE, BETTER)
    for p_value, expected in ((0.0497, "< 0.05"), (0.0503, "0.050")):  # bold, and not
        close = replace(found, differences=(replace(found.differences[0], adjusted_p=p_value),))
        *_, change, p_shown = scores_table(close).rows[1]
        assert p_shown == expected and isinstance(change, Strong) == (p_value < 0.05)
    report = report_of(comparison(model("a", [0.7]), model("b", [0.9])))
    assert report.verdict.startswith("Cannot tell: +20.0 points of accuracy on 茶事 test over 1 seed (")
    descriptions = descriptions_of(render(report))
    assert descriptions["Change against a"] == "b: 20.00, single values 20.00"
    assert descriptions["Test accuracy"].startswith("a: 70.00, single values 70.00")
    scores = scores_table(report.evaluations[0])
    assert scores.rows[0][1:3] == ("70.0", "70.0")
    assert scores.caption.endswith("No interval of a change: a has 1 seed, at least 3 are needed.")


def test_the_verdict_says_what_was_forgotten_and_doubts_changes_whose_interval_holds_0(tmp_path):
    doubtful = model("b", [0.8, 0.81, 0.82], intrinsic=knowing(199, 200, 198))
    unmeasured = model("b", [0.8, 0.81, 0.82])
    doubt = "−0.2 (no clear change: −0.7 to +0.3)"
    recipe = replace(doubtful, checkpoints=tuple("abc"))
    of_first = (recipe, f"of its first run {doubt}")
    for better, drift in ((BETTER, "−0.2"), (doubtful, doubt), of_first, (unmeasured, "−2.0")):
        report = report_of(comparison(BASE, better), pretraining=pretraining(tmp_path, "general"))
        assert report.verdict.endswith(f" 3 seeds; general drift {drift}.")
    assert "the first is measured." in intrinsic_table(comparison(BASE, recipe)).caption
    result = pretraining(tmp_path, "general")
    changes = {"mlm_loss": -0.02, "mlm_accuracy": 0.002, "mlm_accuracy@general": -0.002}
    for half, doubts in ((0.03, 3), (0.01, 2), (0.001, 0)):
        ends = {}
        for name, value in changes.items():
            metric, at, corpus = name.partition("@")
            for end, shift in (("", 0), ("_low", -half), ("_high", half)):
                ends[f"held_out_{metric}_change{end}{at}{corpus}"] = value + shift
        history = (*result.history[:-1], {**result.history[-1], **ends})
        report = report_of(pretraining=replace(result, history=history))
        assert report.verdict.count("no clear change") == doubts
        drift = " (no clear change: −1.2 to +0.8)" if half == 0.01 else ""
        assert half == 0.03 or report.verdict.endswith(f"general drift −0.2{drift}.")


def test_of_several_models_the_verdict_is_about_the_primary_one():
    on_dev = model("on dev", [0.72, 0.73, 0.75])
    on_test = model("on test", [0.90, 0.91, 0.92], dev=BASE.dev)
    report = report_of(comparison(BASE, on_test, on_dev))
    assert "on dev against base" in report.verdict
    html = render(report)
    assert "The primary contrast is on dev against base." in html
    assert descriptions_of(html)["What each change does"].startswith("on test: 20.00")
    steps = steps_table(report.evaluations[0])
    assert [row[:2] for row in steps.rows] == [("on test", "+20.0 ± 5.4"), ("on dev", "−17.7 ± 5.1")]
    assert steps.caption.endswith("the first against base.")


def test_a_contaminated_corpus_is_named_at_the_top():
    dirty, dirtier = (replace(BETTER, name=name, contamination=(contamination(7),)) for name in ("x", "y"))
    report = report_of(comparison(BASE, dirty))
    assert "without the 7 of 200 examples that only one of them may have read" in report.verdict
    html = render(report)
    assert "Changes are on the examples that neither model alone may have read" in html
    assert html.index("7 of 100 test texts of 茶事 have 13 letters") < html.index("<h2>")
    # one line a corpus, whichever models were trained on it; how much of a text it holds is not measured
    (warning,) = report_of(comparison(BASE, dirty, dirtier)).warnings
    assert "茶 version 2, which may be a set phrase or the text. The scores of x and y on 茶事" in warning
    by_share = replace(BETTER, contamination=(replace(contamination(7), share=0.3),))
    (warning,) = report_of(comparison(BASE, by_share)).warnings
    assert "have 30% of their runs of 13 letters in common with 茶" in warning
    report = report_of(comparison(BASE, replace(BETTER, contamination=(contamination(0),))))
    assert report.verdict.startswith("It helped: +9.8 ± 4.0 points of accuracy on 茶事 test over 3 seeds;")
    assert not report.warnings
    # a baseline reads nothing
    rule = model("rule", [0.80], is_fixed=True, checkpoints=())
    judged = replace(comparison(BASE, dirty), baselines=(rule,))
    below, unclear, _ = report_of(judged, judged).warnings  # each once
    assert below.startswith("Below a baseline in accuracy on 茶事 test: base (−9.0 ± 4.3). The baseline,")
    assert unclear.startswith("Not clearly above") and "x (+0.9 ± 2.1, without the 7 of 200" in unclear


def test_texts_that_parts_of_a_task_share_are_named_at_the_top_unless_they_were_left_out():
    shared = (Overlap("test", "train", 60, 1, 2, (("一杯茶", "一杯 茶"),)),)
    report = report_of(comparison(BASE, BETTER, overlaps=shared))
    (warning,) = report.warnings
    assert "3 of 60 test examples are in train too, 1 of them" in warning and "drop-overlap" in warning
    # a copy may have another label, and one of many examples changes little
    assert "may be too good" in warning
    html = render(report)
    assert html.index(warning) < html.index("<h2>") < html.index("in train: 一杯 茶")
    for changes in ({"dropped": 3}, {"kind": "similarity"}):  # which trains nothing
        assert not report_of(comparison(BASE, BETTER, overlaps=shared, **changes)).warnings
    with_dev = (Overlap("test", "dev", 60, 7, 0, ()),)
    (warning,) = report_of(comparison(BASE, BETTER, overlaps=with_dev)).warnings
    assert warning.endswith("which chose the epoch: the scores on 茶事 may be too good.")


def test_texts_that_every_model_has_read_are_reported_but_do_not_spoil_the_comparison():
    shared = (contamination(found=7),)
    base = model("base", [0.70, 0.71, 0.72], contamination=shared)
    better = model("b", [0.80, 0.81, 0.815], contamination=shared)
    best = model("c", [0.90, 0.91, 0.915], contamination=(*shared, replace(shared[0], corpus="水")))
    report = report_of(comparison(base, better, best, primary="b"))
    assert report.verdict.startswith("It helped: +9.8") and "b against base" in report.verdict
    told = [f"The scores of {readers} on 茶事 may be inflated by that." for readers in ("every model", "c")]
    assert [line.endswith(end) for line, end in zip(report.warnings, told, strict=True)] == [True, True]
    # each evaluation has a line, each corpus a warning
    others = [model(name, [0.8, 0.8, 0.8], contamination=shared) for name in ("d", "e")]
    again = comparison(replace(BASE, name="old"), *others, best)
    twice = report_of(comparison(base, better, best, primary="b"), again)
    assert len(twice.verdict.split("\n")) == 2 and len(twice.warnings) == 2
    assert twice.warnings[0].endswith("The scores of 5 of 6 models on 茶事 may be inflated by that.")
    rule = "13 letters (shorter ones all)"
    assert contamination_table(report.evaluations[0]).rows == (
        ("茶, version 2", "test", "100", "7", rule, "7", "every model"),
        ("水, version 2", "test", "100", "7", rule, "7", "c"),
    )


def test_a_model_is_not_measured_on_texts_it_was_trained_on():
    trained = model("trained", [0.8, 0.8, 0.8], intrinsic=Intrinsic(general_mlm_accuracy=0.4))
    table = intrinsic_table(comparison(BASE, trained))
    assert [row[1] for row in table.rows] == ["50.0", "–"] and "A dash: " in table.caption
    assert "A dash: " not in intrinsic_table(comparison(BASE, BETTER)).caption


def test_sections_appear_only_with_their_data(tmp_path):
    trained = render(report_of(pretraining=pretraining(tmp_path)))
    assert "Held-out MLM loss 8.00 → 4.67" in trained
    assert re.findall(r"<h2>(.*)</h2>", trained) == ["Continued pretraining", "How to repeat it"]
    bare = dict.fromkeys(("calibration", "confusion", "cost", "intrinsic"))
    bare |= dict.fromkeys(("classes", "slices", "sweep", "pretraining"), ())
    judged = render(report_of(comparison(model("a", [0.7, 0.8], **bare), model("b", [0.8, 0.9], **bare))))
    assert re.findall(r"<h2>(.*)</h2>", judged) == ["Evaluation: 茶事", "How to repeat it"]
    titles = [plot[0].text for plot in plots_of(judged)]
    assert titles == ["Test accuracy", "Change against a", "Dev accuracy while fine-tuning"]
    assert all(part not in judged for part in ("Calibration", "ECE", "parameters", "Every class"))


def test_audits_are_drawn_against_the_rule(tmp_path):
    result = replace(pretraining(tmp_path), audits=AUDITS, events=EVENTS)
    section = training_section(result, "Pretraining")
    descriptions = {plot.title: plot.description for plot in section.plots}
    by_word = descriptions["Mask rate by word length"]
    assert by_word.endswith("1: 14.9% (the rule's 15%), 2: 15.2% (the rule's 15%)")
    assert descriptions["Mask rate by sequence length"].endswith("≤ 64: 14.8% (the rule's 15%)")
    assert "1: 54.5% (the rule's 54.5%), 2: 27.3%" in descriptions["Words masked together"]
    swapped = descriptions["Sentence pairs swapped, by length"]
    assert swapped.startswith("1 to 64 tokens, 92 pairs: 56.52") and "single values" not in swapped
    assert descriptions["MLM loss"].endswith("1 event marked")
    assert descriptions["Throughput"] == "training from 9,000 to 9,000; 1 event marked"
    figures = dict(section.tables[1].rows)
    assert section.tables[1].caption.endswith("at most 200,000.")
    assert figures["peak memory"] == "1.32 GB" and figures["time the trainer waited for data"] == "0.4%"
    assert figures["instances without an order label"] == "8.0%"
    assert figures["masked words that have a similar word"] == "83.0%"
    assert section.tables[2].rows == (("1", "20", "skipped batch", "the gradient was not finite"),)


def test_a_plot_has_names_with_underscores_whole_steps_and_room_for_the_lines_of_many_runs():
    lines = [Line(name, [(0.0, 1.0), (1.0, 2.0)]) for name in ("_old", "new")]
    drawn = ET.fromstring(curves("t", "u", lines).svg("p"))
    assert {"_old", "new"} <= {text.strip() for text in drawn.itertext()}
    drawn = ET.fromstring(curves("t", "u", [Line("one", [(6.0, 250.0)])]).svg("p"))
    labels = [text for text in map(str.strip, drawn.itertext()) if re.fullmatch(r"[\d.]+", text)]
    assert [text for text in labels if float(text) < 10] == ["6"]
    lines = [Line(f"general-v1-tiny-steps-{n}", [(0.0, 1.0), (1.0, 2.0)]) for n in range(40)]
    (height,) = re.findall(r'viewBox="0 0 360 (\S+)"', curves("t", "u", lines).svg("p"))  # or it warns
    assert float(height) > 700


def test_a_long_line_is_drawn_with_its_spikes_and_few_points():
    points = [(float(x), 1 + x % 7 / 10) for x in range(10_000)]
    points[6_000], points[7_001] = (6_000.0, 40.0), (7_001.0, -30.0)
    svg = curves("t", "u", [Line("training", points, role="behind")]).svg("p")
    paths = (re.findall(r"L \S+ (\S+)", path) for path in re.findall(r' d="([^"]+)"', svg))
    (line,) = (heights for heights in paths if len(heights) > 50)
    assert len(line) < 2000
    top, *_, middle, bottom = sorted(map(float, line))
    assert top < middle - 50 and bottom > middle + 50


def test_losses_that_are_not_finite_are_left_out_and_a_history_without_training_is_drawn_too(tmp_path):
    result = pretraining(tmp_path)
    result.history.insert(2, {"step": 15, "mlm_loss": float("nan"), "gradient_norm": float("inf")})
    report = report_of(pretraining=result)
    assert report.pretraining.history[2] == {"step": 15}
    assert read_report(str(write_report(report, tmp_path / "r"))) == report
    result = replace(pretraining(tmp_path), history=history()[:1], layers=())
    unmeasured = report_of(pretraining=replace(result, history=()))
    assert unmeasured.verdict == "Nothing was measured on held-out documents."
    assert [plot.title for plot in training_section(result, "t").plots] == ["MLM loss", "MLM accuracy"]


def test_before_and_after_are_of_the_larger_sample_measured_at_both_ends_under_its_corpus_name(tmp_path):
    records, loss = history(), "held_out_mlm_loss"
    for record, full in ((records[0], 8.5), (records[4], 7.5)):  # it might have been the last, but was better
        record[f"full_{loss}"] = full
        record[f"full_{loss}_change"] = full - 8.6
    (both, _), (full, _) = held_out_figures(records), held_out_figures(records[:5])
    assert (both.before.value, both.after.value) == (records[0][loss], records[-1][loss])
    assert (full.before.value, full.after.value, full.change.value) == (8.5, 7.5, 7.5 - 8.6)
    records = history("LawText")
    for record in (records[0], records[-1]):
        record |= {"held_out_documents@LawText": 35.0, "held_out_masked_tokens@LawText": 812.0}
        record |= {"full_held_out_documents@LawText": 36.0, "full_held_out_masked_tokens@LawText": 1624.0}
    caption = held_out_table(replace(pretraining(tmp_path), history=records)).caption
    assert caption.endswith("LawText: 36 documents, 1,624 masked tokens (curves and log: the first 812).")


def test_markdown_holds_the_main_tables_and_each_base_model_has_its_part(tmp_path):
    judged = comparison(BASE, BETTER), comparison(BASE, BETTER, task="另|一")
    report = report_of(*judged, pretraining=pretraining(tmp_path))
    text = report_markdown(report)
    assert text.startswith(f"**{report.verdict}**") and "```\nc\n```" in text
    assert "| 继续 | 80.8 ± 5.6 | 80.8 ± 5.6 |" in text and "**+9.8 ± 4.0**" in text
    titles = ["Evaluation: 茶事, against base", "Evaluation: 另|一, against base", "Pretraining"]
    assert re.findall("^### (.*)$", text, re.M) == titles
    other = replace(pretraining(tmp_path), run_folder=tmp_path / "models/general-bert", status="interrupted")
    report = report_of(bases=[pretraining(tmp_path), other])
    html = render(report)
    titles = ["Base model: r", "Base model: general-bert"]
    assert re.findall(r"<h2>(.*)</h2>", html) == [*titles, "How to repeat it"]
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids)) and sum(plot[0].text == "MLM loss" for plot in plots_of(html)) == 2
    assert re.findall("^### (.*)$", report_markdown(report), re.M) == titles
    assert report.warnings[0].startswith("general-bert was interrupted")
    assert read_report(write_report(report, tmp_path / "r")).bases == report.bases


def test_the_protocol_says_what_dev_chose_and_counts_starts_at_chance_level():
    stuck = tuple(replace(seed, left_chance=seed.seed > 0) for seed in BETTER.seeds)
    rule = replace(BETTER, name="rule", seeds=stuck)
    text = protocol(comparison(BASE, replace(BETTER, seeds=stuck), baselines=(rule,)))
    assert "2 starts at chance level were abandoned and restarted. " in text
    stayed = "1 of 3 of 继续, 1 of 3 of the baseline rule"
    assert f" restarted. Runs that stayed at chance level: {stayed}. " in text
    assert "Chance level on test is 50.0. " in text
    for metric, told in (("accuracy", True), ("macro_f1", False)):
        rare = protocol(replace(comparison(BASE, BETTER, chance=0.9), metric=metric))
        assert ("is 90.0, by one label for all; metric: macro_f1 in a task file" in rare) == told
    one_rate = [replace(one, sweep=()) for one in (BASE, BETTER)]
    assert "The best epoch is chosen on dev, test is scored once." in protocol(comparison(*one_rate))
    text = protocol(comparison(one_rate[0], BETTER))
    assert "The learning rate and the best epoch are chosen on dev, test is scored once." in text
