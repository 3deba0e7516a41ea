"""Commands whose output is closed while they write."""

import subprocess
import sys

import pytest

from data.terminal import EXIT_INTERRUPTED, make_app, run_app
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


def test_a_command_says_that_ctrl_c_stopped_it(capsys):
    app = make_app("long", "Takes long.")

    @app.default
    def work() -> None:
        raise KeyboardInterrupt

    assert run_app(app, []) == EXIT_INTERRUPTED == 75
    assert capsys.readouterr().err == "long: stopped\n"
