import os
import subprocess
import sys

import pytest

from data.terminal import EXIT_INTERRUPTED, make_app, run_app
from flows.__main__ import main
from kernels import KernelError
from tests import ROOT
from tests.commands import begin


@pytest.mark.parametrize("arguments", [["--help"], ["checkpoint", "sizes"]])
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(arguments):
    with begin(*arguments) as command:
        command.stdout.close()
        assert command.stderr.read() == ""
    assert command.returncode == 141


def test_a_command_without_an_output_ends_well():
    command = [sys.executable, "-m", "flows", "checkpoint", "sizes"]
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE)
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.parametrize(("encoding", "shown"), [("gbk", "语料名"), ("ascii", r"\u8bed\u6599\u540d")])
def test_a_terminal_whose_encoding_lacks_a_sign_shows_its_code(encoding, shown):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "flows", "refresh-corpus", "--help"]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding=encoding)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert shown in answer.stdout


@pytest.mark.parametrize(
    ("typed", "hint"), [("pretrain", " (did you mean continued-pretraining?)"), ("run", "")]
)
def test_an_unknown_command_is_refused_with_the_nearest_one(typed, hint, capsys):
    assert main([typed]) == 2
    assert capsys.readouterr().err == f"jixu: no command {typed!r}{hint}; jixu --help lists them\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), EXIT_INTERRUPTED, "stopped"),
        (RuntimeError("Query interrupted"), 75, "stopped"),  # Ctrl-C, as DuckDB reports it
        (KernelError("no such kernels"), 2, "no such kernels"),
    ],
)
def test_a_command_says_what_ended_it(error, code, line, capsys, monkeypatch):
    app = make_app("long", "Takes long.")

    @app.default
    def work() -> None:
        raise error

    assert run_app(app, []) == code
    monkeypatch.setattr("flows.__main__._run", lambda *_: work())  # as while modules load
    assert main(["fine-tune"]) == code
    assert capsys.readouterr().err == f"long: {line}\njixu: {line}\n"
