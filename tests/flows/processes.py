"""Processes that tests start, watch and kill: python -m tests.flows.processes FUNCTION ARGUMENTS."""

import signal
import subprocess
import sys
import time
from pathlib import Path


def train(settings):
    """Train in two processes as a settings file says."""
    from albert.pretraining import read_settings
    from flows.orchestration import train_in_processes

    # a shell's background jobs ignore Ctrl-C, and hand that on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(train_in_processes(read_settings(Path(settings)), 2, lambda *_: None).status)


def refresh(workspace, tokenizer, *sources):
    """Refresh the corpus tea without Prefect."""
    from data.refresh import RefreshSettings, refresh

    shared = {"corpus": "tea", "tokenizer": tokenizer, "workers": 1}
    print(refresh(RefreshSettings(workspace=Path(workspace), source=sources, **shared)))


def funnel(workspace):
    """Print the first row of a corpus's statistics."""
    from data.catalog import open_workspace

    print(open_workspace(Path(workspace)).funnel("tea").fetchall()[0])


def ignore_signals():
    """Hang, whatever asks to stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    print("begun", flush=True)
    time.sleep(600)


def start(*arguments, **options):
    """Start one of these functions in a process of its own, with its output in a pipe."""
    command = [sys.executable, "-m", "tests.flows.processes", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
