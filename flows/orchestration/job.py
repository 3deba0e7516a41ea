"""A flow whose workspace is a URL works in the copy on its machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from data.publication import working_copy

F = TypeVar("F", bound=Callable)


def in_working_copy(function: F) -> F:
    """Give a flow's function the folder of its `workspace`; what it makes in a URL's copy is published."""
    signature = inspect.signature(function)

    @wraps(function)
    def run(*given: object, **named: object) -> object:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        read_only = bool(bound.arguments.get("dry_run"))
        with working_copy(bound.arguments["workspace"], read_only=read_only) as folder:
            bound.arguments["workspace"] = folder
            return function(*bound.args, **bound.kwargs)

    return run
