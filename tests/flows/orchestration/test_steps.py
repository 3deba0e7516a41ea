"""What Prefect adds to a function: a name, a bar, another try where that can help, an end where it hangs."""

import os
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import pytest
from httpx import ConnectError
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterStartTime
from prefect.client.schemas.objects import StateType
from prefect.exceptions import CancelledRun

from data.errors import InputError
from data.refresh import Batch, Work
from flows.end_to_end import end_to_end
from flows.orchestration import begin_progress, open_runner, repeat_command, step
from flows.orchestration.artifacts import update_progress_artifact
from flows.refresh_corpus import refresh_corpus

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


@flow
def try_twice(work):
    return step("try", retries=1).with_options(retry_delay_seconds=0)("it", work)


@pytest.mark.parametrize(
    ("errors", "ends", "tries"),
    [
        ([OSError("connection reset")], None, 2),
        ([OSError("connection reset")] * 3, OSError, 2),
        ([InputError("no [MASK] in vocab.txt")] * 2, InputError, 1),
        ([BrokenProcessPool("ended abruptly")] * 2, BrokenProcessPool, 1),
        ([CancelledError()] * 2, CancelledRun, 1),
    ],
)
def test_what_may_pass_is_tried_again_and_what_was_refused_is_not(errors, ends, tries):
    calls = []

    def work():
        calls.append(1)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]

    with pytest.raises(ends) if ends else nullcontext():
        try_twice(work)
    assert len(calls) == tries


def map_sleep(items):
    return [time.sleep(seconds) for seconds in items]


def test_a_task_that_hangs_fails_and_its_process_is_gone(monkeypatch):
    monkeypatch.setattr("data.workers.END_SECONDS", 600)  # for those that have nothing left to do
    processes = []

    @flow
    def read_what_hangs():
        with open_runner(1, timeout_seconds=2) as runner:
            processes.append(runner.submit(step("begin"), "it", os.getpid).result())
            runner.map(Work("read-source", "it", "sources read", map_sleep, [Batch("it", (600,))]))

    began = time.monotonic()
    with pytest.raises(InputError, match="counts as hung: is its source out of reach"):
        read_what_hangs()
    assert time.monotonic() - began < 300
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0], 0)


def write_line(path, line):
    with path.open("a", encoding="utf-8") as out:
        out.write(f"{line}\n")
    return line


def test_work_starts_in_the_order_it_was_submitted_and_each_task_reports_that_processes_are_gone(tmp_path):
    """Also where the tasks begin when all are submitted, the last one first."""
    begun, path, lines = [], tmp_path / "lines", [str(n) for n in range(20)]
    task = SimpleNamespace(submit=lambda label, work: begun.insert(0, work))
    with open_runner(1) as runner:
        for line in lines:
            runner.submit(task, line, partial(write_line, path, line))
        assert runner.workers == 1 and [work() for work in begun] == lines[::-1]
        assert path.read_text("utf-8").split() == lines
        # a task that is retried does its work again
        assert begun[0]() == "19"
        assert path.read_text("utf-8").split() == [*lines, "19"]
        for label, work in (("ends it", partial(os._exit, 1)), ("late", partial((tmp_path / "f").touch))):
            runner.submit(task, label, work)
            with pytest.raises(BrokenProcessPool):
                begun[0]()
    assert not (tmp_path / "f").exists()


def test_what_a_run_that_ends_has_not_done_is_called_off_and_did_not_fail():
    tasks = []

    @flow
    def read_what_is_gone():
        with open_runner(1) as runner:
            runner.submit(step("begin"), "it", os.getpid).result()
            sleep = partial(time.sleep, 600)
            tasks.extend(runner.submit(step("read-source"), label, sleep) for label in ("first", "second"))
            raise OSError("no such source")

    with pytest.raises(OSError, match="no such source"):
        read_what_is_gone()
    for task in tasks:
        task.wait(60)  # until then its state is asked of the server, which may not have it yet
    assert [task.state.type for task in tasks] == 2 * [StateType.CANCELLED]


def test_runs_have_telling_names_and_a_preview_is_logged(tmp_path, samples, vocabulary_file, monkeypatch):
    lines, since = [], datetime.now(UTC)
    monkeypatch.setattr("flows.orchestration.jobs.log", lines.append)
    recipe = tmp_path / "green-tea.yaml"
    recipe.write_text(f"source: {samples / 'tea.jsonl'}\ntokenizer: {vocabulary_file}\n", encoding="utf-8")
    for corpus in ("tea", "茶"):
        refresh_corpus(recipe=str(recipe), corpus=corpus, workspace=str(tmp_path / "w"), dry_run=True)
    assert lines[0].startswith("tea is new: 1 source(s) would be read"), lines
    with pytest.raises((OSError, InputError)):  # a file, where a folder is needed
        end_to_end(demo=True, workspace=str(recipe))
    begun = FlowRunFilter(start_time=FlowRunFilterStartTime(after_=since))
    with get_client(sync_client=True) as client:
        names = {run.name.partition(", ")[0] for run in client.read_flow_runs(flow_run_filter=begun)}
    assert {"refresh tea", "refresh 茶", "end to end on the samples"} <= names


@flow
def tell(corpus, steps=1000, mix=()):
    return repeat_command()


def test_the_command_to_repeat_a_deployments_run_leaves_defaults_out(monkeypatch):
    monkeypatch.delenv("JIXU_COMMAND", raising=False)
    said = tell("茶 1", steps=5, mix=[])
    assert said == "prefect deployment run 'tell/default' -p 'corpus=\"茶 1\"' -p steps=5"


@flow
def go(parts):
    move = begin_progress("bar", "of a test")
    for part in range(parts):
        move((part + 1) / parts)


def test_a_bar_is_moved_seldom_and_holds_nobody_up(monkeypatch):
    calls = []

    def update(artifact, percent):
        calls.append(percent)
        if len(calls) == 2:
            raise ConnectError("the server is away")
        return update_progress_artifact(artifact, percent)

    monkeypatch.setattr("flows.orchestration.artifacts.update_progress_artifact", update)
    go(5000)
    assert calls == [100.0]  # it took less than five seconds
    go(3)
    assert calls == [100.0, 100.0]
