"""Faces of packages: the names that `__init__.pyi` lists, imported when they are first used (PEP 562)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub beside its `__init__.py`.

    Type checkers and editors read the stub; torch, Prefect, DuckDB and jieba load when they are needed.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    nodes = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{package}.{node.module}" for node in nodes for alias in node.names}

    def __getattr__(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__, lambda: sorted(homes), sorted(homes)
