import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from albert.evaluation import Summary, unpack
from albert.finetuning import (
    FineTuneOptimizer,
    ModelRuns,
    SeedRun,
    check_models,
    compare_models,
    parse_models,
    prepare,
    read_task,
    train_models,
)
from data.errors import ConfigError, InputError
from tests.albert.finetuning.examples import settings_of, table
from tests.albert.report_samples import seed_result

GOLD = [0, 1, 0, 1, 0, 1, 0, 1]
# by model, a row a seed: what was said of the examples of test
NONE = [[0, 0, 0, 0, 0, 0, 0, 1]] * 3
ONE = [[1, 0, 0, 1, 0, 1, 0, 1], [1, 0, 0, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 1, 0, 1]]
TWO = [GOLD] * 3


@pytest.fixture(scope="module")
def task(tmp_path_factory, model_folder):
    """The task's data, and three candidates."""
    folder = tmp_path_factory.mktemp("task")
    words = {2: "龙井", 4: "龙井茶香", 5: "茶香"}
    texts = [words.get(n, "").ljust(n + 1, "水") for n in range(8)]  # of 1 to 8 characters
    rows, splits = [*zip(texts, GOLD, strict=True)], ("train", "dev", "test")
    files = {split: table(folder / f"{split}.tsv", "text label", rows) for split in splits}
    # whose answers are the wrong ones, and are never reported
    table(files["dev"], "text label", [(text, 1 - gold) for text, gold in rows])
    options = {"names": ("none", "one", "two"), "seeds": (0, 1, 2)}
    settings = settings_of("t", files.pop("train"), *[model_folder] * 3, **files, **options)
    data = read_task(settings)
    return data, [prepare(settings, data, number) for number in range(3)]


def runs_of(candidate, said):
    """A model that says these labels, with a confidence of 0.8."""
    return ModelRuns(name=candidate.name, candidates=(candidate,), runs=seed_runs(candidate, said))


def seed_runs(candidate, said, seconds=1.0):
    runs = []
    for seed, labels in enumerate(said):
        scores = {"dev": GOLD, "test": labels}
        scores = {name: np.log(np.where(np.eye(2)[of], 0.8, 0.2)) for name, of in scores.items()}
        dev, test = (candidate.read(of, name) for name, of in scores.items())
        result = seed_result(seed, candidate.scores(dev), test=candidate.scores(test), seconds=seconds)
        runs.append(SeedRun(result=result, dev=dev, test=test))
    return runs


@pytest.fixture(scope="module")
def compared(task):
    data, candidates = task
    models = [runs_of(*pair) for pair in zip(candidates, (NONE, ONE, TWO), strict=True)]
    return compare_models(data, models, domain_words=("龙井", "茶香"))


def test_every_interval_takes_the_groups_of_its_own_examples_and_a_recipes_checkpoints(task, monkeypatch):
    data, (candidate, *_) = task
    grouped, asked = {}, []
    for size, (name, split) in zip((1, 2, 4), data.splits.items(), strict=True):
        examples = (replace(one, group=f"{n // size}") for n, one in enumerate(split.examples))
        grouped[name] = replace(split, examples=tuple(examples))

    def watched(metric, statistics, groups, **options):
        asked.append((options["checkpoints"], groups.tolist()))
        return Summary(0.0, None, ())

    monkeypatch.setattr("albert.finetuning.compare.summarize", watched)
    recipe = replace(runs_of(candidate, NONE), candidates=(candidate,) * 3)
    found = compare_models(replace(data, splits=grouped), [recipe])
    of_dev, of_test = [0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]
    slices = [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert asked == [(3, groups) for groups in (of_dev, of_dev, of_test, of_test, *slices)]
    assert found.groups == tuple(of_test)


def test_test_is_reported_with_its_confusions_classes_and_calibration_over_all_seeds(compared):
    none = compared.model("none")
    assert (none.dev["accuracy"].mean, none.test["accuracy"].mean) == pytest.approx((0, 5 / 8))
    assert unpack(none.outcomes)[..., 0].mean() == 5 / 8
    assert compared.model("none").confusion == ((12, 0), (9, 3))
    assert compared.model("one").confusion == ((9, 3), (4, 8))
    first, second = compared.model("one").classes
    assert (first.label, first.support, second.support) == ("0", 4, 4)
    assert (first.precision, first.recall) == (pytest.approx(9 / 13), pytest.approx(9 / 12))
    assert second.f1 == pytest.approx(2 * 8 / (12 + 11))
    for name, right in (("none", 5 / 8), ("one", 17 / 24), ("two", 1)):
        assert compared.model(name).calibration.ece == pytest.approx(abs(0.8 - right))


def test_changed_examples_are_told_the_surest_first_and_slices_are_by_length_and_domain_words(compared):
    one, _ = compared.changes
    assert (one.fixed, one.broken) == (2, 1)
    sure, less = one.fixed_examples
    assert (sure.number, sure.baseline_right, sure.model_right) == (6, 0, 3)
    assert (less.number, less.baseline_right, less.model_right) == (4, 0, 2)
    assert (less.gold, less.baseline, less.model) == ("1", "0", "1")
    (broken,) = one.broken_examples
    assert (broken.number, broken.text, broken.gold, broken.model) == (1, "水", "0", "1")
    told = [(one.by, one.low, one.high, one.examples) for one in compared.model("none").slices]
    assert told == [
        ("length", 3, 4, 2),  # with [CLS] and [SEP]
        ("length", 5, 6, 2),
        ("length", 7, 8, 2),
        ("length", 9, None, 2),
        ("domain words", 0, 0, 5),
        ("domain words", 1, 1, 2),
        ("domain words", 2, None, 1),
    ]
    scores = [one.score.mean for one in compared.model("none").slices]
    # NONE is right of the even examples and the last
    assert scores == pytest.approx([1 / 2, 1 / 2, 1 / 2, 1, 3 / 5, 1 / 2, 1])


@pytest.mark.parametrize("seconds, seeds", [(59.0, 10), (61.0, 5)])
def test_the_first_run_decides_how_many_seeds_all_models_get(task, seconds, seeds):
    data, (candidate, *_) = task

    def train(runs):
        took = [(one, seconds if one.name == "none" else 1.0) for one, *_ in runs]
        return [run for one, time in took for run in seed_runs(one, [GOLD], time)]

    given = {"learning_rate": 1e-4, "optimizer": FineTuneOptimizer(), "baselines": "yes"}
    settings = replace(candidate.settings, seeds=None, **given)
    models, (rule, random) = train_models(settings, data, train)
    assert [len(model.runs) for model in (*models, rule, random)] == [seeds] * 3 + [1, seeds]


def test_models_of_one_name_are_runs_of_a_recipe(task, tmp_path):
    data, (candidate, *_) = task
    one_rate = {"learning_rate": 1e-4, "optimizer": FineTuneOptimizer()}
    first, second, _ = candidate.settings.models
    models = (first, second, shutil.copytree(second, tmp_path / "third"))
    settings = replace(candidate.settings, models=models, names=("none", "recipe", "recipe"), **one_rate)
    run = tmp_path / "run"
    apart = replace(settings, models=(first, run / "checkpoint-5", tmp_path / "copies/checkpoint-10"))
    run.mkdir()
    (run / "settings.json").touch()
    for one, other in ((second, second), (run / "checkpoint-5", tmp_path / "third/../run/checkpoint-10")):
        with pytest.raises(ConfigError, match="recipe names one pretraining run twice"):
            replace(apart, models=(first, one, other))

    with pytest.raises(InputError, match="recipe names one pretraining run twice: .* the same weights"):
        check_models(settings)

    def train(runs):
        given = [(one, ONE[0] if one.name == "recipe (1)" else GOLD) for one, *_ in runs]
        return [run for one, answers in given for run in seed_runs(one, [answers])]

    (first, recipe), _ = train_models(settings, data, train)
    found = compare_models(data, [first, recipe]).model("recipe")
    assert len(found.checkpoints) == len(found.checksums) == 2 and len(found.seeds) == 6
    assert found.test["accuracy"].values == pytest.approx((6 / 8,) * 3 + (1,) * 3)


def test_models_are_named_as_they_are_typed(task):
    paths, names = parse_models(["runs/a/checkpoint-4", "law=b,c"])
    assert paths == [Path("runs/a/checkpoint-4"), Path("b"), Path("c")]
    assert names == ["a/checkpoint-4", "law", "law"]
    assert parse_models(["a", "b"]) == ([Path("a"), Path("b")], None)
    # two models, not two runs of one recipe
    assert parse_models(["base=a", "x/last", "y/last"])[1] == ["base", "x/last", "y/last"]
    settings = task[1][0].settings
    assert replace(settings, primary="one").primary_model() == "one" and settings.primary_model() == "two"
    message = "primary='none' is not a model compared with the first; those are one, two"
    with pytest.raises(ConfigError, match=message):
        replace(settings, primary="none")
