"""Fine-tuned models that are kept: transformers and `jixu predict` give the scores of training."""

import json

import numpy as np
import pytest
import torch
import transformers

from albert.__main__ import app
from albert.finetuning import (
    FineTuneRunning,
    FineTuneSettings,
    KeptModels,
    ModelRuns,
    fine_tune_one,
    load_fine_tuned,
    predict_file,
    prepare,
    read_task,
    run_key,
)
from albert.tasks import Task, load_task
from data.errors import InputError
from data.terminal import run_app
from tests.albert.checkpoints.arriving import save
from tests.conftest import copied, save_small_model

SENTENCES = ["采茶要早", "炒锅要热", "水要泡茶香", "热水泡茶", "早茶香", "锅热炒茶"]


def single(n=6):
    return "text\tlabel\n" + "".join(f"{SENTENCES[i % 6]}\t{'好坏'[i % 2]}\n" for i in range(n))


def several():
    return "text\tlabel\n" + "".join(
        f"{text}\t{label}\n"
        for text, label in zip(SENTENCES, ("甲", "", "乙,甲", "丙", "乙", "甲,乙,丙"), strict=True)
    )


def spans():
    asked = [
        {"context": text, "qas": [{"id": f"Q{i}", "question": "什么？", "answers": [{"text": text[-1]}]}]}
        for i, text in enumerate(SENTENCES)
    ]
    return json.dumps({"data": [{"paragraphs": asked}]}, ensure_ascii=False)


def tagged():
    rows = [f"{' '.join(text)}\tB-X{' O' * (len(text) - 1)}" for text in SENTENCES]
    return "\n".join(["text\tlabel", *rows]) + "\n"


def choices():
    return json.dumps(
        [[[text], [{"question": "？", "choice": ["茶", "水"], "answer": "水"}], "1"] for text in SENTENCES]
    )


def pairs():
    return "sentence1\tsentence2\tscore\n" + "".join(
        f"{text}\t茶香\t{i}\n" for i, text in enumerate(SENTENCES)
    )


KINDS = {
    "single": (Task(name="t"), ".tsv", single(), "cls", "AutoModelForSequenceClassification"),
    "several": (
        Task(name="t", kind="multilabel"),
        ".tsv",
        several(),
        "cls",
        "AutoModelForSequenceClassification",
    ),
    "span": (load_task("cmrc2018"), ".json", spans(), "mean", "AutoModelForQuestionAnswering"),
    "tokens": (load_task("msra_ner"), ".tsv", tagged(), "mean", "AutoModelForTokenClassification"),
    "choice": (load_task("c3"), ".json", choices(), "cls", "AutoModelForMultipleChoice"),
    "number": (load_task("stsb"), ".tsv", pairs(), "cls", "AutoModelForSequenceClassification"),
    "mean": (Task(name="t"), ".tsv", single(), "mean", "AutoModelForSequenceClassification"),
    "both": (Task(name="t"), ".tsv", single(), "cls+mean", "AutoModelForSequenceClassification"),
    "mean of a pair": (load_task("stsb"), ".tsv", pairs(), "mean", "AutoModelForSequenceClassification"),
    "mean of choices": (load_task("c3"), ".json", choices(), "mean", "AutoModelForMultipleChoice"),
}
BERT = {"layout": "bert", "share": "none", "embedding_size": 64}


def candidate(folder, tokenizer, kind, **shape):
    task, suffix, content, pooling, _ = KINDS[kind]
    file = folder / f"examples{suffix}"
    file.write_text(content, encoding="utf-8")
    settings = FineTuneSettings(
        task=task,
        train=copied(file),
        dev=file,
        models=(save_small_model(folder / "small", tokenizer, **shape),),
        seeds=(0, 1),
        epochs=2,
        running=FineTuneRunning(pooling=pooling, precision="fp32"),
    )
    return prepare(settings, read_task(settings), 0), file


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((kind, {}) for kind in KINDS), ("single", BERT), ("tokens", BERT), ("mean", BERT)],
    ids=str,
)
def test_a_kept_model_gives_the_same_scores_wherever_it_is_opened(
    kind, shape, tmp_path, tokenizer, monkeypatch
):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    one, file = candidate(tmp_path, tokenizer, kind, **shape)
    run = fine_tune_one(one, 0, 3e-3, tmp_path / "kept")
    predicted = predict_file(tmp_path / "kept", file)
    assert predicted.predictions.answers == run.dev.answers
    assert str(tmp_path) not in (tmp_path / "kept" / "task.json").read_text(encoding="utf-8")
    if run.dev.probabilities is not None:
        np.testing.assert_array_equal(predicted.predictions.probabilities, run.dev.probabilities)
    auto, is_pooled = getattr(transformers, KINDS[kind][4]), one.settings.running.pooling != "cls"
    is_pooled &= kind not in ("span", "tokens")
    if is_pooled:
        with pytest.raises(ValueError, match="trust_remote_code=True"):  # never opened as if it read [CLS]
            auto.from_pretrained(tmp_path / "kept", trust_remote_code=False)
    given = {"output_loading_info": True, "trust_remote_code": is_pooled}
    theirs, info = auto.from_pretrained(tmp_path / "kept", **given)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    encoded, ours = load_fine_tuned(tmp_path / "kept").scores(one.data.splits["dev"].examples)
    batch = encoded.choose(np.arange(len(encoded))).batch
    lengths = batch.cu_seqlens.diff().tolist()
    found = []
    for ids, types in zip(batch.input_ids.split(lengths), batch.token_type_ids.split(lengths), strict=True):
        given = {"input_ids": ids[None], "token_type_ids": types[None]}
        if is_pooled:  # with padding, which may not count
            given = {name: torch.nn.functional.pad(one, (0, 3)) for name, one in given.items()}
            given["attention_mask"] = torch.arange(len(ids) + 3)[None] < len(ids)
        if "choice" in kind:
            given = {name: value[None] for name, value in given.items()}
        with torch.no_grad():
            out = theirs.eval()(**given)
        found.append(
            torch.stack([out.start_logits[0], out.end_logits[0]], -1)
            if kind == "span"
            else out.logits.reshape(-1, ours.shape[-1])
        )
    np.testing.assert_allclose(torch.cat(found).numpy(), ours, atol=2e-6)
    if kind == "several":
        assert theirs.config.problem_type == "multi_label_classification"
        shares = torch.cat(found).sigmoid().numpy()
        np.testing.assert_allclose(predicted.predictions.probabilities, shares, atol=1e-6)
        named = [",".join(one for one, p in zip("丙乙甲", row, strict=True) if p > 0.5) for row in shares]
        assert list(predicted.predictions.answers) == named
    if predicted.record.labels:
        assert tuple(theirs.config.id2label.values()) == predicted.record.labels


def test_of_each_model_the_best_seed_on_dev_is_kept(tmp_path, tokenizer):
    one, _ = candidate(tmp_path, tokenizer, "single")
    runs = [fine_tune_one(one, seed, 3e-3) for seed in (0, 1)]
    again = []

    def keep(kept, name):
        def train(candidate, run):
            given = candidate, run.result.seed, run.result.learning_rate
            again.append(run.result.seed)
            fine_tune_one(*given, kept.place(run_key(*given)))

        kept.choose(ModelRuns(name=name, candidates=(one,), runs=runs), train)
        return sorted(path.name for path in kept.folder.iterdir())

    best, every = (KeptModels(tmp_path / str(every_seed), every_seed) for every_seed in (False, True))
    assert keep(best, "small") == keep(best, "small") == ["small"]  # is not trained once more
    assert keep(every, "small") == ["small-seed-0", "small-seed-1"]
    assert again == [max(runs, key=lambda run: run.result.dev["accuracy"]).result.seed, 0, 1]
    # each has a folder of its own, and none above
    assert [keep(best, name)[-1] for name in ("a b", "..", "模型 一")] == ["small", "small", "模型-一"]
    assert keep(best, "a-b") == ["a-b", "a-b-2", "model", "small", "模型-一"]


def test_what_cannot_predict_is_refused_in_a_line(tmp_path, tokenizer):
    one, _ = candidate(tmp_path, tokenizer, "single")
    with pytest.raises(InputError, match="no task.json in .*: it is not a fine-tuned model"):
        predict_file(tmp_path / "small", tmp_path / "x.tsv")
    fine_tune_one(one, 0, 3e-3, tmp_path / "kept")
    (tmp_path / "x.tsv").write_text("words\n茶\n", encoding="utf-8")
    with pytest.raises(InputError, match="no text column in .*columns: words"):
        predict_file(tmp_path / "kept", tmp_path / "x.tsv")
    (tmp_path / "kept" / "model.safetensors").write_bytes(
        (tmp_path / "small" / "model.safetensors").read_bytes()
    )
    with pytest.raises(InputError, match="has no head: no classifier.weight in model.safetensors"):
        predict_file(tmp_path / "kept", tmp_path / "examples.tsv")


def ids_of(tokenizer, *texts):
    """A sequence of one or two texts for transformers."""
    ids, types = [tokenizer.cls_id], [0]
    for number, text in enumerate(texts):
        ids += [*tokenizer.encode(text)[0].tolist(), tokenizer.sep_id]
        types += [number] * (len(ids) - len(types))
    return {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types])}


def wanted(kind, theirs, tokenizer, text):
    """What transformers' model predicts for a text of SENTENCES: the answer and its probabilities."""
    texts = {"span": ("什么？", text), "silent": ("什么？", text), "number": (text, "茶香")}.get(
        kind, (text,)
    )
    given = ids_of(tokenizer, *texts)
    if kind in ("choice", "blank"):
        passage, asked = (text, "？ ") if kind == "choice" else (f"____{text}", "")
        both = [ids_of(tokenizer, passage, f"{asked}{choice}") for choice in "茶水"]
        given = {name: torch.stack([one[name] for one in both], 1) for name in given}
    with torch.no_grad():
        out = theirs(**given)
    if kind in ("span", "silent"):
        start, end = (scores[0].softmax(-1) for scores in (out.start_logits, out.end_logits))
        ids = given["input_ids"][0].tolist()
        first = ids.index(tokenizer.sep_id) + 1
        at = [(i, j) for i in range(first, len(ids) - 1) for j in range(i, len(ids) - 1)]
        i, j = max(at, key=lambda place: float(start[place[0]] * end[place[1]]))
        nothing = float(start[0] * end[0])
        if kind == "silent" and nothing > float(start[i] * end[j]):
            return "", [nothing]
        return text[i - first : j - first + 1], [float(start[i] * end[j])]
    logits = out.logits[0]
    if kind == "number":
        return f"{float(logits[0]):.3f}", []
    if kind == "several":
        shares = logits.sigmoid().tolist()
        return ",".join(label for label, share in zip("甲乙丙", shares, strict=True) if share > 0.5), shares
    shares, best = logits.softmax(-1), logits.argmax(-1)
    if kind == "tokens":
        return " ".join(("O", "B-X", "I-X")[n] for n in best[1:-1]), shares.max(-1).values[1:-1].tolist()
    names = "茶水" if kind in ("choice", "blank") else ("O", "B-X", "I-X")
    return names[best], shares.tolist()


def without_labels(kind):
    """A file as CLUE publishes a test set, with ids from 10 on."""
    numbered = enumerate(SENTENCES, 10)
    if kind in ("span", "silent"):
        asked = [
            {"context": text, "qas": [{"id": f"Q{i}", "question": "什么？", "answers": []}]}
            for i, text in numbered
        ]
        return json.dumps({"data": [{"paragraphs": asked}]})
    if kind == "choice":
        return json.dumps(
            [[[text], [{"question": "？", "choice": ["茶", "水"], "id": i}], "1"] for i, text in numbered]
        )
    if kind == "blank":
        rows = [{"candidates": ["茶", "水"], "content": [f"#idiom{i}#{text}"]} for i, text in numbered]
    elif kind == "number":
        rows = [{"id": i, "sentence1": text, "sentence2": "茶香"} for i, text in numbered]
    else:
        rows = [*({"id": i, "text": text} for i, text in numbered), {"id": 16, "text": ""}]
    return "".join(json.dumps(row) + "\n" for row in rows)


def submitted(kind, content):
    """The answers of CLUE's submission by id, as a table has them."""
    if kind in ("span", "silent", "blank"):
        found = json.loads(content)
    else:
        lines = [json.loads(line) for line in content.splitlines()]
        assert all(list(line) == ["id", "label"] for line in lines)
        assert [line["id"] for line in lines] == list(range(len(SENTENCES)))  # whatever the rows' own
        found = {str(number): line["label"] for number, line in enumerate(lines, 10)}
    if kind in ("choice", "blank"):
        return {name: "茶水"[place] for name, place in found.items()}
    if kind == "several":
        return {name: ",".join(labels) for name, labels in found.items()}
    return found


def entities(text, tags):
    """CLUENER's form of tags that have one kind."""
    found = {}
    for first in range(len(tags)):
        if tags[first] == "B-X" or (tags[first] == "I-X" and (not first or tags[first - 1] == "O")):
            beyond = next((i for i in range(first + 1, len(tags)) if tags[i] != "I-X"), len(tags))
            found.setdefault(text[first:beyond], []).append([first, beyond - 1])
    return {"X": found} if found else {}


@pytest.mark.parametrize(
    "kind", ["single", "several", "number", "choice", "blank", "tokens", "span", "silent"]
)
def test_a_model_that_trainer_saved_predicts_what_transformers_does(kind, tmp_path, tokenizer, capsys):
    name = KINDS[{"silent": "span", "blank": "choice"}.get(kind, kind)][4].replace("AutoModel", "Bert")
    options = {"id2label": dict(enumerate(("O", "B-X", "I-X")))} if kind in ("single", "tokens") else {}
    if kind == "several":
        options = {"id2label": dict(enumerate("甲乙丙")), "problem_type": "multi_label_classification"}
    elif kind == "number":
        options = {"num_labels": 1}
    save(tmp_path / "saved", tokenizer, name, **options)
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "saved").eval()
    if kind == "silent":
        with torch.no_grad():  # the first token's state is likeliest
            states = theirs.bert(**ids_of(tokenizer, "什么？", SENTENCES[0])).last_hidden_state[0]
            theirs.qa_outputs.weight.copy_(states[0] - states[1:].mean(0))
        theirs.save_pretrained(tmp_path / "saved")
    (tmp_path / "test.json").write_text(without_labels(kind), encoding="utf-8")
    (tmp_path / "silent.yaml").write_text("{name: t, kind: span, answers: squad2}")
    given = ["predict", "--model", str(tmp_path / "saved"), "--input", str(tmp_path / "test.json")]
    given += ["--task", str(tmp_path / "silent.yaml")] if kind == "silent" else []
    capsys.readouterr()  # transformers' progress bar
    assert run_app(app, given) == 0
    printed = capsys.readouterr()
    is_lacking = "1 row(s) could not be read" in printed.err
    assert is_lacking is (kind in ("single", "several", "tokens"))
    given += ["--output", str(tmp_path / "out.json")]
    if is_lacking:
        assert run_app(app, given) == 2 and "CLUE numbers the lines" in capsys.readouterr().err
        lines = without_labels(kind).splitlines(keepends=True)
        (tmp_path / "test.json").write_text("".join(lines[:-1]), encoding="utf-8")
    assert run_app(app, given) == 0
    rows = [line.split("\t") for line in printed.out.splitlines()[1 : 1 + len(SENTENCES)]]
    said = [wanted(kind, theirs, tokenizer, text) for text in SENTENCES]
    assert [row[1] for row in rows] == [answer for answer, _ in said]
    for row, (_, shares) in zip(rows, said, strict=True):
        assert [float(one) for cell in row[2:] for one in cell.split()] == pytest.approx(shares, abs=1e-5)
    assert any(row[1] == "" for row in rows) is (kind == "silent")
    assert [int(row[0].strip("#Qidom")) for row in rows] == list(range(10, 16))
    answers = {row[0]: row[1] for row in rows}
    if kind == "tokens":
        tags = (answers[row[0]].split() for row in rows)
        answers = dict(zip(answers, map(entities, SENTENCES, tags), strict=True))
    assert submitted(kind, (tmp_path / "out.json").read_text(encoding="utf-8")) == answers
