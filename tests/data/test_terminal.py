"""Commands whose output is closed while they write."""

import subprocess
import sys

import pytest

from tests import ROOT


@pytest.mark.parametrize("arguments", [["--help"], ["checkpoint", "sizes"]])
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(arguments):
    with subprocess.Popen(
        [sys.executable, "-m", "flows", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141
