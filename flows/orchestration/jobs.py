"""The one decorator of a flow: from its options and its function to Prefect's flow.

A job plans first. What cannot work is refused then, and where there is nothing to do the run ends then.
A command plans before Prefect is imported and hands its plan on to the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from prefect import flow, runtime
from prefect.exceptions import CancelledRun
from prefect.states import Cancelled, Completed, State
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.collections import visit_collection

from data.errors import masked
from data.options import options_of, values_of
from data.publication import working_copy
from flows.orchestration.lifecycle import ends_with_its_worker
from flows.orchestration.logs import is_deployed, log
from flows.orchestration.mistakes import drop_tracebacks, explain, failed
from flows.orchestration.plans import PREPARE, Answer
from flows.orchestration.settings import JOBS, Job

Options = TypeVar("Options", bound=Job)
Plan = TypeVar("Plan")
Outcome = TypeVar("Outcome")
_plan: ContextVar[object | None] = ContextVar("plan", default=None)


def call(run: Callable[..., Outcome], options: Job, plan: object = None) -> Outcome:
    """Run a flow with the plan of its options. These are what Prefect keeps, so they have no credentials."""
    flow: Any = run
    token = _plan.set(PREPARE[flow.name](options) if plan is None else plan)
    try:
        return run(**without_credentials(options))
    finally:
        _plan.reset(token)


def without_credentials(options: Job) -> dict[str, Any]:
    """The values of options, with URLs as they may be shown and stored."""

    def shown(one: object) -> object:
        return masked(one) if isinstance(one, str) else one

    return dict(visit_collection(values_of(options), shown, return_data=True))


def job(
    describe: Callable[[Outcome], str], *, run_name: str
) -> Callable[[Callable[[Options, Plan], Outcome | State]], Callable[..., Outcome]]:
    """Make a flow of the job that a function is named after, whose parameters are the fields of its options.

    `describe` says what came out. `run_name` is a template of parameters; the time that is put behind it
    tells runs apart. The function gets the options, their workspace a folder of this machine, and the plan
    that `PREPARE` makes of them. What it changes in the copy of a remote workspace is published when it ends.
    """

    def decorate(function: Callable[[Options, Plan], Outcome | State]) -> Callable[..., Outcome]:
        name = function.__name__.replace("_", "-")
        options = JOBS[name]

        @wraps(function)
        def run(**parameters: object) -> object:
            drop_tracebacks()
            try:
                chosen: Any = options(**parameters)
                with working_copy(chosen.workspace, read_only=chosen.dry_run) as copy:
                    return _run(name, function, describe, replace(chosen, workspace=str(copy.root)))
            except Exception as error:
                if is_deployed() and explain(error):
                    return failed(error)
                raise

        made: Any = run
        made.__signature__ = signature_of(options)
        made.__doc__ = options.__doc__
        made.__annotations__ = get_type_hints(options, include_extras=True)
        del made.__wrapped__
        threads: Any = ThreadPoolTaskRunner(max_workers=128)
        as_flow: Any = flow(name=name, flow_run_name=partial(_name_run, run_name), task_runner=threads)
        return as_flow(ends_with_its_worker(made))

    return decorate


def _run(
    name: str,
    function: Callable[[Options, Plan], Outcome | State],
    describe: Callable[[Outcome], str],
    chosen: Options,
) -> object:
    plan: Any = _plan.get()
    _plan.set(None)  # for this run alone, not for those that it calls
    plan = PREPARE[name](chosen) if plan is None else plan
    if isinstance(plan, Answer):
        log(plan.text)
        return Completed(message=plan.text, data=plan.outcome) if is_deployed() else plan.outcome
    try:
        outcome = function(chosen, plan)
    except CancelledRun:  # a run that this one called was cancelled
        return Cancelled(message="A run in it was stopped: run it again to resume.")
    if isinstance(outcome, State):
        return outcome
    text = describe(outcome)
    log(text)
    return Completed(message=text.partition("\n")[0], data=outcome) if is_deployed() else outcome


def _name_run(template: str) -> str:
    parameters = runtime.flow_run.parameters
    missing = "the samples" if parameters.get("demo") else "?"
    short = {name: missing if value is None else Path(str(value)).name for name, value in parameters.items()}
    return f"{template.format(**short)}, {datetime.now():%m-%d %H:%M:%S}"


def signature_of(options: type[Job]) -> inspect.Signature:
    """One keyword parameter a field, the required ones first.

    In a run of a deployment none is required, and any value will do: Prefect would end it with a traceback,
    where the options say in a line what is wrong. Nothing checks what a schedule is made with.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = []
    for name, field in options_of(options).items():
        default: Any = None if is_deployed() else inspect.Parameter.empty
        hint = Any if is_deployed() else hints[name]
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )
    return inspect.Signature(sorted(parameters, key=lambda one: one.default is not inspect.Parameter.empty))
