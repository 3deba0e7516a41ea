"""Simple methods find what they can find, and stand in the report beside the models."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from albert.evaluation import chance_of
from albert.finetuning import fine_tune, read_task, train_models
from albert.finetuning.baselines import rule_runs
from albert.tasks import Task
from tests.albert.checkpoints.test_auto_models import save_other
from tests.albert.finetuning.examples import filler, prepared, settings_of, table
from tests.albert.report_samples import report_of
from tests.conftest import change_tensors, save_small_model


def scores_of(task, path, model, **changes):
    """The main metric of each rule, by its name."""
    candidate = prepared(settings_of(task, path, model, **changes))
    metric = candidate.data.task.metrics[0]
    return {named.name: run.result.dev[metric] for named, run in rule_runs(candidate)}


def test_a_word_decides_a_label(tmp_path, model_folder):
    rng = np.random.default_rng(0)
    rows = [(filler(rng) + ("香" if n % 3 else "苦"), "好" if n % 3 else "坏") for n in range(60)]
    path = table(tmp_path / "t.tsv", "text label", rows)
    assert scores_of("mine", path, model_folder) == {"character TF-IDF, logistic regression": 1.0}
    for n, (text, label) in enumerate(rows):
        rows[n] = (text + "园", f"{label},园") if n % 6 in (0, 1, 3) else (text, label)
    path = table(tmp_path / "several.tsv", "text label", rows)
    (tmp_path / "several.yaml").write_text("name: several\nkind: multilabel\n")
    found = scores_of(str(tmp_path / "several.yaml"), path, model_folder)
    assert found == {"character TF-IDF, logistic regression": 1.0}
    # nothing is to be learnt of a label that all texts have, or none
    always = table(tmp_path / "always.tsv", "text label", [(text, f"{label},茶") for text, label in rows])
    task = Task(name="t", kind="multilabel", labels=("好", "坏", "园", "茶", "水"))
    assert scores_of(task, always, model_folder) == found
    data = read_task(settings_of(str(tmp_path / "several.yaml"), path, model_folder))
    # 40 of 60 texts have 好, 30 have 园, 20 have 坏: the first two, for each text, are right in 70 of 120;
    # all three have the best mean F1; 30 texts have 好 alone
    best = {"micro_f1": 2 * 70 / (120 + 90), "macro_f1": (80 / 100 + 60 / 90 + 40 / 80) / 3}
    for metric, chance in (best | {"exact_match": 30 / 60}).items():
        one = replace(data, task=replace(data.task, metric=metric))
        assert chance_of(one, data.splits["dev"]) == pytest.approx(chance)


def test_pairs_with_the_same_letters_are_alike(tmp_path, model_folder):
    rng = np.random.default_rng(0)
    pairs = [(a := filler(rng), a[::-1] if n % 2 else filler(rng, 3) + "香苦山高", n % 2) for n in range(60)]
    path = table(tmp_path / "t.tsv", "sentence1 sentence2 label", pairs)
    found = scores_of("mine", path, model_folder)
    assert found["threshold on common characters"] == 1.0 and len(found) == 2
    path = table(tmp_path / "n.tsv", "sentence1 sentence2 score", pairs)
    numbers = scores_of("stsb-probe", path, model_folder)
    assert numbers["cosine of character TF-IDF"] > 0.7
    trained = scores_of("stsb", path, model_folder)
    assert trained["cosine of character TF-IDF"] > 0.7
    # with the strength that is best on dev; with 1 it is 0.9996
    assert trained["character TF-IDF, ridge regression"] > 0.99999
    rare = table(tmp_path / "r.tsv", "sentence1 sentence2 score", [(a, b, 1e-7 * n) for a, b, n in pairs])
    assert scores_of("stsb", rare, model_folder) == pytest.approx(trained, abs=1e-5)
    same = table(tmp_path / "s.tsv", "sentence1 sentence2 score", [("香", "香", n) for _, _, n in pairs])
    ((_, run),) = rule_runs(prepared(settings_of("stsb-probe", same, model_folder)))
    assert run.dev_score == 0 and not run.result.left_chance
    # rare characters that both have tell more than usual ones, however many there are
    rare = ["".join(chr(0x4E00 + 4 * n + m) for m in range(4)) for n in range(2000)]
    pairs = [(filler(rng) + a, filler(rng) + rare[n % 2 * n][::-1], n % 2) for n, a in enumerate(rare)]
    path = table(tmp_path / "many.tsv", "sentence1 sentence2 score", pairs)
    assert scores_of("stsb-probe", path, model_folder)["cosine of character TF-IDF"] > 0.8


TAGS = "香 山 采 茶\tB-LOC I-LOC O O\n山 水 香 茶\tO O O O\n热 香 山 水\tO B-LOC I-LOC O\n"
ANSWER = {"id": "1", "question": "香山产茶叶的人是谁？", "answers": [{"text": "王五", "answer_start": 13}]}
PARAGRAPH = {"context": "采茶要早。香山产茶叶的人是王五。炒锅热水。", "qas": [ANSWER]}
CHOICE = {"question": "哪个？", "choice": ["热水泡茶", "香山采茶", "苦"], "answer": "香山采茶"}


@pytest.mark.parametrize(
    "task, content",
    [
        ("msra_ner", f"text_a\tlabel\n{TAGS}"),
        ("cmrc2018", json.dumps({"data": [{"paragraphs": [PARAGRAPH]}]})),
        ("c3", json.dumps([[["他去香山采茶了"], [CHOICE], "1"]])),
    ],
    ids=[
        "tags follow a token's neighbours",
        "an answer is what the question lacks in the sentence that resembles it",
        "the choice that the passage has is taken",
    ],
)
def test_the_rule_of_a_kind_finds_what_it_can(task, content, tmp_path, model_folder):
    path = tmp_path / ("t.tsv" if task == "msra_ner" else "t.json")
    path.write_text(content, encoding="utf-8")
    assert set(scores_of(task, path, model_folder).values()) == {1.0}
    if task == "msra_ner":  # from the training examples, not from those that it is scored on
        (tmp_path / "dev.tsv").write_text(content.replace("O O\n", "O B-LOC\n"), encoding="utf-8")
        assert max(scores_of(task, path, model_folder, dev=tmp_path / "dev.tsv").values()) < 1


def test_a_model_not_clearly_above_a_simple_method_is_named_at_the_top(tmp_path, model_folder):
    rng = np.random.default_rng(0)
    rows = [(filler(rng, 9) + ("香" if n % 2 else "苦"), n % 2) for n in range(20)]
    path = table(tmp_path / "t.tsv", "text label", rows)
    # a rate that teaches nothing
    without = settings_of("mine", path, model_folder, epochs=1, learning_rate=1e-9, seeds=(3, 4, 5))
    result = fine_tune(replace(without, baselines="yes"))
    rule, random = result.baselines
    assert (rule.name, random.name) == ("character TF-IDF, logistic regression", "random weights")
    assert rule.dev["accuracy"].mean == 1 and [seed.seed for seed in random.seeds] == [3, 4, 5]
    (model,) = result.models
    judged = f"accuracy on mine dev: {model.name}"
    told = re.compile(rf"(.+) a baseline in {judged} \((.+)\). The baseline, (.+), has")
    of_rule, of_random = (told.match(line).groups() for line in report_of(result).warnings[:2])
    gain = 100 * (model.dev["accuracy"].mean - 1)
    assert of_rule[0] == "Below" and float(of_rule[1].split(" ± ")[0].replace("−", "-")) == round(gain, 1)
    assert of_rule[2] == rule.name and of_random[0] == "Not clearly above"  # no run of both left chance level
    assert fine_tune(without).baselines == ()


@pytest.mark.parametrize("name", ["ours", "deberta"])  # whose LayerNorm is a class of its own
def test_random_weights_are_the_seeds_whatever_the_model_has_learnt(name, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("albert.runtime.usual_precision", lambda device: "bf16")  # in which DeBERTa fails
    path = table(tmp_path / "t.tsv", "text label", [("香茶", 1), ("苦水", 0)])
    rate, found = {"learning_rate": 1e-9, "epochs": 1, "baselines": "yes"}, []
    for learnt in (0, 1):
        folder = tmp_path / f"{learnt}"
        save_small_model(folder, tokenizer) if name == "ours" else save_other(name, folder, tokenizer)
        change_tensors(folder, lambda name, value, learnt=learnt: {name: value + learnt})
        settings = settings_of("mine", path, folder, seeds=(3, 4), **rate)
        torch.manual_seed(learnt)  # decides nothing either
        _, (_, random) = train_models(settings, read_task(settings))
        found.append([one.probabilities.tolist() for one in random.predictions])
    (first, second), again = found
    assert [first, second] == again and first != second
    assert first[0] != first[1]  # tells texts apart
