"""Commands as a user types them: in a process of their own, or in this one, which has its imports done."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from flows.__main__ import main
from tests import ROOT


def typed_as(values: Mapping[str, object], prefix: str = "") -> list[str]:
    """Options as they are typed; a list is repeated, a mapping is a group."""
    typed: list[str] = []
    for name, value in values.items():
        option = f"{prefix}{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            typed += typed_as(value, f"{option}.")
        elif value is True:
            typed.append(f"--{option}")
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                typed += [f"--{option}", str(one)]
    return typed


def run_python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, such as -c and a program."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `jixu ARGUMENTS`."""
    with patch.dict(os.environ):
        # Prefect's files go into the workspace, as they do for a user
        os.environ.pop("PREFECT_HOME", None)
        return run_python("-m", "flows", *arguments, **environment)


def output_of(*arguments: object, **environment: str) -> str:
    """What `python ARGUMENTS` prints, which must end well."""
    done = run_python(*arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def begin(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Begin `jixu ARGUMENTS` as in a terminal, which sends Ctrl-C to its whole group."""
    return subprocess.Popen(
        [sys.executable, "-m", "flows", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | environment, start_new_session=True,
    )  # fmt: skip


def run_here(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in this process."""
    output, errors = StringIO(), StringIO()
    # which takes back what a command sets for itself
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["jixu"]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def complete(job: str, options: Mapping[str, object], **environment: str) -> str:
    """Run a job in this process, which must end well; what it printed."""
    done = run_here(job, *typed_as(options), **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], message: str, *unwritten: Path) -> None:
    """Assert that a command refused its input in one line, and left no such files."""
    assert done.returncode == 2 and not done.stdout, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert message in done.stderr, done.stderr
    for path in unwritten:
        assert not path.exists()
