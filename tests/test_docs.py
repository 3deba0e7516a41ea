"""The commands of the documentation run, and what it quotes exists."""

import ast
import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from itertools import chain
from textwrap import indent

import pytest
import torch

from albert.finetuning import predict_file
from benchmarks.support.sizing import table, training_table
from data.catalog import open_workspace
from data.cleaning import QualityRules
from data.refresh import load_recipe
from flows.__main__ import GROUPS, SERVICES, tree
from flows.orchestration.command import make_command
from flows.orchestration.options_page import page
from flows.orchestration.settings import JOBS
from tests.corpora import ask
from tests.pages import DOCS, PAGES, ROOT, blocks, follow
from tests.test_layering import MODULES
from tests.test_notebooks import check

TEXTS = {path.name: path.read_text(encoding="utf-8") for path in (*PAGES, ROOT / "README.md")}


@pytest.fixture(scope="module")
def followed(tmp_path_factory, prefect_server):
    """A folder in which every command of the pages was run, with its workspace inside."""
    folder = tmp_path_factory.mktemp("docs")
    follow(folder, prefect_server)
    return folder


@pytest.mark.slow
def test_the_commands_leave_what_the_pages_say(followed):
    workspace = followed / "workspace"
    assert (workspace / "reports" / "judged" / "index.html").is_file()
    assert ask(workspace, "select distinct corpus from versions order by all") == [("tea",), ("tea-guarded",)]
    card = (workspace / "models/first/checkpoint-16/README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card and "| tea.jsonl | Apache-2.0 |" in card


@pytest.mark.slow
def test_the_notebook_of_evaluations_keeps_comparisons_apart(followed, tmp_path, monkeypatch):
    workspace = tmp_path / "workspace"
    shutil.copytree(followed / "workspace", workspace)
    shutil.rmtree(workspace / "models" / "first")  # the catalog still has the run
    tables = check("evaluation", workspace, monkeypatch)
    (means,) = (table for table in tables if "mean" in table)
    assert "judged" in means  # models of other comparisons may have the same names


@pytest.fixture
def run_code(followed, monkeypatch):
    """Runs code in Python of a page, in the folder of its commands; returns its variables."""
    monkeypatch.chdir(followed)

    def run(page, number=0):
        exec(blocks(page, "python")[number][1], found := {})
        return found

    return run


@pytest.mark.slow
def test_the_checkpoint_opens_with_transformers_and_a_step_of_ones_own_lowers_the_loss(run_code):
    found = run_code("quickstart.md", 1)
    with torch.no_grad():
        assert found["model"](found["batch"]).loss < found["loss"]


@pytest.mark.slow
def test_the_kept_classifier_opens_with_transformers(followed, run_code, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(followed / "modules"))
    monkeypatch.setattr("albert.runtime.usual_precision", lambda device: "fp32")  # as transformers computes
    classify = run_code("fine-tuning.md")["classify"]
    (followed / "one.tsv").write_text("text\n水开以后再泡茶。\n", encoding="utf-8")
    predicted = predict_file(followed / "workspace" / "models" / "judged" / "after", followed / "one.tsv")
    (theirs,) = classify("水开以后再泡茶。")
    assert (theirs["label"],) == predicted.predictions.answers
    assert theirs["score"] == pytest.approx(predicted.predictions.probabilities.max(), abs=1e-6)


@pytest.mark.slow
def test_jobs_called_in_a_script_find_what_their_commands_made(followed, prefect_server):
    (_, code), _ = blocks("quickstart.md", "python")
    script = followed / "jobs.py"
    script.write_text(f'if __name__ == "__main__":\n{indent(code, "    ")}', encoding="utf-8")
    environment = {**os.environ, **prefect_server, "PYTHONPATH": str(ROOT), "JIXU_WORKSPACE": "workspace"}
    in_folder = {"cwd": followed, "env": environment, "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([sys.executable, script], **in_folder)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ 16 Cannot tell: .* workspace/reports/judged/index.html\n", done.stdout), done
    assert ask(followed / "workspace", "select max(version) from versions where corpus = 'tea'") == [(1,)]


@pytest.mark.slow
def test_reports_of_several_draws_give_the_mean_of_their_differences(followed, run_code):
    reports = followed / "workspace" / "reports"
    (told,) = json.loads((reports / "judged" / "metrics.json").read_text(encoding="utf-8"))["evaluations"]
    for folder in (reports / "draw-1", reports / "draw-2"):
        shutil.copytree(reports / "judged", folder)
    found = run_code("report.md")
    assert found["scores"]("models", 0).shape == (2 * len(told["seeds"]), told["examples"][told["split"]])
    assert found["change"].mean == pytest.approx(told["differences"][0]["mean"])


@pytest.mark.slow
def test_every_question_is_answered_and_the_answers_agree_with_each_other(followed):
    queries = [query for _, query in blocks("questions.md", "sql")]
    with open_workspace(followed / "workspace") as statistics:
        answers = [statistics.sql(query).fetchall() for query in queries]
        kept = "select corpus, count(*) from documents where dropped_reason is null group by corpus"
        assert {row[0]: row[2] for row in answers[0]} == dict(statistics.sql(kept).fetchall())
        ((tea,),) = statistics.sql("select count(*) from documents where corpus = 'tea'").fetchall()
    assert len(queries) == 20 and all(answers), [q for q, a in zip(queries, answers, strict=True) if not a]
    fates = {fate: documents for corpus, fate, documents, _ in answers[3] if corpus == "tea"}
    assert sum(fates.values()) == tea and fates["kept"] > max(fates.values()) / 2
    assert {row[1] for row in answers[18]} == {"first"} and {row[1] for row in answers[19]} == {"judged"}
    shares = dict(answers[13])
    assert abs(sum(shares.values()) - 1) < 1e-9 and 0.75 < shares["[MASK]"] < 0.85


@cache
def messages():
    """The text constants of the sources; an f-string's values are "…"."""
    found = []
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_the_program_gives_every_message_of_troubleshooting():
    given = messages()
    quoted = re.findall(r"^> (.+)$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.M)
    assert len(quoted) > 20
    assert not [message for message in quoted if message not in given]


def test_the_page_of_options_and_tables_of_sizes_and_times_are_up_to_date(write):
    assert page() == (DOCS / "options.md").read_text(encoding="utf-8")
    ((_, recipe),) = blocks("options.md", "yaml")
    assert load_recipe(write("recipe.yaml", recipe))["quality"] == QualityRules()
    assert table() in TEXTS["scale.md"]
    assert training_table() in TEXTS["quickstart.md"]


@pytest.mark.parametrize("path", (*PAGES, ROOT / "README.md"), ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        assert (path.parent / file).is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (path.parent / file).read_text(encoding="utf-8"), re.M)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


@cache
def commands():
    """The commands of jixu that take options, by name."""
    tools = (*SERVICES, *GROUPS)
    jixu = tree(*tools)
    return {name: make_command(name) for name in JOBS} | {name: jixu[name] for name in tools}


@cache
def options():
    """The options of every command of jixu, those within groups too."""
    tools = [[app[name] for name in app if name[0] != "-"] or [app] for app in commands().values()]
    arguments = [one for tool in chain(*tools) for one in tool.assemble_argument_collection()]
    return {name for argument in arguments for name in argument.names}


def test_quoted_commands_are_valid_and_named_modules_exist():
    """Also commands that no test runs, such as one for a cluster."""
    for name, text in TEXTS.items():
        for module in set(re.findall(r"python -m ([\w.]+)", text)):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{name}: {module}"
    pattern = r"(?:^|`)jixu ([a-z]+(?:-[a-z]+)*) (.+?)(?:`|    #|$)"
    quoted = [match for text in TEXTS.values() for match in re.findall(pattern, text, re.M)]
    assert len(quoted) > 20
    known = commands()
    for name, arguments in quoted:
        tokens = shlex.split(arguments)
        if "--recipe" in tokens:  # names the corpus
            tokens += ["--corpus", "law"]
        if name in known:  # prose also says "jixu continues"
            known[name].parse_args(tokens, exit_on_error=False, print_error=False)


def test_options_that_pages_and_messages_name_exist():
    benchmark = (ROOT / "benchmarks/gpu/__main__.py").read_text(encoding="utf-8")
    of_others = {"--help", "--host", "--watch", "--nthreads", "--all", "--type"}
    of_others |= {"--nproc-per-node", "--version", "--font"}
    known = options() | of_others | set(re.findall(r'"(--.+?)"', benchmark))
    for name, text in (*TEXTS.items(), ("messages", messages())):
        unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z.-]*[a-z]", text)) - known
        assert not unknown, f"{name}: {unknown}"


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if ">>> " in path.read_text()])
def test_the_examples_of_docstrings_hold(module):
    assert doctest.testmod(import_module(module)).failed == 0
