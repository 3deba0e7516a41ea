"""Options that people type: declared once as a field with its type, default, bounds and description.

The Prefect form, the command line, the recipe file and docs/options.md are made from these declarations.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from data.errors import ConfigError, InputError

T = TypeVar("T")


def _split(value: object) -> object:
    """Let a list also be typed as one text with commas: `0,1,2`."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, str):
        return value.split(",")
    return [value] if isinstance(value, int | float) else value


def _on_off(value: object) -> object:
    """YAML reads a bare on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _listed(value: object) -> object:
    """Let a list of one be given without brackets, as in a recipe: `files: test.tsv`."""
    return [value] if isinstance(value, str | dict) or is_dataclass(value) else value


def _without_paths(value: Any) -> Any:
    """Let a path stand where its text is meant, also in a list or a group."""
    if isinstance(value, dict):
        return dict(zip(value, map(_without_paths, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return [*map(_without_paths, value)]
    return str(value) if isinstance(value, Path) else value


Commas, OnOff, Listed = BeforeValidator(_split), BeforeValidator(_on_off), BeforeValidator(_listed)
Floats = Annotated[tuple[float, ...], Commas]
Words = Annotated[tuple[str, ...], Commas]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def options(cls: type[T]) -> type[T]:
    """Make a frozen pydantic dataclass that refuses unknown names; texts below fields describe them.

    A wrong value raises ConfigError, one line that names every fault. The class's docstring gets the
    description of each field, where the command line looks for it.
    """
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    made: Any = dataclass(frozen=True, kw_only=True, config=config)(cls)
    validate: Callable[..., None] = made.__init__

    def __init__(self: object, /, **values: object) -> None:
        try:
            validate(self, **_without_paths(values))
        except ValidationError as error:
            raise ConfigError(faults(error, made)) from None

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"  # named by what Python says of a wrong call
    made.__init__ = __init__
    lines = []
    for name, one in options_of(made).items():
        if text := " ".join((one.description or "").split()):
            # where a class that inherits the field looks for it
            made.__dataclass_fields__[name].metadata = {"description": text}
            lines.append(f"    {name}: {text}")
    if lines:
        made.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "Args:", *lines])
    return made


def options_of(cls: type) -> dict[str, FieldInfo]:
    """Return the options of a class by name: defaults, bounds and descriptions."""
    return cls.__pydantic_fields__  # type: ignore[attr-defined]


def values_of(chosen: object, cls: type | None = None) -> dict[str, Any]:
    """Return the values of options, or those of them that a class has, as keyword arguments."""
    return {name: getattr(chosen, name) for name in options_of(cls or type(chosen))}


def names_of(cls: type, prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of a dataclass, those of dataclasses in it with a dot."""
    kinds = get_type_hints(cls)
    for one in fields(cls):
        yield f"{prefix}{one.name}"
        if is_dataclass(kinds[one.name]):
            yield from names_of(kinds[one.name], f"{prefix}{one.name}.")


def parse(cls: type[T], values: Mapping[str, object], place: str) -> T:
    """Make options from a file's content. Raises InputError that names the place and every fault."""
    try:
        return TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        raise InputError(f"{place}: {faults(error, cls)}") from None


def faults(error: ValidationError, cls: type) -> str:
    """Say what is wrong with each value, in a line."""
    return "; ".join(_fault(one["loc"], one["type"], one["msg"], one["input"], cls) for one in error.errors())


def _fault(loc: tuple[int | str, ...], kind: str, message: str, value: object, cls: type) -> str:
    name = ".".join(str(part) for part in loc)
    if kind == "unexpected_keyword_argument":
        group, _, wrong = name.rpartition(".")
        places = [one.rpartition(".") for one in names_of(cls)]
        names = [known for place, _, known in places if place == group]
        near = difflib.get_close_matches(wrong, names, 1)
        hint = f"; did you mean {near[0]}?" if near else f", known are {', '.join(names)}"
        return f"unknown {name}{hint}"
    if kind == "missing" or value is None:
        return f"{name} is missing"
    if message.startswith("Value error, "):
        text = message.removeprefix("Value error, ")
        return f"{name}: {text}" if name else text
    _, should, text = message.replace("valid tuple", "list").partition(" should ")
    return f"{name}={value!r}: {f'it must {text}' if should else message}"
