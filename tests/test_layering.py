"""The arrows and rooms of the house: which package, room and file may import which.

A room is a folder of `flows`, `albert` or `data`; its face is `__init__.py`; `__init__.pyi` lists its names.
"""

import ast
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from tests import ROOT
from tests.commands import output_of

OURS = ("flows", "albert", "kernels", "data")
NEVER = {
    "kernels": {"flows", "albert", "data", "prefect", "duckdb", "jieba", "numpy", "transformers"},
    "data": {"flows", "albert", "kernels", "torch", "prefect", "triton", "transformers"},
    "albert": {"flows", "prefect", "duckdb", "jieba", "transformers", "triton"},
    "flows": {"kernels", "torch", "triton", "transformers", "duckdb", "jieba"},
}
GROUND = {
    "errors", "faces", "files", "hashing", "locks", "options", "storage", "terminal", "workers", "workspace",
}  # fmt: skip
# optional, within a function
ALLOWED = {
    ("albert.checkpoints.auto_models", "transformers"),
    ("albert.checkpoints.pooled_model", "transformers"),  # is copied beside weights, and imported by it alone
}
ALBERT_TAKES = GROUND | {"instances", "tokenization", "segmentation", "cleaning", "sources", "samples"}
# stems that may stand in several rooms of a package
COMMON_STEMS = {"__init__", "__main__", "settings"}


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    module: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.name or ''} of {self.module}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))}


def room_of(module: str) -> str:
    """The room of a module, or the module itself where it stands in none."""
    package, _, rest = module.partition(".")
    room = f"{package}.{rest.partition('.')[0]}"
    return room if package != "kernels" and MODULES.get(room, Path()).name == "__init__.py" else module


@cache
def imports(path: Path) -> list[Import]:
    found: list[Import] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (Import(path, node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += (Import(path, node.lineno, node.module, alias.name) for alias in node.names)
    return found


@cache
def shown_by(face: str) -> dict[str, str]:
    """Names of a room's face, and the modules they come from."""
    stub = MODULES[face].with_suffix(".pyi")
    if not stub.is_file():
        return {}
    nodes = ast.walk(ast.parse(stub.read_text(encoding="utf-8")))
    found = [(node, alias) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {alias.name: f"{face}.{node.module}" for node, alias in found}


def target(one: Import) -> str | None:
    """The module of ours that an import leads to, through faces."""
    module = one.module
    if f"{module}.{one.name}" in MODULES:
        module = f"{module}.{one.name}"
    while one.name and module in MODULES and (further := shown_by(module).get(one.name)):
        module = further
    return module if module in MODULES else None


def graph() -> dict[str, set[str]]:
    found = {}
    for module, path in MODULES.items():
        targets = {target(one) for one in imports(path)}
        found[module] = {name for name in targets if name and name != module}
    return found


def test_packages_import_what_they_may_and_from_outside_a_room_only_its_face():
    wrong = []
    for module, path in MODULES.items():
        package = path.relative_to(ROOT).parts[0]
        for one in imports(path):
            top = one.module.partition(".")[0]
            if top in NEVER[package] and (module, top) not in ALLOWED:
                wrong.append(str(one))
            part = (target(one) or "").split(".")
            if package == "albert" and part[0] == "data" and len(part) > 1 and part[1] not in ALBERT_TAKES:
                wrong.append(str(one))
            inner = f"{one.module}.{one.name}" if f"{one.module}.{one.name}" in MODULES else one.module
            room = room_of(inner)
            if inner not in (room, module) and room_of(module) != room:
                wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def test_what_benchmarks_import_is_there():
    """Within functions too, which no test runs."""
    taken = [one for path in (ROOT / "benchmarks").rglob("*.py") for one in imports(path)]
    ours = [one for one in taken if one.module in MODULES and f"{one.module}.{one.name}" not in MODULES]
    assert len(ours) > 50
    wrong = [str(one) for one in ours if one.name and not hasattr(import_module(one.module), one.name)]
    assert not wrong, "\n".join(wrong)


def test_no_files_nor_rooms_import_each_other_in_a_circle():
    files, arrows = graph(), dict[str, set[str]]()
    TopologicalSorter(files).prepare()
    for module, others in files.items():
        if MODULES[module].name != "__init__.py":
            arrows.setdefault(room_of(module), set()).update(map(room_of, others))
    TopologicalSorter({room: others - {room} for room, others in arrows.items()}).prepare()


@pytest.mark.parametrize(
    "face", sorted(m for m, path in MODULES.items() if path.with_suffix(".pyi").is_file())
)
def test_a_face_defines_nothing_and_shows_what_is_there(face):
    tree = ast.parse(MODULES[face].read_text(encoding="utf-8"))
    kinds = [type(node) for node in tree.body]
    assert kinds == [ast.Expr, ast.ImportFrom, ast.Assign], face
    for name, module in shown_by(face).items():
        assert f"{face}.{name}" not in MODULES, f"{name} is both a file and a name of {face}"
        source = ast.parse(MODULES[module].read_text(encoding="utf-8")) if module in MODULES else None
        assert source, f"{face} takes {name} from {module}"


@pytest.mark.parametrize("package", OURS)
def test_no_stem_stands_twice_in_a_package(package):
    stems: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if module.startswith(f"{package}.") and path.stem not in COMMON_STEMS and "samples" not in module:
            stems.setdefault(path.stem, []).append(module)
    reports = {"corpus", "pretraining", "evaluation"}  # a report's section is named as its room
    twice = {stem: found for stem, found in stems.items() if len(found) > 1 and stem not in reports}
    assert not twice


def test_model_and_kernels_import_without_orchestrator_database_segmenter_and_triton():
    modules = ", ".join(m for m in MODULES if m.startswith(("albert", "kernels")) and "__main__" not in m)
    absent = ("prefect", "duckdb", "jieba", "triton")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import pytest, {modules}\n"
    code += "with pytest.raises(kernels.KernelError, match='not installed'): kernels.use('triton')"
    output_of("-c", code)


def test_help_plans_and_checkpoints_load_nothing_that_takes_long():
    """So `--help` and a refusal answer at once, and what reads a checkpoint does without torch.compile."""
    of_help = ("flows.orchestration.settings", "flows.orchestration.doctor", "albert.__main__")
    of_plans = {"torch", "prefect", "jieba"}
    code = "import sys\n"
    for module in (*of_help, "flows.orchestration.plans"):
        slow = of_plans | ({"duckdb", "numpy", "pyarrow"} if module in of_help else set())
        code += f"import {module}; slow = {slow} & set(sys.modules); assert not slow, ({module!r}, slow)\n"
    code += "import albert; albert.load_pretrained('tiny-zh'); assert 'torch._dynamo' not in sys.modules\n"
    output_of("-c", code)
