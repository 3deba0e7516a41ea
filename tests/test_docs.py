"""What the documentation tells a reader to run runs, and what it quotes is there."""

import ast
import re

import pytest

from benchmarks.sizing import table
from data.statistics import open_workspace
from tests.pages import DOCS, PAGES, ROOT, blocks, follow
from tests.test_notebooks import check


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A folder in which every command of the pages was run, with its workspace."""
    folder = tmp_path_factory.mktemp("docs")
    follow(folder)
    return folder


@pytest.mark.slow
def test_the_commands_leave_what_the_pages_say(followed):
    workspace = followed / "workspace"
    assert (workspace / "reports" / "judged" / "index.html").is_file()
    with open_workspace(workspace) as statistics:
        corpora = statistics.sql("select distinct corpus from versions order by all").fetchall()
    assert corpora == [("tea",), ("tea-guarded",)]


@pytest.mark.slow
def test_the_notebook_of_evaluations_runs(followed, monkeypatch):
    check("evaluation", followed / "workspace", monkeypatch)


@pytest.mark.slow
def test_the_checkpoint_opens_with_transformers_as_told(followed, monkeypatch):
    ((_, code),) = blocks("checkpoint.md", "python")
    monkeypatch.chdir(followed)
    found = {}
    exec(code, found)
    assert found["model"].config.vocab_size >= 2000  # and every character of the text


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_a_question_is_answered_by_its_query(followed, number):
    questions = blocks("questions.md", "sql")
    assert len(questions) == 20
    with open_workspace(followed / "workspace") as statistics:
        assert statistics.sql(questions[number][1]).fetchall()


def told_messages():
    """Every text of the sources, as far as it is literal."""
    found = []
    for package in ("data", "albert", "flows", "kernels"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_every_message_of_troubleshooting_is_given_by_the_program():
    told = told_messages()
    quoted = re.findall(r"^> (.+)$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.M)
    assert len(quoted) > 20
    for message in quoted:
        assert message in told, message


def test_the_sizing_table_is_what_the_benchmarks_give():
    assert table() in (DOCS / "scale.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        assert (DOCS / path).is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (DOCS / path).read_text(encoding="utf-8"), re.M)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_modules_that_are_named_exist():
    for page in PAGES:
        for module in set(re.findall(r"python -m ([\w.]+)", page.read_text(encoding="utf-8"))):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{page}: {module}"
