"""The order in which processes do the work of tasks, and what tasks are told when the processes are gone."""

import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from flows.orchestration import open_runner


class Late:
    """Tasks that begin when all are submitted, the last one first."""

    def __init__(self):
        self.begun = []

    def submit(self, label, work):
        self.begun.insert(0, work)


def write_line(path: Path, line: str) -> str:
    with path.open("a", encoding="utf-8") as out:
        out.write(f"{line}\n")
    return line


def test_work_is_done_in_the_order_in_which_it_was_given_whatever_task_begins_first(tmp_path):
    step, given = Late(), [str(n) for n in range(20)]
    with open_runner("processes", 1, None) as (submit, workers):
        for line in given:
            submit(step, line, write_line, tmp_path / "lines", line)
        assert workers == 1 and [work() for work in step.begun] == given[::-1]
        assert (tmp_path / "lines").read_text("utf-8").split() == given
        # a task that is tried again does its work again
        assert step.begun[0]() == "19"
    assert (tmp_path / "lines").read_text("utf-8").split() == [*given, "19"]


def test_each_task_is_told_that_the_processes_are_gone(tmp_path):
    step = Late()
    with open_runner("processes", 1, None) as (submit, _):
        submit(step, "ends it", os._exit, 1)
        with pytest.raises(BrokenProcessPool):
            step.begun[0]()
        submit(step, "too late", write_line, tmp_path / "lines", "never")
        with pytest.raises(BrokenProcessPool):
            step.begun[0]()
    assert not (tmp_path / "lines").exists()
