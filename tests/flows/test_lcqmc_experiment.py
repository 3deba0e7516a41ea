"""Two fields, each judged on both tasks; and what is left out for lack of time."""

import json
from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest

from data.workspace import Workspace
from flows.lcqmc_experiment import Deadline, average_of, draw_lines
from tests.commands import complete, run_here, typed_as
from tests.conftest import change_tensors, few_examples, few_texts, save_small_model
from tests.corpora import NEW


def test_fewer_examples_are_among_more(tmp_path, write):
    lines = ["text\tlabel", *(f"第{n}条\t{n % 2}" for n in range(40))]
    train = str(write("train.tsv", "\n".join(lines) + "\n"))
    drawn = [Path(draw_lines(train, most, tmp_path / "drawn")) for most in (10, 20)]
    few, more = (path.read_text("utf-8").splitlines() for path in drawn)
    assert few[0] == more[0] == lines[0] and len(few) == 11 and len(more) == 21
    assert set(few) < set(more) < set(lines) and more[1:] != lines[1:21]


def test_work_that_would_end_too_late_by_the_longest_before_it_is_left_out():
    deadline = Deadline(monotonic() + 60, longest=61)
    assert deadline.run("more", dict) == [] and deadline.left_out == ["more"]


def test_an_average_is_made_anew_of_other_weights(tokenizer, tmp_path, monkeypatch):
    run = save_small_model(tmp_path / "law-v1/checkpoint-2", tokenizer)
    monkeypatch.setattr("flows.lcqmc_experiment.average_checkpoints", lambda name, work: work())
    average = partial(average_of, [run, run], 0.5, SimpleNamespace(place=Workspace(tmp_path)))
    assert (first := average()) == average()
    change_tensors(run, lambda name, value: {name: value + 1})  # as where the run was trained again
    assert average() != first


@pytest.mark.slow
def test_two_fields_are_each_judged_on_both_tasks(tokenizer, prefect_server, tmp_path, write):
    """The fields are called first and second, as their options are."""
    base = save_small_model(tmp_path / "small", tokenizer)
    general, domain = few_texts(tmp_path, "正文本")
    field = {"text": domain, "task": "tea-topics", **few_examples(tmp_path)}
    given = {"general": general, "first": field | {"name": "first"}, "second": field | {"name": "second"}}
    given |= {"init": base, "scale": 1e-6, "labels": "40,60,70", "base_shares": 0.5, "pretraining_seeds": 0}
    given |= {"batch_tokens": 512, "workers": 1, "workspace": tmp_path / "w"}
    given["reading"] = {"text_field": "正文本"}
    given["guard"] = {"files": field["train"]}
    given["fine_tuning"] = {"seeds": 0, "epochs": 1, "learning_rate": 1e-3, "baselines": "no"}
    given["fine_tuning"]["optimizer"] = {"max_restarts": 0}
    complete("lcqmc-experiment", given, **prefect_server)
    metrics = json.loads((tmp_path / "w/reports/experiment/metrics.json").read_text(encoding="utf-8"))
    names = [[model["name"] for model in one["models"]] for one in metrics["evaluations"]]
    matched_last = [["second", "base", "general", "first"], ["first", "base", "general", "second"]]
    more = ["mean of the last 3", "0.5 of base"]
    assert names[:4] == 2 * matched_last
    assert names[4:] == [["base", *more, f"{one}, then task texts", one] for one in ("first", "second")]
    shown = [(model["note"], bool(model["pretraining"])) for model in metrics["evaluations"][0]["models"]]
    assert shown == [("mismatched", True), (None, False), (None, True), ("matched", True)]
    # only with the first number of labels is there a primary contrast, and none in the last two
    assert [one["primary"] for one in metrics["evaluations"]] == ["first", "second", *[None] * 4]
    steps = [(one["model"], one["baseline"]) for one in metrics["evaluations"][0]["steps"]]
    assert steps == [("base", "second"), ("general", "base"), ("first", "general")]
    examples = [one["examples"]["train"] for one in metrics["evaluations"]]
    assert examples == [40, 40, 48, 48, 40, 40]  # the files have no more
    titles = [one["task"] for one in metrics["evaluations"]]
    assert titles == [f"tea-topics with {count} labels" for count in examples]
    runs = metrics["settings"]
    same = {name: one for name, one in runs.items() if name.startswith("pretraining: ")}
    assert len(same) == 3
    for name in ("steps", "batch_tokens", "learning_rate", "seed", "init", "optimizer"):
        assert len({json.dumps(one[name]) for one in same.values()}) == 1, name
    # what the field's text held out is in the task's texts
    tapt, matched = metrics["evaluations"][4]["models"][-2:]
    assert tapt["intrinsic"]["domain_mlm_accuracy"] is None is not matched["intrinsic"]["domain_mlm_accuracy"]
    assert all(not one["found"] for model in (tapt, matched) for one in model["contamination"])
    # what was made is used again, and what there is no time for is named
    again = complete("lcqmc-experiment", given | {"minutes": 1e-9}, **prefect_server)
    assert "Left out for lack of time: pretraining with seed 0." in again
    # a field of one document is refused before anything is trained
    third = given["first"] | {"name": "third", "text": write("one.txt", NEW)}
    done = run_here("lcqmc-experiment", *typed_as(given | {"first": third}), **prefect_server)
    assert done.returncode == 2 and "third has one document" in done.stderr
    assert "third" not in " ".join(path.name for path in (tmp_path / "w/models").iterdir())
