"""A flow in which another one is cancelled ends as cancelled too, not as failed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from prefect.exceptions import CancelledRun
from prefect.states import Cancelled

F = TypeVar("F", bound=Callable)


def cancelled_with_its_parts(function: F) -> F:
    """Let a flow's function end with the state Cancelled where a flow that it calls has."""

    @wraps(function)
    def run(*given: object, **named: object) -> object:
        try:
            return function(*given, **named)
        except CancelledRun:
            return Cancelled(message="A run in it was stopped: run it again to go on.")

    return run
