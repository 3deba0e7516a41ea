import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from albert.batching import InstanceStream
from data.errors import InputError
from data.tokenization import WordPieceTokenizer, load_tokenizer
from flows.experiment import (
    ARCHITECTURES,
    EXPERIMENTS,
    ExperimentFiles,
    double_labels,
    first_lines,
    write_sentences,
)
from flows.experiment.flawed_control import group_by_labels
from flows.fine_tune import default_facts
from flows.lcqmc_experiment import facts_of
from flows.orchestration import CorporaOptions
from tests.albert.report_samples import pretraining
from tests.commands import run_here
from tests.conftest import few_examples, few_texts, sample_sentences, save_small_model
from tests.corpora import make_corpus

PAIRS = {
    "train": [("龙井茶怎么泡", "怎么泡龙井茶", 1), ("普洱茶多少钱", "红茶多少钱", 0)],
    "dev": [("怎么泡龙井茶", "龙井茶如何冲泡", 1), ("绿茶香吗", "白茶香吗", 0)],
    "test": [("喝茶会失眠吗", "喝茶睡不着吗", 1), ("茶叶能放多久", "茶叶保质期多久", 1)],
}


@pytest.fixture
def files(tmp_path):
    for split, pairs in PAIRS.items():
        lines = ["text_a\ttext_b\tlabel", *("\t".join(map(str, pair)) for pair in pairs)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ExperimentFiles("lcqmc", *(tmp_path / f"{split}.tsv" for split in PAIRS))


def documents(path):
    return [block.split("\n") for block in path.read_text(encoding="utf-8").strip().split("\n\n")]


def test_each_arm_changes_what_its_name_says():
    changed = []
    arms = EXPERIMENTS["lcqmc"].arms
    for before, after in zip(arms, arms[1:], strict=False):
        names = ("documents", "splits", "is_guarded", "sop", "max_ngram", "masking", "doubles_labels")
        names += ("optimizer", "learning_rate", "batch_tokens", "mix")
        changed.append({name for name in names if getattr(before, name) != getattr(after, name)})
    assert changed == [
        {"doubles_labels"},
        {"sop"},
        {"learning_rate"},
        {"optimizer", "learning_rate", "batch_tokens"},
        {"max_ngram", "masking"},
        {"mix"},
        {"documents", "sop"},
        {"splits", "is_guarded"},
    ]
    for experiment in EXPERIMENTS.values():  # arms of one corpus make it the same way
        made = {}
        for arm in experiment.arms:
            recipe = (arm.documents, arm.splits, arm.is_guarded, arm.sop, arm.max_ngram)
            assert made.setdefault(arm.corpus, recipe) == recipe


def test_every_corpus_that_a_model_has_read_is_known(files, tmp_path):
    arms = EXPERIMENTS["lcqmc"].arms
    facts = facts_of(arms, [pretraining(tmp_path)] * (1 + len(arms)), files)
    assert [one.corpora for one in facts[:2]] == [("general",), ("general", "lcqmc-grouped-sop")]
    corpora = CorporaOptions(domain="lcqmc-clean", general="general")
    probed = [one.corpora_to_probe(corpora).domain for one in facts]
    # the arms before the last two have read its sentences, the held-out ones too, in documents of their own
    assert probed == ["lcqmc-clean", *[None] * (len(arms) - 2), *["lcqmc-clean"] * 2]
    assert {one.corpora_to_probe(corpora).general for one in facts} == {"general"}
    before, after, other = default_facts(CorporaOptions(domain="tea", general="general"), 3)
    assert before.corpora == ("general",) and after.corpora == other.corpora == ("general", "tea")
    assert [one.corpora for one in default_facts(CorporaOptions(domain="tea"), 1)] == [("tea",)]


def test_the_flawed_documents_are_grouped_by_gold_labels_of_all_splits(files, tmp_path):
    flawed, clean = EXPERIMENTS["lcqmc"].arms[0], EXPERIMENTS["lcqmc"].arms[-1]
    grouped = documents(tmp_path / write_sentences(flawed, files, tmp_path)[0])
    assert ["龙井茶怎么泡", "怎么泡龙井茶", "龙井茶如何冲泡"] in grouped
    assert ["喝茶会失眠吗", "喝茶睡不着吗"] in grouped and ["普洱茶多少钱"] in grouped
    alone = documents(tmp_path / write_sentences(clean, files, tmp_path)[0])
    assert alone == [[text] for a, b, _ in PAIRS["train"] for text in (a, b)]


def test_groups_are_joined_whatever_the_order():
    pairs = [("c", "d", True), ("a", "b", True), ("d", "a", True)]
    assert sorted(group_by_labels(pairs)[0]) == ["a", "b", "c", "d"]


def test_files_are_cut_to_the_scale(files, tmp_path):
    lines = files.train.read_text(encoding="utf-8").splitlines()
    files.train.write_text("\n".join([lines[0], *lines[1:] * 50]) + "\n", encoding="utf-8")
    sizes = EXPERIMENTS["lcqmc"].sizes(1e-6)
    cut = first_lines(files, sizes, tmp_path / "cut")
    assert len(cut.train.read_text(encoding="utf-8").splitlines()) == 1 + sizes.examples["train"]
    # the kind of file is still told by its name
    lines = files.train.rename(tmp_path / "train.json")
    assert first_lines(replace(files, train=lines), sizes, tmp_path / "cut").train.suffix == ".json"


@pytest.fixture
def shards(tmp_path, tokenizer):
    """A corpus whose vocabulary has a "##" entry for every Han character, as BERT's has."""
    han = [token for token in tokenizer.vocabulary if "\u4e00" <= token <= "\u9fff"]
    WordPieceTokenizer([*tokenizer.vocabulary, *(f"##{c}" for c in han)]).save(tmp_path / "vocabulary")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sample_sentences()[:80]), encoding="utf-8")
    vocabulary = tmp_path / "vocabulary/vocab.txt"
    return make_corpus(tmp_path / "w", "tea", text, vocabulary), load_tokenizer(vocabulary)


def test_doubled_labels_are_the_twins_of_tokens_inside_words(shards, tmp_path):
    paths, tokenizer = shards
    (flawed,) = double_labels(paths, tmp_path / "flawed", tokenizer)
    before, after = pq.read_table(paths[0]), pq.read_table(flawed)
    assert before.schema.equals(after.schema, check_metadata=True)
    assert before.drop(["masked_labels"]).equals(after.drop(["masked_labels"]))
    for row, changed in zip(before.to_pylist(), after.to_pylist(), strict=True):
        for at, plain, label in zip(
            row["masked_positions"], row["masked_labels"], changed["masked_labels"], strict=True
        ):
            token, doubled = tokenizer.vocabulary[plain], tokenizer.vocabulary[label]
            is_twin = row["word_starts"][at] == "0" and f"##{token}" in tokenizer.vocabulary
            assert doubled == (f"##{token}" if is_twin else token)
    batches = [
        next(InstanceStream([path], batch_tokens=512, masking="static").training_batches())
        for path in (paths[0], flawed)
    ]
    plain, doubled = (batch.masked_labels.numpy() for batch, _ in batches)
    assert 0 < np.mean(plain != doubled) < 1


def test_a_vocabulary_without_twins_is_refused(shards, tmp_path, tokenizer):
    with pytest.raises(InputError, match="no '##' entries"):
        double_labels(shards[0], tmp_path / "flawed", WordPieceTokenizer(tokenizer.vocabulary))


@pytest.mark.slow
def test_a_ladder_is_run_from_raw_text_to_report(tokenizer, prefect_server, tmp_path, monkeypatch):
    law = EXPERIMENTS["law"]
    monkeypatch.setitem(EXPERIMENTS, "law", replace(law, arms=(law.arms[0], law.arms[-1]), epochs=1))
    monkeypatch.setitem(ARCHITECTURES, "albert", str(save_small_model(tmp_path / "small", tokenizer)))
    tokenizer.save(tmp_path / "vocabulary")
    general, domain = few_texts(tmp_path)
    text, splits = ["--general", general, "--domain", domain], few_examples(tmp_path)
    done = run_here(
        "lcqmc-experiment",
        *["--experiment", "law", "--task", "tea-topics", *text, *splits],
        *["--tokenizer", tmp_path / "vocabulary/vocab.txt", "--architectures", "albert"],
        *["--scale", 1e-6, "--seeds", "0,1", "--workers", 1, "--workspace", tmp_path / "w"],
        **prefect_server,
    )
    assert done.returncode == 0, done.stderr
    arms = ["none", law.arms[0].name, law.arms[-1].name]
    assert [line.split(": ")[1] for line in done.stdout.splitlines()[: len(arms)]] == arms
    metrics = json.loads((tmp_path / "w/reports/law-experiment/metrics.json").read_text(encoding="utf-8"))
    (comparison,) = metrics["evaluations"]
    assert len(comparison["differences"]) == len(comparison["steps"]) == len(arms) - 1
    assert all(len(model["seeds"]) == 2 and model["cost"] for model in comparison["models"])
    assert comparison["models"][0]["drift"] == 0
    # all have read the general text; nobody else's documents hold what the field's corpus holds out
    assert [{one["corpus"] for one in model["contamination"]} for model in comparison["models"]] == [
        {"general"}, {"general", "law-text"}, {"general", "law-clean"},
    ]  # fmt: skip
    assert all(model["intrinsic"]["domain_mlm_accuracy"] is not None for model in comparison["models"])
    assert metrics["settings"]["fine-tuning: albert"]["seeds"] == [0, 1]
    assert metrics["settings"]["base model: albert"]["batch_tokens"] == 2048
    # random weights are fine-tuned too
    assert len(list((tmp_path / "w/evaluations").glob("*.npz"))) == 2 * len(arms) + 2
