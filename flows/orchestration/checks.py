"""A flow's parameters checked before anything is begun: whatever can be known then is refused then. Knows no
Prefect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TypeVar

from data.catalog import parse_condition, read_catalog, require_version
from data.errors import InputError
from data.refresh import plan_refresh
from data.sources import find_files
from data.workspace import Workspace, check_name
from flows.orchestration.dask import RunnerName, check_runner
from flows.orchestration.logs import is_deployed
from flows.orchestration.settings import (
    fine_tune_settings,
    next_start,
    pretraining_plan,
    refresh_settings,
    tokenizer_sources,
)

F = TypeVar("F", bound=Callable)

# albert is imported where it is used: it takes seconds


def _check_refresh(
    dry_run: bool,
    then_pretrain_if: str | None,
    then_steps: int,
    event_if: str,
    runner: RunnerName,
    dask_address: str | None,
    task_hours: float,
    **parameters: object,
) -> None:
    settings = refresh_settings(**parameters)
    parse_condition(event_if)
    check_runner(runner, dask_address, plan_refresh(settings))
    next_start(then_pretrain_if, settings)
    if not 0 < task_hours <= 10_000:
        raise InputError(f"task_hours={task_hours}: it must be more than 0, and 10,000 at most")
    if then_steps < 1:
        raise InputError(f"then_steps={then_steps}: it must be 1 or more")


def _check_pretraining(processes: int = 1, **parameters: object) -> None:
    from albert.pretraining import check_start

    if processes < 1:
        raise InputError(f"processes={processes}: it must be 1 or more")
    check_start(pretraining_plan(**parameters).settings)


def _check_fine_tune(
    workspace: str,
    run: str | None = None,
    corpus: str | None = None,
    general: str | None = None,
    workers: int | None = None,
    **parameters: object,
) -> None:
    from albert.finetuning import check_models, read_task

    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}: it must be 1 or more")
    settings = fine_tune_settings(**parameters)
    read_task(settings)
    check_models(settings)
    for name in filter(None, (corpus, general)):
        with read_catalog(Workspace(Path(workspace))) as db:
            require_version(db, name)
    if run:
        check_name(run, "run")


def _check_tokenizer(
    corpus: str | None, source: Sequence[str], workspace: str, vocab_size: int, name: str | None, **_: object
) -> None:
    tokenizer_sources(corpus, source, workspace)
    if not 100 <= vocab_size <= 250_000:
        raise InputError(f"vocab_size={vocab_size}: it must be from 100 to 250,000")
    if name:
        check_name(name, "tokenizer")


# parameters of end-to-end that are those of its fine-tuning
_JUDGED = (
    "task", "train", "dev", "test", "seeds", "epochs", "batch_size", "learning_rate", "max_seq_length",
)  # fmt: skip


def _check_end_to_end(demo: bool, **parameters: object) -> None:
    if demo:
        return
    needed = ("domain", "task", "train", "dev")
    missing = [f"--{name}" for name in needed if not parameters[name]]
    if missing:
        raise InputError(f"{', '.join(missing)} missing: give them, or --demo for the samples")
    from albert.checkpoints import names_checkpoint
    from albert.finetuning import check_models, read_task
    from albert.model import AlbertConfig

    init = str(parameters["init"])
    if not parameters["general"] and not names_checkpoint(init):
        raise InputError("give --general text to train a base model on, or --init with a checkpoint folder")
    for source in (*parameters["general"], *parameters["domain"]):
        find_files(source)
    settings = fine_tune_settings(model=[init], **{name: parameters[name] for name in _JUDGED})
    read_task(settings)
    if names_checkpoint(init):
        check_models(settings)
    else:
        AlbertConfig.preset(init)


def _check_experiment(
    experiment: str,
    general: Sequence[str],
    domain: Sequence[str],
    train: str,
    dev: str,
    test: str,
    task: str | None,
    architectures: Sequence[str],
    scale: float,
    **_: object,
) -> None:
    from albert.tasks import load_task, read_task
    from flows.experiment import ARCHITECTURES, EXPERIMENTS

    if unknown := set(architectures) - set(ARCHITECTURES):
        raise InputError(f"no architecture {min(unknown)!r}: choose of {', '.join(ARCHITECTURES)}")
    if scale <= 0:
        raise InputError(f"scale={scale}: it must be more than 0")
    if experiment != "lcqmc" and not domain:
        raise InputError(f"the {experiment} experiment needs text of its field: pass --domain")
    for source in (*general, *domain):
        find_files(source)
    splits = {"train": Path(train), "dev": Path(dev), "test": Path(test)}
    read_task(load_task(task or EXPERIMENTS[experiment].task), splits)


CHECKS: dict[str, Callable[..., None]] = {
    "refresh_corpus": _check_refresh,
    "continued_pretraining": _check_pretraining,
    "fine_tune": _check_fine_tune,
    "train_tokenizer": _check_tokenizer,
    "end_to_end": _check_end_to_end,
    "lcqmc_experiment": _check_experiment,
}


def checked(function: F) -> F:
    """Check the parameters of a deployment's run first; a command does it by itself, before it starts a
    server.
    """
    check, signature = CHECKS[function.__name__], inspect.signature(function)

    @wraps(function)
    def run(*given: object, **named: object) -> object:
        if is_deployed():
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            check(**bound.arguments)
        return function(*given, **named)

    return run
