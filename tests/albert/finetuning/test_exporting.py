"""Fine-tuned models that are kept: transformers and `jixu predict` give the scores of training."""

import csv
import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from albert.finetuning import (
    KeptModels,
    ModelRuns,
    fine_tune_one,
    load_fine_tuned,
    predict_file,
    read_fine_tuned,
    run_key,
)
from albert.reports import write_card, write_report
from albert.tasks import Task, load_task
from data.errors import InputError
from tests.albert.checkpoints.arriving import save
from tests.albert.finetuning.examples import choices, numbers, prepared, settings_of, spans, table, tagged
from tests.albert.report_samples import comparison, model, report_of
from tests.commands import refused, run_here
from tests.conftest import save_small_model

SENTENCES = ["采茶要早", "炒锅要热", "水要泡茶香", "热水泡茶", "早茶香", "锅热炒茶"]


def single():
    return "text\tlabel\n" + "".join(f"{text}\t{'好坏'[i % 2]}\n" for i, text in enumerate(SENTENCES))


def several():
    labels = ("甲", "", "乙,甲", "丙", "乙", "甲,乙,丙")
    rows = (f"{text}\t{label}\n" for text, label in zip(SENTENCES, labels, strict=True))
    return "text\tlabel\n" + "".join(rows)


RNG = np.random.default_rng(0)
KINDS = {
    "single": (Task(name="t"), ".tsv", single(), "cls"),
    "several": (Task(name="t", kind="multilabel"), ".tsv", several(), "cls"),
    "span": (load_task("cmrc2018"), ".json", spans(RNG, 6), "mean"),
    "tokens": (load_task("msra_ner"), ".tsv", tagged(RNG, 6), "mean"),
    "choice": (load_task("c3"), ".json", choices(RNG, 6), "cls"),
    "number": (load_task("stsb"), ".tsv", numbers(RNG, 6), "cls"),
    "mean": (Task(name="t"), ".tsv", single(), "mean"),
    "both": (Task(name="t"), ".tsv", single(), "cls+mean"),
    "mean of a pair": (load_task("stsb"), ".tsv", numbers(RNG, 6), "mean"),
    "mean of choices": (load_task("c3"), ".json", choices(RNG, 6), "mean"),
}
# transformers' classes; every other kind is of SequenceClassification
CLASSES = {"span": "QuestionAnswering", "tokens": "TokenClassification", "choice": "MultipleChoice"}
CLASSES["mean of choices"] = CLASSES["choice"]
BERT = {"layout": "bert", "share": "none", "embedding_size": 64}


def candidate(folder, tokenizer, kind, **shape):
    task, suffix, content, pooling = KINDS[kind]
    file = folder / f"examples{suffix}"
    file.write_text(content, encoding="utf-8")
    model = save_small_model(folder / "small", tokenizer, **shape)
    running = {"pooling": pooling, "precision": "fp32"}
    return prepared(settings_of(task, file, model, seeds=(0, 1), epochs=2, running=running)), file


def their_scores(theirs, encoded, kind, padding=0):
    """The scores that transformers' model gives each sequence, or in groups each token."""
    batch, found = encoded.choose(np.arange(len(encoded))).batch, []
    lengths = batch.cu_seqlens.diff().tolist()
    for ids, types in zip(batch.input_ids.split(lengths), batch.token_type_ids.split(lengths), strict=True):
        given = {"input_ids": ids, "token_type_ids": types, "attention_mask": torch.ones_like(ids)}
        given = {name: torch.nn.functional.pad(one, (0, padding))[None] for name, one in given.items()}
        if "choice" in kind:
            given = {name: value[None] for name, value in given.items()}
        with torch.no_grad():
            out = theirs(**given)
        if kind == "span":
            found.append(torch.stack([out.start_logits[0], out.end_logits[0]], -1))
        else:
            found.append(out.logits.reshape(-1, 1 if "choice" in kind else out.logits.shape[-1]))
    return torch.cat(found).numpy()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((kind, {}) for kind in KINDS), ("single", BERT), ("tokens", BERT), ("mean", BERT)],
    ids=str,
)
def test_a_kept_model_gives_the_same_scores_wherever_it_opens(kind, shape, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    one, file = candidate(tmp_path, tokenizer, kind, **shape)
    run = fine_tune_one(one, 0, 3e-3, tmp_path / "kept")
    predicted = predict_file(str(tmp_path / "kept"), str(file))
    assert predicted.predictions.answers == run.dev.answers
    assert str(tmp_path) not in (tmp_path / "kept" / "task.json").read_text(encoding="utf-8")
    if run.dev.probabilities is not None:
        np.testing.assert_array_equal(predicted.predictions.probabilities, run.dev.probabilities)
    auto = getattr(transformers, f"AutoModelFor{CLASSES.get(kind, 'SequenceClassification')}")
    is_pooled = one.settings.running.pooling != "cls" and kind not in ("span", "tokens")
    if is_pooled:
        with pytest.raises(ValueError, match="trust_remote_code=True"):  # never opened as if it read [CLS]
            auto.from_pretrained(tmp_path / "kept", trust_remote_code=False)
    given = {"output_loading_info": True, "trust_remote_code": is_pooled}
    theirs, info = auto.from_pretrained(tmp_path / "kept", **given)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    encoded, ours = load_fine_tuned(tmp_path / "kept").scores(one.data.splits["dev"].examples)
    found = their_scores(theirs.eval(), encoded, kind, padding=3 if is_pooled else 0)  # which may not count
    np.testing.assert_allclose(found, ours, atol=2e-6)
    if kind == "several":
        assert theirs.config.problem_type == "multi_label_classification"
        shares = 1 / (1 + np.exp(-found))
        np.testing.assert_allclose(predicted.predictions.probabilities, shares, atol=1e-6)
        named = [",".join(one for one, p in zip("丙乙甲", row, strict=True) if p > 0.5) for row in shares]
        assert list(predicted.predictions.answers) == named
    if predicted.record.labels:
        assert tuple(theirs.config.id2label.values()) == predicted.record.labels
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "kept", trust_remote_code=is_pooled)
    assert opened.model_max_length == predicted.record.running.max_seq_length


def keep(kept, one, runs, name="small"):
    """Keep runs of a candidate; returns the seeds that were trained again, and what the folder holds."""
    again = []

    def train(run):
        again.append(run.seed)
        fine_tune_one(*run, kept.begin(run_key(*run)))

    kept.choose([ModelRuns(name=name, candidates=(one,), runs=runs)], train)
    return again, sorted(path.name for path in kept.folder.iterdir())


def test_of_each_model_the_best_seed_on_dev_is_kept_though_a_process_dies(tmp_path, tokenizer, monkeypatch):
    one, _ = candidate(tmp_path, tokenizer, "single")
    runs = [fine_tune_one(one, seed, 3e-3) for seed in (0, 1)]
    best, every = (KeptModels(tmp_path / str(every_seed), every_seed) for every_seed in (False, True))
    chosen = max(runs, key=lambda run: run.result.dev["accuracy"]).result.seed
    assert keep(best, one, runs) == ([chosen], ["small"])
    assert keep(best, one, runs) == ([], ["small"])
    assert keep(every, one, runs) == ([0, 1], ["small-seed-0", "small-seed-1"])
    # each has a folder of its own, and none above
    found = [keep(best, one, runs, name)[1][-1] for name in ("a b", "..", "模型 一")]
    assert found == ["small", "small", "模型-一"]
    assert keep(best, one, runs, "a-b")[1] == ["a-b", "a-b-2", "model", "small", "模型-一"]
    # whole and alone wherever a process was killed: while it wrote the weights or removed the model before
    kept = KeptModels(tmp_path / "kept", False)

    def die(folder, **options):
        for path in folder.glob("task.json"):
            path.unlink()
        if folder.exists():
            raise KeyboardInterrupt

    first = kept.place(run_key(one, 0, 3e-3))
    first.mkdir(parents=True)
    (first / "model.safetensors.0123abcd.tmp").touch()
    keep(kept, one, runs[:1])
    assert not list((kept.folder / "small").glob("*.tmp"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", die)
        keep(kept, one, runs[1:])
    assert keep(kept, one, runs[1:])[1] == ["small"]
    assert read_fine_tuned(kept.folder / "small").run == run_key(one, 1, 3e-3)


def test_of_finished_runs_the_best_weights_stay(tmp_path, tokenizer):
    one, _ = candidate(tmp_path, tokenizer, "single")
    kept = KeptModels(tmp_path / "kept", every_seed=False)
    for key in "abcd":
        kept.place(key).mkdir(parents=True)
    # the first decided how many seeds there are, and comes again
    for key, score in (("a", 0.5), ("a", 0.5), ("b", 0.7), ("c", 0.7)):
        kept.drop_worse(one, key, score)
        assert kept.place("a").exists() == (key == "a")
    of_test = replace(one, encoded=one.encoded | {"test": one.encoded["dev"]})
    kept.drop_worse(of_test, "d", 0.1)  # those of a sweep have no test
    every = KeptModels(tmp_path / "kept", every_seed=True)
    for key, score in (("b", 0.7), ("d", 0.1)):
        every.drop_worse(one, key, score)
    assert [kept.place(key).exists() for key in "bcd"] == [True, False, True]


def test_what_cannot_predict_is_refused_in_a_line(tmp_path, tokenizer):
    one, _ = candidate(tmp_path, tokenizer, "single")
    with pytest.raises(InputError, match="no task.json in .*: it is not a fine-tuned model"):
        predict_file(tmp_path / "small", tmp_path / "x.tsv")
    fine_tune_one(one, 0, 3e-3, tmp_path / "kept")
    (tmp_path / "x.tsv").write_text("words\n茶\n", encoding="utf-8")
    with pytest.raises(InputError, match="no text column in .*columns: words"):
        predict_file(tmp_path / "kept", tmp_path / "x.tsv")
    with (tmp_path / "kept" / "vocab.txt").open("a", encoding="utf-8") as vocabulary:
        vocabulary.write("另一词\n")
    with pytest.raises(InputError, match="the vocabulary for .*: they do not belong together"):
        predict_file(tmp_path / "kept", tmp_path / "examples.tsv")
    shutil.copy(tmp_path / "small" / "model.safetensors", tmp_path / "kept")
    with pytest.raises(InputError, match="has no head: no classifier.weight in model.safetensors"):
        predict_file(tmp_path / "kept", tmp_path / "examples.tsv")
    os.truncate(tmp_path / "kept" / "task.json", 20)
    with pytest.raises(InputError, match="task.json cannot be read as JSON"):
        predict_file(tmp_path / "kept", tmp_path / "examples.tsv")


@pytest.mark.parametrize("names", ["text_a text_b score", "text_a score"])
def test_a_model_of_pairs_reads_no_single_texts_nor_the_reverse(names, tmp_path, tokenizer):
    """Where a kind of task has both, such as numbers."""
    texts = names.count("text")
    rows = [(*(text, "茶香")[:texts], number) for number, text in enumerate(SENTENCES)]
    file = table(tmp_path / "train.tsv", names, rows)
    model = save_small_model(tmp_path / "small", tokenizer)
    settings = settings_of(Task(name="t", kind="regression"), file, model, epochs=1)
    fine_tune_one(prepared(settings), 0, 3e-3, tmp_path / "kept")
    assert len(predict_file(tmp_path / "kept", file).examples) == len(rows)
    others = table(tmp_path / "new.tsv", "text_a other" if texts == 2 else "text_a text_b", [("茶", "水")])
    kinds = ["single texts", "pairs of texts"]
    with pytest.raises(InputError, match=f"has {kinds[2 - texts]}, .* learnt from {kinds[texts - 1]}:"):
        predict_file(tmp_path / "kept", others)
    named = Task(name="t", kind="regression", columns={"text": "text_a", "pair": "other"})
    if texts == 2:
        assert len(predict_file(tmp_path / "kept", others, named).examples) == 1


def without_labels(kind):
    """A file as CLUE publishes a test set, with ids from 10 on."""
    numbered = enumerate(SENTENCES, 10)
    if kind == "span":
        asked = [(text, {"id": f"Q{i}", "question": "什么？", "answers": []}) for i, text in numbered]
        return json.dumps({"data": [{"paragraphs": [{"context": text, "qas": [qa]} for text, qa in asked]}]})
    if kind == "choice":
        asked = [(text, {"question": "？", "choice": ["茶", "水"], "id": i}) for i, text in numbered]
        return json.dumps([[[text], [question], "1"] for text, question in asked])
    if kind == "blank":
        rows = [{"candidates": ["茶", "水"], "content": [f"#idiom{i}#{text}"]} for i, text in numbered]
    elif kind == "number":
        rows = [{"id": i, "sentence1": text, "sentence2": "茶香"} for i, text in numbered]
    else:
        rows = [{"id": i, "text": text} for i, text in numbered]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("kind", ["single", "several", "number", "choice", "blank", "tokens", "span"])
def test_a_model_that_trainer_saved_predicts_by_transformers_scores(kind, tmp_path, tokenizer):
    like = "choice" if kind == "blank" else kind
    name = f"BertFor{CLASSES.get(like, 'SequenceClassification')}"
    labels = {"single": "甲乙丙丁戊己庚辛壬癸子丑", "several": "甲乙丙", "tokens": ('"L_0"', "B-X", "I-X")}
    options = {"id2label": dict(enumerate(labels[kind]))} if kind in labels else {}
    if kind == "several":
        options["problem_type"] = "multi_label_classification"
    elif kind == "number":
        options = {"num_labels": 1}
    save(tmp_path / "saved", tokenizer, name, **options)
    config = tmp_path / "saved" / "config.json"  # sorted, labels are in the order of 0, 1, 10, 11, 2, ...
    config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")), sort_keys=True))
    (tmp_path / "test.json").write_text(without_labels(kind), encoding="utf-8")
    found = predict_file(tmp_path / "saved", tmp_path / "test.json")
    assert [int(one.id.strip("#Qidom")) for one in found.examples] == list(range(10, 16))
    assert found.record.labels == tuple(labels.get(kind, ()))
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "saved").eval()
    encoded, ours = load_fine_tuned(tmp_path / "saved").scores(found.examples)
    np.testing.assert_allclose(their_scores(theirs, encoded, like), ours, atol=1e-5)
    rows = [line.split("\t") for line in found.table().splitlines()[1:]]
    assert [*csv.reader(found.table(",").splitlines()[1:])] == rows
    answers, said = list(found.predictions.answers), found.predictions
    assert [row[1] for row in rows] == ([*map(" ".join, said.tags)] if kind == "tokens" else answers)
    shares = said.confidence if said.probabilities is None else said.probabilities
    for row, wanted in zip(rows, [()] * 6 if shares is None else shares, strict=True):
        assert [float(one) for cell in row[2:] for one in cell.split()] == pytest.approx([*wanted], abs=1e-6)
    if kind in ("choice", "blank"):
        answers = ["茶水".index(one) for one in answers]
    elif kind == "several":
        answers = [one.split(",") if one else [] for one in answers]
    elif kind == "tokens":  # CLUENER's form
        tags = ("B-X", "I-X", "B-X")
        found = replace(found, predictions=replace(said, tags=(tags,) * 6))
        answers = [{"X": {text[:2]: [[0, 1]], text[2]: [[2, 2]]}} for text in SENTENCES]
    if kind in ("span", "blank"):  # one object of all answers
        assert json.loads(found.submission()) == {row[0]: one for row, one in zip(rows, answers, strict=True)}
        with pytest.raises(InputError, match="6 questions have 1 ids"):
            replace(found, examples=found.examples[:1] * 6).submission()
    else:  # an object a line, numbered whatever the rows' own ids
        lines = [json.loads(line) for line in found.submission().splitlines()]
        assert lines == [{"id": number, "label": one} for number, one in enumerate(answers)]


def test_predictions_are_printed_and_a_submission_lacks_no_row(tmp_path, tokenizer):
    save(tmp_path / "saved", tokenizer, "BertForSequenceClassification", id2label={0: "好", 1: "坏"})
    rows = without_labels("single") + '{"id": 16, "text": ""}\n'
    (tmp_path / "test.json").write_text(rows, encoding="utf-8")
    given = ["predict", "--model", tmp_path / "saved", "--input", tmp_path / "test.json"]
    done = run_here(*given)
    assert done.returncode == 0 and "1 row(s) could not be read" in done.stderr
    assert done.stdout.startswith("id\tprediction\t好\t坏\n10\t")
    for task in ("stsb", "stsb-probe"):  # of one number, and of none
        refused(run_here(*given, "--task", task), f"its head does not fit task {task}")
    given += ["--output", tmp_path / "out.json"]
    refused(run_here(*given), "CLUE numbers the lines")
    (tmp_path / "test.json").write_text(without_labels("single"), encoding="utf-8")
    assert run_here(*given).returncode == 0 and len((tmp_path / "out.json").read_text().splitlines()) == 6
    for path, message in (("out.json", "is the input"), ("misspelt.json", "no file")):
        given[4] = tmp_path / path
        refused(run_here(*given), message)


def test_a_task_says_that_trainers_answers_may_be_missing(tmp_path, tokenizer):
    save(tmp_path / "saved", tokenizer, "BertForQuestionAnswering")
    for task, may_lack in ((None, False), (Task(name="t", kind="span", answers="squad2"), True)):
        assert load_fine_tuned(tmp_path / "saved", task).learner.has_unanswerable is may_lack
    for answers, may_lack in (([{"text": "茶", "answer_start": 1}], False), ([], True)):  # as in training
        asked = {"id": "1", "question": "何物？", "answers": answers, "is_impossible": may_lack}
        paragraph = {"context": "采茶", "qas": [asked]}
        (tmp_path / "t.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
        found = prepared(settings_of("squad2", tmp_path / "t.json", tmp_path / "saved"))
        assert found.learner.has_unanswerable is may_lack


def test_a_card_has_the_scores_of_the_models_own_run(tmp_path, tokenizer):
    one, _ = candidate(tmp_path, tokenizer, "single")
    folder = tmp_path / "models" / "r" / "small"
    fine_tune_one(one, 0, 1e-3, folder)
    page = tmp_path / "reports" / "r"
    elsewhere = model("small", [0.9, 0.9], checksums=(one.checksum,))
    for others in (comparison(model("other", [0.6, 0.6]), task="t"), comparison(elsewhere, task="another")):
        write_report(report_of(others), page)
        with pytest.raises(InputError, match="has no scores of .*small, which this model was made from"):
            write_card(folder)
    of_runs = {"the mean of 1 run.": [0.8], "the mean of 2 runs; this one was the best on dev": [0.0, 0.0]}
    for said, accuracies in of_runs.items():
        own = model("small", accuracies, checksums=(one.checksum,))
        other = model("other", [0.6] * len(accuracies))
        write_report(report_of(comparison(elsewhere, task="another"), comparison(other, own, task="t")), page)
        card = write_card(folder)
        text = card.read_text(encoding="utf-8")
        assert f"| small | {100 * accuracies[0]:.1f}" in text and said in text
        card.unlink()
