"""Commands whose output is closed while they write."""

import subprocess
import sys

import pytest

from data.terminal import EXIT_INTERRUPTED, make_app, run_app
from flows.__main__ import main
from tests import ROOT


@pytest.mark.parametrize("arguments", [["--help"], ["checkpoint", "sizes"]])
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(arguments):
    with subprocess.Popen(
        [sys.executable, "-m", "flows", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141


def test_a_command_without_an_output_ends_well():
    command = [sys.executable, "-m", "flows", "checkpoint", "sizes"]
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_command_says_that_ctrl_c_stopped_it_also_while_its_modules_load(monkeypatch, capsys):
    app = make_app("long", "Takes long.")

    @app.default
    def work() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.__main__._run", lambda *_: work())
    assert run_app(app, []) == main(["fine-tune"]) == EXIT_INTERRUPTED == 75
    assert capsys.readouterr().err == "long: stopped\njixu: stopped\n"
