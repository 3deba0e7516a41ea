from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from albert.checkpoints import load_pretrained
from albert.evaluation import chance_of, leaves_chance
from albert.finetuning import (
    FineTuneOptimizer,
    FineTuneRunning,
    SeedRun,
    fine_tune,
    fine_tune_one,
    load_run,
    read_task,
    run_key,
    save_run,
)
from albert.finetuning.classification import Classification
from albert.finetuning.encoding import Predictions
from albert.finetuning.settings import FEWEST_EPOCHS, MOST_EPOCHS, SWEEP
from albert.finetuning.training import fine_tune_models, plan_batches, predict
from albert.optim import adamw
from albert.reports import read_report, write_report
from albert.runtime import default_device, usual_precision
from albert.tasks import Example, Task
from data.errors import ConfigError, InputError
from data.options import options_of
from tests.albert.finetuning.examples import filler, prepared, settings_of, table
from tests.albert.report_samples import report_of, seed_result
from tests.conftest import change_tensors, copied, save_small_model


@pytest.fixture
def split_files(tmp_path):
    """A task a bag of words solves: which of two words stands in the sentence."""
    rng, files = np.random.default_rng(0), {}
    for name, n in (("train", 160), ("dev", 40), ("test", 40)):
        texts = [filler(rng) for _ in range(n)]
        rows = [(f"{text}{'苦香'[i % 2]}{text[::-1]}", "坏好"[i % 2]) for i, text in enumerate(texts)]
        files[name] = table(tmp_path / f"{name}.tsv", "text label", rows)
    return files


def quick(split_files, *models, optimizer=None, **changes):
    options = {"seeds": (0, 1), "epochs": 12, "batch_size": 16, "learning_rate": 3e-3} | changes
    dev_and_test = {name: path for name, path in split_files.items() if name != "train"}
    optimizer = {"max_restarts": 0} | (optimizer or {})
    return settings_of("t", split_files["train"], *models, optimizer=optimizer, **dev_and_test, **options)


def shuffle_labels(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    texts, labels = zip(*(line.split("\t") for line in lines[1:]), strict=True)
    labels = np.random.default_rng(1).permutation(labels)
    table(file, "text label", zip(texts, labels, strict=True))


def test_a_copy_of_the_same_model_shows_no_difference(split_files, model_folder):
    whole = settings_of("t", split_files["train"], model_folder, model_folder, dev=None)
    result = fine_tune(replace(whole, seeds=(0, 1), epochs=6, batch_size=16, learning_rate=3e-3))
    assert result.kind == "single" and result.labels == ("坏", "好")
    assert result.examples == {"train": 113, "dev": 16, "test": 31}
    assert result.notes == (
        "of 160 examples 16 for dev and 31 for test were set aside, alike texts together",
    )
    first, second = result.models
    assert first.test["accuracy"].mean > 0.8
    assert first.test == second.test and first.confusion == second.confusion
    (difference,) = result.differences
    assert difference.mean == 0 and difference.unknown == "small (1) has 2 seeds, at least 3 are needed"


def test_shuffled_labels_score_at_chance_and_are_counted_as_stuck(split_files, model_folder):
    shuffle_labels(split_files["train"])
    settings = quick(split_files, model_folder, epochs=2, learning_rate=3e-5)
    result = fine_tune(replace(settings, optimizer=FineTuneOptimizer(max_restarts=1)))
    (model,) = result.models
    # two seeds of 40 examples: four standard errors of a share of one half
    assert abs(model.test["accuracy"].mean - 0.5) < 4 * 0.5 / 40**0.5
    assert result.chance == 0.5
    assert all(seed.restarts == 1 and not seed.left_chance for seed in model.seeds)
    # another start is another one: the same order of examples, but other random weights of the head
    (first,) = fine_tune(settings).models
    assert all(a.curve != b.curve for a, b in zip(model.seeds, first.seeds, strict=True))


def test_a_run_that_takes_long_says_how_far_it_is(split_files, model_folder, monkeypatch, capsys):
    monkeypatch.setattr("albert.finetuning.training.QUIET_SECONDS", 0)
    settings = quick(split_files, model_folder, epochs=2, seeds=(0,))
    ((seed,),) = [model.seeds for model in fine_tune(settings).models]
    lines = [f"epoch {point.epoch} of 2, dev accuracy {100 * point.dev:.2f}" for point in seed.curve]
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == lines


def test_whether_a_run_left_chance_level_is_judged_on_test(split_files, model_folder):
    shuffle_labels(split_files["test"])
    (model,) = fine_tune(quick(split_files, model_folder, epochs=6, seeds=(0,))).models
    (seed,) = model.seeds
    assert seed.dev["accuracy"] > 0.8 and seed.restarts == 0 and not seed.left_chance


def test_test_is_scored_at_devs_best_epoch_and_training_ends_where_none_is_better(split_files, model_folder):
    # with the labels of dev the wrong way round, what is learnt is the worse on dev
    wrong = split_files["dev"].read_text(encoding="utf-8").translate(str.maketrans("好坏", "坏好"))
    split_files["dev"].write_text(wrong, encoding="utf-8")
    settings = quick(split_files, model_folder, optimizer={"patience": 4}, epochs=50)
    # dev once more as test: they are scored the same only with the same weights
    (model,) = fine_tune(replace(settings, test=copied(settings.dev))).models
    for seed in model.seeds:
        curve = [point.dev for point in seed.curve]
        assert seed.best_epoch == 1 + curve.index(max(curve)) and curve[-1] < max(curve)
        assert seed.test == seed.dev and seed.dev["accuracy"] == max(curve)
        assert len(curve) == seed.best_epoch + 4 < 50


def test_epochs_rates_and_pooling_fit_the_task_unless_they_are_given(split_files, model_folder):
    free = settings_of(Task(name="t", pooling="cls"), split_files["train"], model_folder)
    data = read_task(free)
    small = free.fitted(data)  # 160 examples
    assert (small.epochs, small.running.pooling, small.learning_rates) == (MOST_EPOCHS, "cls", SWEEP)
    assert small.fitted(data) == small
    many = replace(data.splits["train"], examples=(Example("茶", None, "好"),) * 12_000)
    large = free.fitted(replace(data, splits={"train": many}))
    assert large.epochs == FEWEST_EPOCHS and len(large.learning_rates) == 1
    running = FineTuneRunning(pooling="mean")
    given = replace(free, epochs=7, learning_rate=3e-5, running=running).fitted(data)
    assert (given.epochs, given.running.pooling, given.learning_rates) == (7, "mean", (3e-5,))


def test_an_epoch_has_each_example_once_and_a_diverged_model_favours_no_label(split_files, model_folder):
    settings = quick(split_files, model_folder)
    first, second, *_ = plan = plan_batches(160, settings, seed=3)
    for epoch in plan:
        assert sorted(np.concatenate(epoch).tolist()) == list(range(160))
        assert {len(batch) for batch in epoch[:-1]} == {settings.batch_size}
    assert not np.array_equal(first[0], second[0])
    candidate = prepared(quick(split_files, model_folder))
    model = candidate.learner.model(load_pretrained(model_folder)[0].encoder)
    torch.nn.init.constant_(model.classifier.bias, float("nan"))
    found = predict(candidate, model, "dev")
    assert (found.probabilities == 0.5).all() and set(found.answers) == {"坏"}


def test_a_run_comes_back_from_its_file(split_files, model_folder, tmp_path):
    candidate = prepared(quick(split_files, model_folder, epochs=1))
    run, of_sweep = (fine_tune_one(one, 0, 1e-3) for one in (candidate, candidate.without_test()))
    for one in (of_sweep, run):
        save_run(one, tmp_path / "run.npz")
        found = load_run(tmp_path / "run.npz")
        assert found.result == one.result and found.dev.answers == one.dev.answers
    assert found.test.answers == run.test.answers
    np.testing.assert_equal(found.test.statistics, run.test.statistics)
    # the same training, whether test is there or not
    assert of_sweep.test is None and of_sweep.result.test is None and of_sweep.result.dev == run.result.dev
    assert load_run(tmp_path / "another.npz") is None
    np.savez(tmp_path / "older.npz", text=np.array('[{"seed": 0}]'))
    assert load_run(tmp_path / "older.npz") is None


def test_a_run_is_trained_anew_exactly_when_an_option_or_an_input_changes_it(split_files, model_folder):
    settings = quick(split_files, model_folder)
    optimizer = {"warmup_share": 0.2, "max_restarts": 1, "patience": 2}
    usual = usual_precision(default_device())  # named, it is the same run as "auto"
    other = "fp32" if usual == "bf16" else "bf16"
    running = {"precision": other, "max_seq_length": 9, "pooling": "cls"}
    assert optimizer.keys() == options_of(FineTuneOptimizer).keys() - {"sweep"}
    assert running.keys() == options_of(FineTuneRunning).keys()

    def key(**changes):
        return run_key(prepared(replace(settings, **changes)), 0, 1e-3)

    # a run has a seed and a rate of its own
    assert key() == key(seeds=(5,), baselines="yes", learning_rate=1e-4)
    assert key() == key(running=replace(settings.running, precision=usual))
    keys = [key(), key(epochs=2), key(batch_size=5), key(drop_overlap=True)]
    keys += [key(optimizer=replace(settings.optimizer, **{name: value})) for name, value in optimizer.items()]
    keys += [key(running=replace(settings.running, **{name: value})) for name, value in running.items()]
    candidate = prepared(settings)
    keys += [run_key(candidate, 1, 1e-3), run_key(candidate, 0, 2e-3)]
    # the same weights and files are another run with another configuration, vocabulary or file of answers
    config = replace(candidate.config, hidden_dropout_prob=0.1)
    others = [candidate.without_test(), replace(candidate, config=config)]
    dev = candidate.encoded["dev"]
    for one in (replace(dev, input_ids=dev.input_ids[::-1]), replace(dev, targets=1 - dev.targets)):
        others.append(replace(candidate, encoded={**candidate.encoded, "dev": one}))
    keys += [run_key(one, 0, 1e-3) for one in others]
    table(split_files["dev"], "text label", ["香好", "苦坏"])
    assert len({*keys, run_key(candidate, 0, 1e-3)}) == 17


def test_labels_that_training_never_saw_and_single_classes_are_refused(split_files, model_folder):
    settings = quick(split_files, model_folder)
    table(split_files["dev"], "text label", [("好", "奇怪")])
    with pytest.raises(InputError, match="label '奇怪' in .*does not occur"):
        fine_tune(settings)
    table(split_files["dev"], "text label", [("好", "B I O " * 99)])  # tags, read as a label
    with pytest.raises(InputError, match="label '(B I O ){6}B I ….{,400}$"):
        fine_tune(settings)
    table(split_files["train"], "text label", [(f"{n}两", f"{n}.5") for n in range(9)])
    with pytest.raises(InputError, match="make a task file with kind: tokens, regression"):
        fine_tune(settings)
    table(split_files["train"], "text label", ["好一", "坏一"])
    with pytest.raises(InputError, match="nothing to tell apart"):
        fine_tune(settings)
    with pytest.raises(ConfigError, match="a model has an empty name"):  # the plots could not name it
        replace(settings, names=("",))
    with pytest.raises(ConfigError, match="pooling=cls: a task of kind tokens is read from every token"):
        replace(settings, task=Task(name="t", kind="tokens", pooling="cls"))
    with pytest.raises(ConfigError, match="learning_rate or optimizer.sweep"):
        replace(settings, optimizer=FineTuneOptimizer(sweep=(1e-4, 2e-4)))


def test_a_rate_that_breaks_the_model_leaves_a_valid_report(split_files, model_folder, tmp_path):
    result = fine_tune(quick(split_files, model_folder, seeds=(0,), epochs=1, learning_rate=0.99))
    assert not result.models[0].seeds[0].left_chance
    page = write_report(report_of(result), tmp_path / "r")
    assert read_report(page).evaluations == (result,)


def test_test_is_scored_once_for_each_seed_whatever_else_was_tried(split_files, model_folder, monkeypatch):
    """Neither a rate that lost nor a start that was given up has seen it."""
    asked = []
    of_labels = Classification.predict

    def watched(self, scores, examples, encoded):
        asked.append(examples)
        return of_labels(self, scores, examples, encoded)

    monkeypatch.setattr(Classification, "predict", watched)
    shuffle_labels(split_files["train"])
    optimizer = {"max_restarts": 1, "sweep": (1e-4, 3e-4)}
    settings = quick(split_files, model_folder, epochs=1, learning_rate=None, optimizer=optimizer)
    (model,) = fine_tune(settings).models
    assert all(seed.restarts == 1 for seed in model.seeds)
    test = read_task(settings).splits["test"].examples
    assert sum(examples == test for examples in asked) == len(settings.seeds)
    assert len(asked) > 4 * len(settings.seeds)


@pytest.mark.parametrize("has_test", [True, False])
def test_a_sweep_never_sees_test_and_takes_the_first_of_equal_rates(split_files, model_folder, has_test):
    if not has_test:
        del split_files["test"]
    optimizer = {"sweep": (1e-5, 3e-5, 2e-5)}
    settings = quick(split_files, model_folder, seeds=(4, 2), learning_rate=None, optimizer=optimizer)
    candidate, asked = prepared(settings), []

    def train(runs):
        wanted = [(seed, rate) for _, seed, rate in runs]
        seen = ((*one.encoded, *one.data.splits, *one.settings.split_paths) for one, *_ in runs)
        asked.append(({*chain(*seen)}, wanted))
        nothing = Predictions(answers=(), right=None, statistics={})
        dev = {rate: {"accuracy": 0.9 if rate > 1e-5 else 0.5} for _, rate in wanted}
        results = [seed_result(seed, dev[rate], learning_rate=rate) for seed, rate in wanted]
        return [SeedRun(result=result, dev=nothing, test=None) for result in results]

    (runs, tried), again = fine_tune_models([candidate] * 2, train)
    chosen = [(4, 3e-5), (2, 3e-5)]
    assert asked == [
        ({"train", "dev"}, 2 * [(4, rate) for rate in settings.learning_rates]),
        ({"train", "dev", *(["test"] if has_test else [])}, 2 * chosen),
    ]
    assert len(again[0]) == len(runs) and again[1] == tried
    assert [(run.result.seed, run.result.learning_rate) for run in runs] == chosen
    assert [(one.learning_rate, one.dev) for one in tried] == [(1e-5, 0.5), (3e-5, 0.9), (2e-5, 0.9)]


def test_a_run_is_adamw_with_a_warm_up_on_clipped_gradients_of_each_batch(tmp_path, model_folder):
    rows = [(f"茶{n}", f"香{n % 3}", 100 * (n % 2) + 900 * (n == 0)) for n in range(40)]  # one is far off
    path = table(tmp_path / "t.tsv", "sentence1 sentence2 score", rows)
    running = {"precision": "fp32", "pooling": "cls"}
    dev = table(tmp_path / "dev.tsv", "sentence1 sentence2 score", rows[:5])
    settings = settings_of("stsb", path, model_folder, dev=dev, running=running, epochs=2, batch_size=3)
    candidate = prepared(settings)
    run = fine_tune_one(candidate, 5, 1e-3)
    # the same written out: the weights of the head are the seed's and the restart's
    pretrained, _ = load_pretrained(model_folder)
    torch.manual_seed(int(np.random.default_rng([5, 0]).integers(2**31)))
    model, encoded = candidate.learner.model(pretrained.encoder).train(), candidate.encoded["train"]
    optimizer, step, norms, losses = adamw(model, 1e-3), 0, [], []
    for batches in plan_batches(40, settings, 5):
        losses.append([])
        for examples in batches:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * ((step + 1) / 3 if step < 3 else (28 - step) / 25)
            predicted = model(encoded.choose(examples).batch)[:, 0]
            gold = (encoded.targets[examples] - encoded.targets.mean()) / encoded.targets.std()
            gold = torch.from_numpy(gold).float()
            loss = (predicted - gold).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            losses[-1].append(loss.item() * len(examples))
            step += 1
    assert step == 28 and min(norms) < 1 < max(norms)
    assert [one.train_loss for one in run.result.curve] == pytest.approx([sum(one) / 40 for one in losses])
    assert run.result.examples_per_second > 0


def test_a_pooler_that_a_checkpoint_lacks_is_the_seeds(tmp_path, tokenizer):
    folder = save_small_model(tmp_path / "model", tokenizer)
    change_tensors(folder, lambda name, tensor: {} if "pooler" in name else {name: tensor})
    path = table(tmp_path / "t.tsv", "text label", [("香茶", 1), ("苦水", 0)])
    candidate = prepared(settings_of("mine", path, folder, epochs=1, running={"pooling": "cls"}))
    first = fine_tune_one(candidate, 3, 1e-9)
    torch.manual_seed(9)  # decides nothing
    assert fine_tune_one(candidate, 3, 1e-9).dev.probabilities.tolist() == first.dev.probabilities.tolist()


def test_numbers_are_learnt_alike_on_any_scale(tmp_path, model_folder):
    runs, means = [], []
    for name, scale, zero in (("marks", 1, 0), ("years", 8, 2000), ("shares", 1e-5, 0)):
        rows = [(f"茶{n}", "香" * (n % 5), scale * (n % 5) + zero) for n in range(40)]
        path = table(tmp_path / f"{name}.tsv", "sentence1 sentence2 score", rows)
        settings = settings_of("stsb", path, model_folder, running={"precision": "fp32"}, epochs=3)
        runs.append(fine_tune_one(prepared(settings), 0, 1e-3))
        means.append((np.mean([float(one) for one in runs[-1].dev.answers]) - zero) / scale)
    assert [run.dev_score for run in runs] == pytest.approx([runs[0].dev_score] * 3, abs=1e-3)
    assert means == pytest.approx([means[0]] * 3, abs=1e-3) and means[0] == pytest.approx(2, abs=1)


def test_chance_is_the_most_frequent_training_label_on_the_scored_split(split_files, model_folder):
    for name, share in (("train", 0.75), ("dev", 0.25)):
        rows = [(f"香{n}", "好" if n < 40 * share else "坏") for n in range(40)]
        table(split_files[name], "text label", rows)
    data = read_task(quick(split_files, model_folder))
    dev = data.splits["dev"]
    assert chance_of(data, dev) == 0.25
    # of always yes: precision 1/4, recall 1
    for metric, chance in (("f1", 2 * 0.25 / 1.25), ("macro_f1", 0.25 / 1.25), ("matthews", 0)):
        assert chance_of(replace(data, task=replace(data.task, metric=metric)), dev) == pytest.approx(chance)
    # two standard errors; where nothing is ever right by accident, one that is may be one
    kinds = {"single": (0.25, (0.25 * 0.75 / 40) ** 0.5), "span": (0, 1 / 40), "regression": (0, 40**-0.5)}
    for kind, (chance, error) in kinds.items():
        one = replace(data, task=Task(name="t", kind=kind))
        bound = chance + 2 * error
        assert leaves_chance(one, dev, bound + 0.01) and not leaves_chance(one, dev, bound - 0.01)
    # on examples of the most frequent label no score exceeds chance: another start would not either
    alone = replace(dev, examples=tuple(one for one in dev.examples if one.gold() == "好"))
    assert chance_of(data, alone) == 1 and leaves_chance(data, alone, 0.5)
