"""The jobs as deployments: `flows.serve` as it is started by `make serve`, runs by Prefect's own command."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import psutil
import pytest
from filelock import FileLock

from tests.conftest import save_small_model
from tests.flows.serving import DEADLINE, ROOT, Server, free_port, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("server") / "w"
    # as soon as may be: a run waits for the worker's next look, and for a slot
    quick = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    quick["PREFECT_API_AUTH_STRING"] = "tea:pot"
    quick["PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS"] = "1"
    quick["PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS"] = "1"
    server = Server(workspace, free_port(), **quick)
    try:
        server.wait_until_it_serves()
        yield server
    finally:
        server.stop()
        server.output.close()


@pytest.fixture(scope="module")
def tea(server, samples, vocabulary_file):
    """The corpus tea, refreshed by two runs begun at once."""
    given = {
        "corpus": "tea",
        "source": [str(samples / "tea.jsonl")],
        "tokenizer": str(vocabulary_file),
        "max_seq_length": 64,
        "workers": 1,
    }
    return [server.begin("refresh-corpus/default", **given) for _ in range(2)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("model") / "small"
    return str(save_small_model(folder, tokenizer, max_position_embeddings=64))


def catalog(server, query):
    with duckdb.connect(str(server.workspace / "catalog.duckdb"), read_only=True) as db:
        return db.sql(query).fetchall()


def test_a_second_refresh_waits_for_the_first(server, tea):
    waited = set()

    def ended():
        waited.update(name for run in tea for name in [server.state(run)[0]])
        return all(server.state(run)[0] in ("Completed", "Failed", "Crashed") for run in tea)

    wait_until(ended, lambda: server.said()[-3000:])
    assert [server.state(run)[0] for run in tea] == ["Completed", "Completed"], server.said()[-3000:]
    assert "AwaitingConcurrencySlot" in waited
    begun, done = (server.ask(f"/flow_runs/{run}") for run in tea)
    if done["start_time"] < begun["start_time"]:
        begun, done = done, begun
    assert begun["end_time"] <= done["start_time"]
    # the second found nothing new
    assert catalog(server, "select corpus, version, status from versions") == [("tea", 1, "ready")]
    for run in tea:
        assert {"funnel-tea", "gates-tea"} <= server.artifacts(run)


def test_a_training_by_the_command_line_waits_for_its_device_and_completes(server, tea, checkpoint):
    for run in tea:
        server.wait_for_state(run, "Completed")
    given = {"corpus": "tea", "init": checkpoint, "steps": 8, "batch_tokens": 512, "run": "whole"}
    options = ("--watch", "--watch-interval", "1")
    with ThreadPoolExecutor(1) as pool, FileLock(server.workspace / "locks" / "device-cpu.lock"):
        watching = pool.submit(server.run, "continued-pretraining/default", *options, **given)
        waits = {"logs": {"level": {"ge_": 20}}}
        wait_until(
            lambda: any(
                "waiting for it to end" in log["message"] for log in server.ask("/logs/filter", waits)
            ),
            lambda: server.said()[-3000:],
        )
        assert not (server.workspace / "models" / "whole").exists()
    done = watching.result()
    assert done.returncode == 0 and "finished successfully" in done.stdout, done.stdout + done.stderr
    run = re.search(r"UUID: ([0-9a-f-]{36})", done.stdout)[1]
    assert server.state(run)[0] == "Completed"
    assert {"verdict-whole", "report-whole", "training-whole", "progress-whole"} <= server.artifacts(run)
    logged = server.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
    for line in ("checkpoint at step 8 of 8, ", "whole: completed after 8 steps, "):
        assert any(log["message"].startswith(line) for log in logged), logged
    runs = "select status, steps from pretraining_runs where run = 'whole'"
    assert catalog(server, runs) == [("completed", 8)]
    assert catalog(server, "select count(*) > 0 from checkpoints where run = 'whole'") == [(True,)]
    assert (server.workspace / "reports" / "whole" / "index.html").is_file()


def test_every_job_is_deployed_with_a_form(server):
    flows = {one["id"]: one["name"] for one in server.ask("/flows/filter", {})}
    found = {f"{flows[one['flow_id']]}/{one['name']}": one for one in server.ask("/deployments/filter", {})}
    jobs = ["refresh-corpus", "continued-pretraining", "fine-tune", "train-tokenizer", "end-to-end"]
    assert set(found) == {f"{job}/default" for job in [*jobs, "lcqmc-experiment"]} | {
        "refresh-corpus/law-weekly"
    }
    ((schedule,),) = [one["schedules"] for one in found.values() if one["schedules"]]
    told = {name: schedule["schedule"][name] for name in ("cron", "timezone")}
    assert told == {"cron": "30 2 * * 1", "timezone": "Asia/Shanghai"} and not schedule["active"]
    form = found["continued-pretraining/default"]["parameter_openapi_schema"]["properties"]
    assert (
        form["steps"]["minimum"] == 1
        and form["steps"]["default"] == 1000
        and "步数" in form["steps"]["description"]
    )
    assert {one["work_pool_name"] for one in found.values()} == {"local"} and all(
        o["tags"] for o in found.values()
    )


def test_wrong_parameters_are_refused_before_a_run_is_made(server):
    for wrong, message in [
        ({"corpus": "tea", "steps": "many"}, "many"),
        ({"corpus": "tea", "steps": 0}, "less than the minimum of 1"),
        ({"corpus": "tea", "masking": "sometimes"}, "sometimes"),
    ]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.begin("continued-pretraining/default", **wrong)
        assert refused.value.code == 409 and message in refused.value.read().decode()
    done = server.run("continued-pretraining/default", corpus="tea", stepz=3)
    assert done.returncode and "stepz" in done.stdout + done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_weekly_refresh_is_dropped_while_the_last_one_runs(server, tea, samples, vocabulary_file):
    """`collision_strategy: CANCEL_NEW` of law-weekly, beside the ENQUEUE of default."""
    for run in tea:
        server.wait_for_state(run, "Completed")
    given = {"corpus": "weekly", "source": [str(samples / "general.txt")], "workers": 1}
    given["tokenizer"] = str(vocabulary_file)
    with FileLock(server.workspace / "locks" / "catalog.lock"):  # the first cannot commit and end
        first = server.begin("refresh-corpus/law-weekly", **given)
        server.wait_for_state(first, "Running")
        second = server.begin("refresh-corpus/law-weekly", **given)
        name, message = server.wait_for_state(second, "Cancelled", "Completed", "Failed")
        assert name == "Cancelled" and "concurrency" in message.lower(), message
        assert server.state(first)[0] == "Running"
        # one of another deployment is no other week's: it takes its turn
        other = server.begin("refresh-corpus/default", **given)
        waits = {"logs": {"flow_run_id": {"any_": [other]}}}
        told = "corpus 'weekly' is being refreshed by another process: waiting for it to end"
        wait_until(lambda: told in [log["message"] for log in server.ask("/logs/filter", waits)], server.said)
    for run in (first, other):
        assert server.wait_for_state(run, "Completed", "Failed")[0] == "Completed", server.said()[-3000:]
    assert catalog(server, "select count(*) from versions where corpus = 'weekly'") == [(1,)]


def test_a_schedule_fires_and_takes_in_a_file_that_was_added(server, samples, vocabulary_file, tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    general = (samples / "general.txt").read_text(encoding="utf-8")
    (folder / "1.txt").write_text(general[: len(general) // 2], encoding="utf-8")
    given = {"corpus": "daily", "source": [str(folder)], "tokenizer": str(vocabulary_file), "workers": 1}
    deployment = server.ask("/deployments/name/refresh-corpus/default")["id"]
    every = {"schedule": {"interval": 10}, "active": True, "slug": "daily", "parameters": given}
    (schedule,) = server.ask(f"/deployments/{deployment}/schedules", [every])

    def versions():
        if not (server.workspace / "catalog.duckdb").is_file():
            return []
        return catalog(server, "select version, documents from versions where corpus = 'daily' order by 1")

    try:
        wait_until(lambda: len(versions()) == 1, lambda: server.said()[-3000:])
        (folder / "2.txt").write_text(general[len(general) // 2 :], encoding="utf-8")
        wait_until(lambda: len(versions()) == 2, lambda: server.said()[-3000:])
    finally:
        server.ask(f"/deployments/{deployment}/schedules/{schedule['id']}", method="DELETE")
    (_, before), (_, after) = versions()
    assert after > before


@contextmanager
def receiver():
    """A web server on this machine, and what was posted to it."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/hook", posted
        http.shutdown()


def automations(server, *arguments):
    home = {"PREFECT_API_URL": server.api, "PREFECT_HOME": str(server.workspace / "client")}
    command = [sys.executable, "-m", "flows.orchestration.automations", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=server.environment | home, timeout=DEADLINE
    )


def test_failures_are_told_to_a_webhook_and_drift_starts_pretraining(
    server, tea, samples, vocabulary_file, checkpoint, tmp_path
):
    given = {"corpus": "drifting", "tokenizer": str(vocabulary_file), "max_seq_length": 64, "workers": 1}
    source = tmp_path / "raw"
    source.mkdir()
    (source / "1.txt").write_text((samples / "general.txt").read_text(encoding="utf-8"), encoding="utf-8")
    given["source"] = [str(source)]
    server.complete("refresh-corpus/default", **given)
    start = {"corpus": "drifting", "init": checkpoint, "steps": 2, "batch_tokens": 512, "run": "start"}
    server.complete("continued-pretraining/default", **start)
    with receiver() as (hook, posted):
        done = automations(server, "--webhook", hook, "--pretrain-after-drift", "2")
        assert done.returncode == 0, done.stderr
        assert automations(server, "--webhook", hook).returncode == 0  # in place of the first, not beside it
        failed = server.begin("continued-pretraining/default", corpus="law", init=checkpoint)
        name, message = server.wait_for_state(failed, "Failed", "Crashed", "Completed")
        assert name == "Failed" and "no corpus 'law' in this workspace (there is:" in message
        wait_until(lambda: posted, lambda: server.said()[-3000:])
        assert len(posted) == 1 and "pretrain tiny" not in posted[0]["text"]
        for told in ("continued-pretraining: pretrain", "on law is Failed", "no corpus 'law'", failed):
            assert told in posted[0]["text"], posted
    (source / "2.jsonl").write_bytes((samples / "tea.jsonl").read_bytes())
    server.complete("refresh-corpus/default", **given, event_if="mlm_loss>-100")
    (found,) = server.ask("/artifacts/filter", {"artifacts": {"key": {"any_": ["drift-drifting"]}}})
    measured = {row["measure"]: row["value"] for row in json.loads(found["data"])}
    assert measured["new_words"] > 0 and abs(measured["mlm_loss"]) < 5
    newest = str(server.workspace / "models" / "start" / "checkpoint-2")

    def triggered():
        runs = server.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["continued-pretraining"]}}})
        return [run for run in runs if run["parameters"].get("init") == newest]

    wait_until(triggered, lambda: server.said()[-3000:])
    (run,) = triggered()
    server.wait_for_state(run["id"], "Completed", "Failed", "Crashed")
    assert server.state(run["id"])[0] == "Completed", server.state(run["id"])
    assert run["parameters"]["steps"] == 2 and run["parameters"]["corpus"] == "drifting"


def test_what_is_wrong_with_a_workspace_is_the_message_of_the_failed_run(server, tea, checkpoint, tmp_path):
    """A shard that is gone, a catalog of a newer jixu: failed with a line on it; what was there stays."""
    for run in tea:
        server.wait_for_state(run, "Completed")
    kept_out = shutil.ignore_patterns(".prefect", "client")
    damaged = Path(shutil.copytree(server.workspace, tmp_path / "w", ignore=kept_out))
    (shard,) = damaged.glob("shards/tea/*.parquet")
    shard.unlink()
    newer = tmp_path / "newer"
    newer.mkdir()
    shutil.copy(server.workspace / "catalog.duckdb", newer)
    with duckdb.connect(str(newer / "catalog.duckdb")) as db:
        db.execute("update meta set catalog_version = 99")
    before = (newer / "catalog.duckdb").read_bytes()
    gone = "shard(s) of tea version 1 are gone"
    for workspace, told in ((damaged, gone), (newer, "written by a newer jixu")):
        given = {"corpus": "tea", "init": checkpoint, "workspace": str(workspace)}
        run = server.begin("continued-pretraining/default", **given)
        name, message = server.wait_for_state(run, "Failed", "Crashed", "Completed")
        assert name == "Failed" and told in message, message
    assert (newer / "catalog.duckdb").read_bytes() == before
    assert catalog(server, "select count(*) from versions where corpus = 'tea'") == [(1,)]


def test_a_killed_run_is_marked_resumed_and_cancelled_with_a_checkpoint(server, tea, checkpoint):
    given = {"corpus": "tea", "init": checkpoint, "steps": 8000, "batch_tokens": 128, "run": "long"}
    for run in tea:
        server.wait_for_state(run, "Completed")
    folder = server.workspace / "models" / "long"
    killed = server.begin("continued-pretraining/default", **given)
    wait_until(lambda: list(folder.glob("checkpoint-1000")), lambda: server.said()[-3000:])
    os.kill(int(server.ask(f"/flow_runs/{killed}")["infrastructure_pid"]), signal.SIGKILL)
    name, message = server.wait_for_state(killed, "Crashed", "Failed", "Completed")
    assert name == "Crashed" and "SIGKILL" in message

    again = server.begin("continued-pretraining/default", **given)
    metrics = folder / "metrics.jsonl"
    size = metrics.stat().st_size
    wait_until(lambda: metrics.stat().st_size > size + 500, lambda: server.said()[-3000:])
    assert server.prefect("flow-run", "cancel", again).returncode == 0
    assert server.wait_for_state(again, "Cancelled", "Failed", "Crashed", "Completed")[0] == "Cancelled"
    steps = [json.loads(line)["step"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    # it went on from the killed run's checkpoint, and stopped with one of its own
    assert steps == sorted(steps) and 1000 <= steps[-1] < 8000
    ((status, at),) = catalog(server, "select status, steps from pretraining_runs where run = 'long'")
    assert status == "interrupted" and at > 1000 and (folder / f"checkpoint-{at}").is_dir()


@pytest.fixture(scope="module")
def whole(server, tea, checkpoint, samples):
    """What is given to an end-to-end run whose pretraining goes on for minutes."""
    for run in tea:
        server.wait_for_state(run, "Completed")
    splits = {split: str(samples / f"tea_topics_{split}.tsv") for split in ("train", "dev", "test")}
    sizes = {"max_seq_length": 64, "steps": 100_000, "batch_tokens": 512, "workers": 1}
    return {
        "init": checkpoint,
        "domain": [str(samples / "tea.jsonl")],
        "task": "tea-topics",
        **splits,
        **sizes,
    }


def domain_run(server):
    """The name of the end-to-end run's pretraining, and the steps that its metrics tell of."""
    for metrics in server.workspace.glob("models/domain-*/metrics.jsonl"):
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        return metrics.parent.name, [json.loads(line)["step"] for line in lines if line.endswith("\n")]
    return None, []


def test_an_end_to_end_run_that_is_cancelled_in_its_training_is_cancelled_with_a_checkpoint(server, whole):
    run = server.begin("end-to-end/default", **whole)
    wait_until(lambda: any(domain_run(server)[1]), lambda: server.said()[-3000:])
    server.cancel(run)
    state = server.wait_for_state(run, "Cancelled", "Failed", "Crashed", "Completed")
    assert state[0] == "Cancelled", state
    parts = server.ask("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    states = {part["name"]: part["state"]["name"] for part in parts}
    assert states == {"refresh domain": "Completed", "pretrain " + whole["init"] + " on domain": "Cancelled"}
    wait_until(lambda: not processes_of(run), lambda: processes_of(run))
    name, steps = domain_run(server)
    rows = f"select status, steps from pretraining_runs where run = '{name}'"
    ((status, at),) = catalog(server, rows)
    assert status == "interrupted" and 0 < max(steps) <= at < 100_000
    assert (server.workspace / "models" / name / f"checkpoint-{at}").is_dir()
    assert not list(server.workspace.glob("reports/end-to-end-*"))


def processes_of(run):
    """Of a run and what it began: they all have its environment."""
    processes = psutil.process_iter(["environ", "cmdline"])
    return [p.info["cmdline"] for p in processes if run in (p.info["environ"] or {}).values()]


def test_who_has_no_password_is_kept_out(server, tmp_path):
    for path in ("/admin/version", "/flow_runs/count"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(server.api + path, timeout=30)
    with_none = {k: v for k, v in server.environment.items() if k != "PREFECT_API_AUTH_STRING"}
    with_none |= {"PREFECT_API_URL": server.api, "PREFECT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "flows.orchestration.doctor", "--workspace", str(server.workspace)]
    done = subprocess.run(command, cwd=ROOT, env=with_none, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1 and "it wants a password: set PREFECT_API_AUTH_STRING" in done.stdout


def test_pages_of_other_sites_are_not_let_in(server):
    port = server.api.split(":")[2].removesuffix("/api")
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    allowed = []
    for origin in (f"http://127.0.0.1:{port}", f"http://localhost:{port}", "https://example.org"):
        question = urllib.request.Request(server.api + "/deployments/filter", method="OPTIONS")
        for name, value in {**asked, "Origin": origin}.items():
            question.add_header(name, value)
        try:
            with urllib.request.urlopen(question, timeout=30) as answer:
                allowed.append(answer.headers["access-control-allow-origin"] in ("*", origin))
        except urllib.error.HTTPError:
            allowed.append(False)
    assert allowed == [True, True, False]


def test_two_servers_on_one_port_or_workspace_are_refused(server, tmp_path):
    port = server.api.split(":")[2].removesuffix("/api")
    for workspace, other, message in [
        (tmp_path / "w", port, f"port {port} of 127.0.0.1 cannot be used"),
        (server.workspace, str(free_port()), "is being served already"),
    ]:
        command = [
            sys.executable,
            "-m",
            "flows.orchestration.serve",
            "--port",
            other,
            "--workspace",
            str(workspace),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE)
        assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, (
            done.stderr
        )


def test_the_same_goes_on_from_there_and_a_stop_cancels_it_and_ends_every_process(server, whole):
    """Last of the module: it takes the server away."""
    name, before = domain_run(server)
    run = server.begin("end-to-end/default", **whole)
    wait_until(lambda: len(domain_run(server)[1]) > len(before), lambda: server.said()[-3000:])
    assert server.stop() == 0, server.said()
    assert not processes_of(run)
    with pytest.raises(OSError):
        server.ask("/health")
    with closing(sqlite3.connect(server.workspace / ".prefect" / "prefect.db")) as db:
        states = dict(db.execute("select replace(id, '-', ''), state_name from flow_run"))
    assert states[run.replace("-", "")] == "Cancelled"
    same, steps = domain_run(server)
    assert same == name and steps == sorted(steps) and steps[: len(before)] == before
    ((status, at),) = catalog(server, f"select status, steps from pretraining_runs where run = '{name}'")
    assert status == "interrupted" and at >= max(steps)
