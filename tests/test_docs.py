"""What the documentation tells a reader to run runs, and what it quotes is there."""

import ast
import re
import shlex

import pytest

from benchmarks.support.sizing import table
from data.catalog import open_workspace
from flows.orchestration import automations, doctor, serve
from flows.orchestration.arguments import COMMANDS, make_parser
from tests.pages import DOCS, PAGES, ROOT, blocks, follow
from tests.test_notebooks import check


@pytest.fixture(scope="module")
def followed(tmp_path_factory, prefect_server):
    """A folder in which every command of the pages was run, with its workspace."""
    folder = tmp_path_factory.mktemp("docs")
    follow(folder, prefect_server)
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


@pytest.mark.slow
def test_answers_agree_with_each_other(followed):
    queries = [query for _, query in blocks("questions.md", "sql")]
    with open_workspace(followed / "workspace") as statistics:
        answers = [statistics.sql(query).fetchall() for query in queries]
        kept = "select corpus, count(*) from documents where dropped_reason is null group by corpus"
        assert {row[0]: row[2] for row in answers[0]} == dict(statistics.sql(kept).fetchall())
        ((tea,),) = statistics.sql("select count(*) from documents where corpus = 'tea'").fetchall()
    fates = {fate: documents for corpus, fate, documents, _ in answers[3] if corpus == "tea"}
    assert sum(fates.values()) == tea and fates["kept"] > max(fates.values()) / 2
    shares = dict(answers[13])
    assert abs(sum(shares.values()) - 1) < 1e-9 and 0.75 < shares["[MASK]"] < 0.85


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


def parsers():
    """The arguments of every command of flows."""
    jobs = {name.replace("_", "-"): make_parser(name) for name in COMMANDS}
    return {
        **jobs,
        "serve": serve.make_parser(),
        "doctor": doctor.make_parser(),
        "automations": automations.make_parser(),
    }


def test_commands_that_are_quoted_are_understood():
    """Those too that the pages show and no test runs, such as one for a cluster."""
    quoted = [
        found
        for page in (*PAGES, ROOT / "README.md")
        for found in re.findall(
            r"(?:^|`)jixu ([a-z]+(?:-[a-z]+)*) (.+?)(?:`|    #|$)", page.read_text(encoding="utf-8"), re.M
        )
    ]
    assert len(quoted) > 12
    known = parsers()
    for name, arguments in quoted:
        if name in known:
            known[name].parse_args(shlex.split(arguments))


def test_options_that_are_named_are_some_commands():
    sources = [path for package in ("data", "albert", "flows") for path in (ROOT / package).rglob("*.py")]
    told = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    of_others = {"--help", "--watch", "--nthreads"}
    for page in (*PAGES, ROOT / "README.md"):
        for option in (
            set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8"))) - of_others
        ):
            assert f'"{option}"' in told or f"{option[2:].replace('-', '_')}: " in told, (
                f"{page.name}: {option}"
            )
