"""The commands as a user runs them: help, refusals, and the whole way on a small sample."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from albert.reports import read_report, report_text, write_card
from data.workspace import Workspace
from flows.end_to_end import finished
from flows.orchestration import RefreshOutcome
from flows.orchestration.settings import JOBS
from tests.albert.report_samples import pretraining
from tests.commands import begin, complete, output_of, run, run_here, typed_as
from tests.conftest import SAMPLES, few_examples, few_texts, save_small_model
from tests.corpora import ask, make_corpus
from tests.flows.serving import add_database, stopped_at, wait_until


@pytest.mark.parametrize("command", JOBS)
def test_help_answers(command):
    done = (run if command == "refresh-corpus" else run_here)(command, "--help")
    assert done.returncode == 0 and "--workspace" in done.stdout and not done.stderr


def test_a_flow_file_is_the_same_command():
    assert output_of("-m", "flows.train_tokenizer", "--help") == run_here("train-tokenizer", "--help").stdout


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return few_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, texts, vocabulary_file, prefect_server):
    """A workspace with one corpus, made by the command."""
    root = tmp_path_factory.mktemp("jixu") / "w"
    given = {"corpus": "tea", "source": texts[1], "tokenizer": vocabulary_file, "workers": 2}
    done = run("refresh-corpus", *typed_as(given), "--workspace", root, **prefect_server)
    assert done.returncode == 0 and "tea version 1" in done.stdout, done.stderr
    return root


def test_a_recipe_a_dry_run_and_new_words(tmp_path, write, samples, vocabulary_file, prefect_server):
    write("guard.tsv", "text\n没有一篇文档里会有这样的一句话的\n")
    recipe = f"corpus: 茶\nsource: {samples / 'tea.jsonl'}\ntokenizer: {vocabulary_file}\n"
    recipe += "instances: {sop: off}\nguard: {files: [guard.tsv]}\ndiscover_words: 20\nworkers: 1\n"
    given = {"recipe": write("tea.yaml", recipe), "workspace": tmp_path / "w"}
    preview = given | {"dry_run": True}
    assert "茶 is new: 1 source(s) would be read" in complete("refresh-corpus", preview)
    assert not (tmp_path / "w").exists()
    made = complete("refresh-corpus", given, **prefect_server)
    assert "茶 version 1" in made and "prediction off" in made
    assert (tmp_path / "w/lexicons/茶/version-1.tsv").is_file()
    assert "nothing would change: 茶 version 1 is still current" in complete("refresh-corpus", preview)
    assert "茶 would be built anew, as seed changed" in complete("refresh-corpus", preview | {"seed": 5})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_refresh_and_its_workers(number, tmp_path, texts, vocabulary_file, prefect_server):
    """And the same again completes."""
    given = {"corpus": "tea", "tokenizer": vocabulary_file, "workers": 1, "source": texts[1]}
    given["workspace"] = tmp_path / "w"
    lock = Workspace(tmp_path / "w").lock("catalog")
    lock.parent.mkdir(parents=True)
    # locked, it cannot commit and end
    with FileLock(lock), begin("refresh-corpus", *typed_as(given), **prefect_server) as process:
        wait_until(lambda: list((tmp_path / "w").rglob("*.parquet")))
        workers = psutil.Process(process.pid).children(recursive=True)
        # SIGINT from the terminal reaches all
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        assert process.communicate() == ("", "refresh-corpus: stopped\n")
    assert process.returncode == 75 and workers and not psutil.wait_procs(workers, 60)[1]
    assert "tea version 1" in complete("refresh-corpus", given, **prefect_server)


@pytest.mark.slow
def test_a_training_that_has_a_server_of_its_own_is_stopped_with_it(workspace, tokenizer, tmp_path):
    """A service manager sends SIGTERM to the server too, which the training still reports to."""
    workspace = Path(shutil.copytree(workspace, tmp_path / "w"))
    given = {"corpus": "tea", "workspace": workspace, "steps": 100_000, "batch_tokens": 256, "run": "stopped"}
    given["init"] = save_small_model(tmp_path / "small", tokenizer)
    add_database(tmp_path / "prefect")
    home = str(tmp_path / "prefect")
    with begin("continued-pretraining", *typed_as(given), PREFECT_HOME=home) as process:
        log = Workspace(workspace).model("stopped") / "metrics.jsonl"
        wait_until(lambda: log.is_file() and "mlm_loss" in log.read_text())
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            one.terminate()
        output, errors = process.communicate()
    assert process.returncode == 75 and "stopped: interrupted after" in output, errors
    assert "Traceback" not in errors
    assert 0 < stopped_at(workspace, "stopped") < 100_000


def test_what_would_follow_a_training_that_was_stopped_is_stopped_too(tmp_path):
    stopped = replace(pretraining(tmp_path), status="interrupted")
    with pytest.raises(KeyboardInterrupt):
        finished(stopped)
    assert RefreshOutcome(None, None, stopped).status == "interrupted"  # its exit code is a training's


@pytest.mark.slow
def test_the_jobs_one_after_the_other(workspace, texts, tmp_path, prefect_server, tokenizer, vocabulary_file):
    make_corpus(workspace, "general", texts[0], vocabulary_file)
    tea = {"corpus": "tea", "workspace": workspace}
    training = tea | {"mix": "general:0.2", "steps": 6, "batch_tokens": 512}
    training["init"] = save_small_model(tmp_path / "small", tokenizer)
    complete("continued-pretraining", training, **prefect_server)
    assert "resumed at 6" in complete("continued-pretraining", training, **prefect_server)
    drift = {"pretrain_if": "mlm_loss>-100", "steps": 2}
    more = {"source": texts, "workers": 1, "drift": drift}
    grown = complete("refresh-corpus", tea | more, **prefect_server)
    followed = "pretraining followed: completed after 2 steps, .*/checkpoint-2\n"
    told = re.search(rf"MLM loss ([+-][\d.]+)\n{followed}", grown)
    assert told and abs(float(told[1])) < 5, grown
    (checkpoint,) = workspace.glob("models/*/checkpoint-6")
    card = write_card(checkpoint, source_licences={"general": "cc0-1.0"}).read_text(encoding="utf-8")
    assert "| tea, version 1 |" in card and "| general, version 1 |" in card and "cc0-1.0" in card
    assert "| running.accumulate | 1 |" in card and "| mix.1.share | 0.2 |" in card  # as the run settled it
    assert "init_weights" not in card  # a checkpoint has weights
    asked = {"task": "topics", **few_examples(tmp_path), "seeds": "0,1", "model": [checkpoint, checkpoint]}
    asked |= {"optimizer": {"max_restarts": 0}, "epochs": 1, "learning_rate": 1e-4, "baselines": "no"}
    tuned, at_once = (
        complete("fine-tune", asked | {"workspace": place, "running": {"workers": number}}, **prefect_server)
        for place, number in ((workspace, 1), (tmp_path / "at-once", 2))
    )
    assert at_once.splitlines()[:4] == tuned.splitlines()[:4]
    first, second = (record.parent for record in sorted(workspace.glob("models/topics-*/*/task.json")))
    assert f"model {first}: seed" in tuned and not list(first.parent.glob(".training"))
    card = write_card(second, licence="mit").read_text(encoding="utf-8")
    for line in ("license: mit", "pipeline_tag: text-classification", "| task | topics", "## Evaluation"):
        assert line in card
    assert str(workspace) not in card
    labels = complete("predict", {"model": second, "input": tmp_path / "test.tsv"})
    assert len(labels.splitlines()) == 31, labels
    runs = "select corpus, version, status, steps from pretraining_runs order by version"
    assert ask(workspace, runs) == [("tea", 1, "completed", 6), ("tea", 2, "completed", 2)]
    paths = [path for (path,) in ask(workspace, "select path from checkpoints")]
    assert paths and all((workspace / path).is_dir() for path in paths)
    query = "select split, metric, count(score) from evaluations group by all order by all"
    scored = [(split, name, 4) for split in ("dev", "test") for name in ("accuracy", "macro_f1")]
    assert ask(workspace, query) == scored
    for page in workspace.glob("reports/*/index.html"):
        metrics = json.loads((page.parent / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["command"].startswith("jixu ")
        assert metrics["verdict"] in page.read_text(encoding="utf-8")
    assert len(list(workspace.glob("reports/*/index.html"))) == 3


@pytest.mark.slow
def test_the_whole_way_in_one_flow(tmp_path, prefect_server, vocabulary_file):
    """Raw text to report, on a few documents, whatever a corpus of the name was made of before."""
    make_corpus(tmp_path / "w", "domain", SAMPLES / "general.txt", vocabulary_file)
    (tmp_path / "general").mkdir()
    general, domain = few_texts(tmp_path, "answer")
    general.rename(tmp_path / "general" / general.name)
    (tmp_path / "general" / "of another kind.docx").write_bytes(b"PK")
    splits = few_examples(tmp_path, 24, 20, 20)
    read = [splits[split].read_text().split("\n")[1].split("\t")[0] for split in ("dev", "test")]
    with domain.open("a", encoding="utf-8") as more:
        more.writelines(f'{{"answer": "{text}，今年春天的新茶已经上市。"}}\n' for text in read)
    given = {"general": tmp_path / "general", "domain": domain, "task": "topics", **splits, "steps": 4}
    given |= {"reading": {"text_field": "answer"}, "text": {"vocab_size": 2000}}
    given |= {"pretraining": {"base_steps": 4, "batch_tokens": 512}}
    given["fine_tuning"] = {"seeds": "0,1", "epochs": 1, "learning_rate": 1e-4}
    given["fine_tuning"]["optimizer"] = {"max_restarts": 0}
    given["workspace"] = tmp_path / "w"
    done = run_here("end-to-end", *typed_as(given), **prefect_server)
    assert done.returncode == 0, done.stderr
    assert f"{len(read)} in_evaluation_set" in done.stderr and "no_text_field" not in done.stderr
    page = tmp_path / "w" / "reports" / "end-to-end-topics" / "index.html"
    *printed, before, after, last = done.stdout.strip().splitlines()
    assert "\n".join(printed) == report_text(read_report(page)) and last == f"report {page}"
    kept = [Path(line.split(": seed")[0].removeprefix("model ")) for line in (before, after)]
    assert [one.name for one in kept] == ["base-model", "continued"]
    assert all((one / "task.json").is_file() for one in kept)
    reasons = ask(tmp_path / "w", "select dropped_reason from documents where corpus = 'domain'")
    assert reasons.count(("in_evaluation_set",)) == len(read)
    # the report's place, as no server shows it
    keys = ["funnel-general", "funnel-domain", "dropped-domain", "progress-topics"]
    keys += [f"{kind}-end-to-end-topics" for kind in ("verdict", "report")]
    with get_client(sync_client=True) as client:
        named = ArtifactFilter(key=ArtifactFilterKey(any_=keys))
        made = {one.key: one.data for one in client.read_artifacts(artifact_filter=named)}
    assert set(made) == set(keys) and made["report-end-to-end-topics"] == f"`{page}`"
