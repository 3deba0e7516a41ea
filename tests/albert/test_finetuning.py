import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert.config import ConfigError
from albert.evaluation import paired_difference, score, summarize
from albert.finetuning import FineTuneSettings, encode_examples, fine_tune
from albert.tasks import Example, Task, read_split
from data.records import InputError
from tests.conftest import save_small_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, tokenizer):
    return save_small_model(tmp_path_factory.mktemp("model") / "small", tokenizer)


@pytest.fixture
def split_files(tmp_path):
    """A task a bag of words solves: which of two words stands in the sentence."""
    rng = np.random.default_rng(0)
    for name, n in (("train", 160), ("dev", 40), ("test", 40)):
        rows = []
        for i in range(n):
            label = i % 2
            filler = "".join(rng.choice(list("采茶要早炒锅热水泡"), 6))
            rows.append(f"{filler}{'香' if label else '苦'}{filler[::-1]}\t{'好' if label else '坏'}")
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return {name: tmp_path / f"{name}.tsv" for name in ("train", "dev", "test")}


def test_models_are_compared_on_the_same_seeds(split_files, model_folder):
    settings = FineTuneSettings(
        task=Task(name="t"),
        **split_files,
        models=(model_folder, model_folder),
        seeds=(0, 1),
        epochs=12,
        batch_size=16,
        learning_rate=3e-3,
    )
    result = fine_tune(settings)
    assert result.examples == {"train": 160, "dev": 40, "test": 40} and result.labels == ("坏", "好")
    assert result.summary(result.models[0], "test", "accuracy").mean > 0.8
    # the same model twice: no difference may be invented
    first, second = ([r for r in result.seeds if r.model == name] for name in result.models)
    assert [r.predictions for r in first] == [r.predictions for r in second]
    assert result.difference(result.models[1], "test").mean == 0


def test_pairs_are_cut_at_the_longer_side(tokenizer):
    examples = [Example("采茶" * 20, "香", "0"), Example("采", "茶香" * 20, "1")]
    encoded = encode_examples(examples, ["0", "1"], tokenizer, 16)
    for ids, types in zip(encoded.sequences, encoded.token_types, strict=True):
        assert len(ids) == len(types) == 16
        assert ids.count(tokenizer.sep_id) == 2 and types == sorted(types)
        assert types.count(0) == ids.index(tokenizer.sep_id) + 1


@pytest.mark.parametrize(
    "content, message",
    [
        ("sentence_a\tgold\n好\t1\n", "no text column .*columns: sentence_a, gold"),
        ("text\tcategory\n好\t1\n", "no label column"),
        ("text\tlabel\n", "no example"),
        ("text\tlabel\n\t\n", "no usable example"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, content, message):
    path = tmp_path / "t.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_split(path, Task(name="t"))


def test_a_named_column_must_be_there(split_files):
    with pytest.raises(InputError, match="no column 'x' in .*; its columns are text, label"):
        read_split(split_files["dev"], Task(name="t", text_column="x"))


def test_bad_rows_are_skipped_by_number(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\n好,1\n坏\n,0\n香,0,9\n苦,0\n", encoding="utf-8")
    split = read_split(path, Task(name="t"))
    assert len(split.examples) == 2
    assert [line.split("row ")[1].split(":")[0] for line in split.skipped] == ["3", "4", "5"]


def test_labels_that_training_never_saw_and_single_classes_are_refused(split_files, model_folder):
    settings = {"task": Task(name="t"), **split_files, "models": (model_folder,)}
    split_files["dev"].write_text("text\tlabel\n好\t奇怪\n", encoding="utf-8")
    with pytest.raises(InputError, match="label '奇怪' in .*does not occur"):
        fine_tune(FineTuneSettings(**settings))
    split_files["train"].write_text("text\tlabel\n好\t一\n坏\t一\n", encoding="utf-8")
    with pytest.raises(InputError, match="nothing to tell apart"):
        fine_tune(FineTuneSettings(**settings))
    with pytest.raises(ConfigError, match="seeds"):
        FineTuneSettings(**settings, seeds=(1, 1))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_scores_agree_with_their_definition(pairs):
    predicted, gold = (np.array(column) for column in zip(*pairs, strict=True))
    scores = score(predicted, gold, 4)
    assert scores.accuracy == pytest.approx(np.mean(predicted == gold))
    f1 = []
    for label in sorted({*predicted.tolist(), *gold.tolist()}):
        true = ((predicted == label) & (gold == label)).sum()
        f1.append(2 * true / ((predicted == label).sum() + (gold == label).sum()))
    assert scores.macro_f1 == pytest.approx(np.mean(f1))


def test_a_difference_is_clear_only_when_seeds_agree():
    assert paired_difference([0.70, 0.71, 0.72], [0.80, 0.81, 0.815]).is_clear
    assert not paired_difference([0.70, 0.71, 0.72], [0.80, 0.60, 0.75]).is_clear
    assert not paired_difference([0.7], [0.9]).is_clear
    assert summarize([0.5]).deviation == 0
