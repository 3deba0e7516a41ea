"""The arrows of the house: flows -> albert -> kernels, flows -> data, albert -> the parts of data without a
database.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS = {"flows", "albert", "kernels", "data"}
MAY_IMPORT = {
    "kernels": {"kernels"},
    "data": {"data"},
    "albert": {"albert", "kernels", "data"},
    "flows": {"flows", "albert", "data"},
}
NEVER = {
    "kernels": {"prefect", "duckdb", "jieba", "numpy", "transformers"},
    "data": {"torch", "prefect", "triton", "transformers"},
    "albert": {"prefect", "duckdb", "jieba", "transformers", "triton"},
    "flows": {"torch", "triton", "transformers", "duckdb", "jieba"},
}


def imports(path: Path) -> list[tuple[int, str]]:
    """Line and top-level module of everything a file imports."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module.partition(".")[0]))
    return found


def test_imports_follow_the_arrows():
    wrong = []
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            for line, module in imports(path):
                if module in NEVER[package] or (module in OURS and module not in MAY_IMPORT[package]):
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_model_and_kernels_import_without_orchestrator_database_and_segmenter():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('prefect', 'duckdb', 'jieba')));"
        "import kernels, albert, albert.pretraining, albert.finetuning, albert.batching"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_packages_import_where_triton_is_not_installed():
    code = (
        "import importlib.util as u, sys; real = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'triton' else real(name, *a);"
        "import kernels, albert; assert 'triton' not in sys.modules or sys.modules['triton'] is None;"
        "import pytest\n"
        "with pytest.raises(kernels.KernelError, match='not installed'): kernels.use('triton')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
