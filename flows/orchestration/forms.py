"""What the UI's form says of a flow's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, get_type_hints

from pydantic.fields import FieldInfo

F = TypeVar("F", bound=Callable)


def documented(function: F) -> F:
    """Put the descriptions of a function's annotations into its docstring, where Prefect looks for them.

    It takes bounds and choices from `Annotated`, but a parameter's description from an "Args:" section alone.
    """
    lines = [function.__doc__ or "", "", "Args:"]
    for name, hint in get_type_hints(function, include_extras=True).items():
        for said in getattr(hint, "__metadata__", ()):
            if isinstance(said, FieldInfo) and said.description:
                lines.append(f"    {name}: {said.description}")
    function.__doc__ = "\n".join(lines)
    return function
