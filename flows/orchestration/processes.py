"""Training in several processes of this machine, one per GPU, while the flow records their checkpoints."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from prefect.exceptions import TerminationSignal

from albert import pretraining
from albert.pretraining import PretrainResult, PretrainSettings, TrainerState
from data.cores import cores
from data.errors import InputError
from data.workers import end

POLL_SECONDS = 0.5
STOP_SECONDS = 60.0  # to write a checkpoint and end
OnCheckpoint = Callable[[TrainerState, Path, str], None]


def train_in_processes(
    settings: PretrainSettings,
    processes: int,
    on_checkpoint: OnCheckpoint,
    check: Callable[[], None] = lambda: None,
) -> PretrainResult:
    """Run `albert.pretraining.pretrain` in several processes, as torchrun would start them on one machine.

    Ctrl-C, a termination or an error of `check` ends them with a checkpoint. Raise InputError, with the
    reason if they left one, when they end without a result.
    """
    request = settings.run_folder / "requested.json"
    pretraining.write_settings(settings, request)
    (settings.run_folder / pretraining.RESULT_FILE).unlink(missing_ok=True)
    ranks, stopped = launch(request, processes), None
    try:
        watch(ranks, settings.run_folder, on_checkpoint, check)
    except (KeyboardInterrupt, TerminationSignal) as signal:
        stopped = signal  # the result says that it was interrupted, if they had begun to train
    finally:
        end(ranks, STOP_SECONDS)
    if not (settings.run_folder / pretraining.RESULT_FILE).is_file():
        failure = pretraining.read_failure(settings.run_folder)
        if stopped and not failure:
            raise stopped
        codes = ", ".join(str(process.returncode) for process in ranks)
        unknown = "a reason that was given is printed above; run the same command again to resume"
        raise InputError(
            f"the {processes} training processes ended early, with codes {codes}: "
            + (failure.reason if failure else unknown)
        )
    result = pretraining.read_result(settings.run_folder)
    on_checkpoint(pretraining.read_trainer_state(result.checkpoint), result.checkpoint, result.status)
    return result


def launch(settings: Path, processes: int) -> list[psutil.Popen]:
    """Start a process for each rank, which trains as a settings file says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": str(max(cores() // processes, 1)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # they stop when this process is killed, since it releases its device's slot
        "JIXU_LAUNCHER": str(os.getpid()),
    }
    # -P: without the folder they start in, which may hold a package `data` of the user's
    command = [sys.executable, "-P", "-m", "albert.pretraining", str(settings)]
    return [
        # in a session of its own: Ctrl-C reaches it through this process, once
        psutil.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,  # the flow prints the same
            start_new_session=True,
        )
        for rank in range(processes)
    ]


def watch(
    ranks: Sequence[psutil.Popen],
    run_folder: Path,
    on_checkpoint: OnCheckpoint,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Report checkpoints until all processes have ended, or one of them has failed."""
    newest, started = next(iter(pretraining.list_checkpoints(run_folder)), None), _start_time(run_folder)
    while None in (codes := [process.poll() for process in ranks]) and not any(codes):
        check()
        latest = next(iter(pretraining.list_checkpoints(run_folder)), None)
        if _start_time(run_folder) != started:  # they resume from the checkpoint that was there, or begin
            newest, started = None, _start_time(run_folder)
            if latest is None:
                on_checkpoint(TrainerState(), run_folder, "running")
        if latest is not None and latest != newest and pretraining.is_whole(latest):
            with suppress(FileNotFoundError):  # the run has removed it since
                on_checkpoint(pretraining.read_trainer_state(latest), latest, "running")
            newest = latest
        time.sleep(POLL_SECONDS)


def _start_time(run_folder: Path) -> int | None:
    """Return when the processes of a run wrote its settings, after their checks, in nanoseconds."""
    path = run_folder / pretraining.SETTINGS_FILE
    return path.stat().st_mtime_ns if path.is_file() else None
