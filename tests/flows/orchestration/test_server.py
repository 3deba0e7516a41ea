"""The jobs as deployments, served by `jixu serve`; some runs are started by Prefect's own command."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from filelock import FileLock

from data.catalog import sole_writer
from data.workspace import Workspace, state_folder
from flows.orchestration.automations import CRASHES
from tests.commands import refused, run_here
from tests.conftest import save_small_model
from tests.corpora import ask
from tests.flows.serving import (
    FINAL,
    Server,
    answer,
    answering,
    free_port,
    processes_of,
    steps_of,
    stopped_at,
    wait_until,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("server") / "w"
    quick = {
        "PREFECT_API_AUTH_STRING": "tea:pot",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
    }
    with Server(workspace, free_port(), **quick) as server:
        yield server


@pytest.fixture(scope="module")
def tea(server, samples, vocabulary_file):
    """The corpus tea, refreshed by two runs begun at once."""
    given = {"corpus": "tea", "source": [str(samples / "tea.jsonl")], "tokenizer": str(vocabulary_file)}
    given |= {"max_seq_length": 64, "workers": 1}
    return [server.begin("refresh-corpus/default", **given) for _ in range(2)]


@pytest.fixture(scope="module")
def corpus(server, tea):
    """The corpus tea, once it is there."""
    for run in tea:
        server.wait_for_state(run, "Completed")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("model") / "small"
    return str(save_small_model(folder, tokenizer, max_position_embeddings=64))


def test_a_second_refresh_waits_for_the_first(server, tea):
    waited = set()

    def ended():
        states = [server.state(run)[0] for run in tea]
        waited.update(states)
        return set(states) <= set(FINAL)

    wait_until(ended, server.log)
    assert "AwaitingConcurrencySlot" in waited
    begun, done = sorted((server.ask(f"/flow_runs/{run}") for run in tea), key=lambda run: run["start_time"])
    assert begun["state"]["name"] == done["state"]["name"] == "Completed", server.log()[-3000:]
    assert begun["end_time"] <= done["start_time"]
    assert ask(server.workspace, "select corpus, version, status from versions") == [("tea", 1, "ready")]
    # the second found nothing new, and says so
    tables = [server.artifacts(run["id"]) for run in (begun, done)]
    assert {"funnel-tea", "gates-tea"} <= tables[0] and not tables[1]
    assert done["state"]["message"].startswith("nothing changed: tea version 1 is still current")


@pytest.fixture(scope="module")
def trained(server, corpus, checkpoint):
    """A training that Prefect's command started and watched, while its device was taken at first."""
    given = {"corpus": "tea", "init": checkpoint, "steps": 8, "batch_tokens": 512, "run": "whole"}
    options = ["-p" + f"{name}={json.dumps(value)}" for name, value in given.items()]
    options += ["--watch", "--watch-interval", "1"]
    with ThreadPoolExecutor(1) as pool, FileLock(server.workspace / "locks" / "device-cpu.lock"):
        command = ["prefect", "--no-prompt", "deployment", "run", "continued-pretraining/default", *options]
        watching = pool.submit(server.command, *command)
        logs = {"logs": {"level": {"ge_": 20}}}
        waiting = "another training uses cpu: waiting for it to end"
        wait_until(
            lambda: any(waiting in log["message"] for log in server.ask("/logs/filter", logs)), server.log
        )
        assert not (server.workspace / "models" / "whole").exists()
    return watching.result()


def test_a_training_by_the_command_line_waits_for_its_device_and_completes(server, trained):
    assert trained.returncode == 0 and "finished successfully" in trained.stdout, trained
    run = re.search(r"UUID: ([0-9a-f-]{36})", trained.stdout)[1]
    assert server.state(run)[0] == "Completed"
    assert {"verdict-whole", "report-whole", "progress-whole"} <= server.artifacts(run)
    for line in ("checkpoint at step 8 of 8, ", "whole: completed after 8 steps, "):
        assert any(message.startswith(line) for message in server.messages(run))
    runs = """
        select status, steps, (select count(*) > 0 from checkpoints where run = 'whole')
        from pretraining_runs where run = 'whole'
        """
    assert ask(server.workspace, runs) == [("completed", 8, True)]
    page = server.workspace / "reports" / "whole" / "index.html"
    (link,) = server.ask("/artifacts/filter", {"artifacts": {"key": {"any_": ["report-whole"]}}})
    address = server.api.removesuffix("api") + "reports/whole/index.html"
    assert f"]({address})" in link["data"]
    shown = answer(server.port, "/reports/whole/index.html", password="tea:pot")[2]
    assert shown == page.read_text(encoding="utf-8")


def test_wrong_parameters_are_refused_before_a_run_is_made(server):
    for wrong, message in [
        ({"corpus": "tea", "steps": "many"}, "many"),
        ({"corpus": "tea", "stepz": 2}, "stepz"),
        ({"corpus": "tea", "objective": {"maskng": "dynamic"}}, "maskng"),
        ({"corpus": "tea", "steps": 0}, "less than the minimum of 1"),
        ({"corpus": "tea", "objective": {"masking": "sometimes"}}, "sometimes"),
    ]:
        with pytest.raises(AssertionError, match=f"^409: .*{message}"):
            server.begin("continued-pretraining/default", **wrong)


@pytest.fixture(scope="module")
def weekly(tmp_path_factory, samples, vocabulary_file):
    """A folder with half of the general text, and what refreshes a corpus from it."""
    folder = tmp_path_factory.mktemp("raw")
    general = (samples / "general.txt").read_text(encoding="utf-8")
    (folder / "1.txt").write_text(general[: len(general) // 2], encoding="utf-8")
    source = {"source": [str(folder)], "tokenizer": str(vocabulary_file)}
    return folder, {"corpus": "weekly", "workers": 1, **source}


def test_a_weekly_refresh_is_dropped_while_the_last_one_runs(server, corpus, weekly):
    """`collision_strategy: CANCEL_NEW` of law-weekly, beside the ENQUEUE of default."""
    _, given = weekly
    with FileLock(server.workspace / "locks" / "catalog.lock"):  # the first cannot commit and end
        first = server.begin("refresh-corpus/law-weekly", **given)
        server.wait_for_state(first, "Running")
        second = server.begin("refresh-corpus/law-weekly", **given)
        name, message = server.wait_for_end(second)
        assert name == "Cancelled" and "concurrency" in message.lower(), message
        assert server.state(first)[0] == "Running"
        # one of another deployment is no other week's: it takes its turn
        other = server.begin("refresh-corpus/default", **given)
        waiting = "corpus 'weekly' is being refreshed by another process: waiting for it to end"
        wait_until(lambda: waiting in server.messages(other), server.log)
    for run in (first, other):
        assert server.wait_for_end(run)[0] == "Completed", server.log()[-3000:]
    assert ask(server.workspace, "select count(*) from versions where corpus = 'weekly'") == [(1,)]


def test_schedules_fire_and_take_in_a_new_file_or_say_what_is_wrong(server, corpus, weekly, samples):
    folder, given = weekly
    deployment = server.ask("/deployments/name/refresh-corpus/default")["id"]
    failed = {"flow_runs": {"state": {"type": {"any_": ["FAILED", "CRASHED"]}}}, "sort": "START_TIME_DESC"}

    def documents():
        ((most,),) = ask(server.workspace, "select max(documents) from versions where corpus = 'weekly'")
        return most or 0

    def failures():
        return server.ask("/flow_runs/filter", failed)

    documents_before, failures_before = documents(), len(failures())
    (folder / "2.jsonl").write_bytes((samples / "tea.jsonl").read_bytes())
    # once, and soon: a run that nobody waits for takes its turn before those of the tests below
    soon = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
    shared = {"schedule": {"interval": 60, "anchor_date": soon}, "active": True}
    wrong = {"seed": "any"}
    every = [shared | {"slug": "whole", "parameters": given}, shared | {"slug": "no", "parameters": wrong}]
    schedules = server.ask(f"/deployments/{deployment}/schedules", every)
    wait_until(lambda: documents() > documents_before and len(failures()) > failures_before, server.log)
    for schedule in schedules:
        server.ask(f"/deployments/{deployment}/schedules/{schedule['id']}", method="DELETE")
    run = failures()[0]
    said = "corpus is missing; seed='any': it must be a valid integer, unable to parse string as an integer"
    assert (run["state"]["name"], run["state"]["message"]) == ("Failed", said)
    assert run["name"].startswith("refresh ?, ")
    wait_for_message(server, run["id"], said)


def automations(server, *arguments):
    return server.command("flows", "automations", *arguments)


def wait_for_message(server, run, message):
    """Wait until a run's log has a message, without a traceback; lines reach the server a little later."""
    wait_until(lambda: message in server.messages(run), lambda: server.messages(run))
    assert not any("Traceback" in line for line in server.messages(run)), server.messages(run)


def test_a_failed_run_is_told_to_a_webhook_and_drift_starts_pretraining(server, tea, trained, samples):
    with answering(204) as (hook, posted):
        done = automations(server, "--webhook", hook, "--pretrain-after-drift", "2")
        assert done.returncode == 0, done.stderr
        failed = server.begin("refresh-corpus/default", corpus="new")
        name, message = server.wait_for_end(failed)
        # in the words of the form
        assert name == "Failed" and "no source given: pass source with a file" in message
        wait_for_message(server, failed, message)
        wait_until(lambda: posted, server.log)
        (text,) = (json.loads(post)["text"] for post in posted)
        assert text.startswith("refresh-corpus: refresh new, ") and " is Failed. " in text
        assert message in text and failed in text
    given = server.ask(f"/flow_runs/{tea[0]}")["parameters"]
    more = {"source": [*given["source"], str(samples / "general.txt")]}
    more["drift"] = {"event_if": "mlm_loss>-100"}
    grown = server.begin("refresh-corpus/default", **given | more)
    assert server.wait_for_end(grown)[0] == "Completed", server.state(grown)
    (found,) = server.ask("/artifacts/filter", {"artifacts": {"key": {"any_": ["drift-tea"]}}})
    measured = {row["measure"]: row["value"] for row in json.loads(found["data"])}
    assert measured["new_words"] > 0 and abs(measured["mlm_loss"]) < 5
    newest = str(server.workspace / "models" / "whole" / "checkpoint-8")

    def triggered():
        runs = server.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["continued-pretraining"]}}})
        return [run for run in runs if run["parameters"].get("init") == newest]

    wait_until(triggered, server.log)
    (run,) = triggered()
    server.wait_for_end(run["id"])
    assert server.state(run["id"])[0] == "Completed", server.state(run["id"])
    assert run["parameters"]["steps"] == 2 and run["parameters"]["corpus"] == "tea"


LONG = {"corpus": "tea", "steps": 40_000, "batch_tokens": 128, "run": "long"}


def wait_for_steps(server, folder):
    """Wait until a run's metrics grow."""
    before = len(steps_of(folder))
    wait_until(lambda: len(steps_of(folder)) > before, server.log)


def running(server, name):
    """The ids of the runs under way that train a run of this name."""
    runs = server.ask("/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    return [run["id"] for run in runs if run["parameters"].get("run") == name]


@pytest.fixture(scope="module")
def rerun(server, corpus, checkpoint):
    """A training that was killed, and the run that took its place."""
    assert automations(server, "--rerun-crashed").returncode == 0
    killed = server.begin("continued-pretraining/default", init=checkpoint, **LONG)
    wait_for_steps(server, server.workspace / "models" / "long")
    # the schedule of a test before may have begun a run of its own
    (process,) = {*processes_of(killed)} & {*server.part("runner").children()}
    process.kill()
    server.wait_for_end(killed)
    wait_until(lambda: running(server, "long"), server.log)
    (automation,) = server.ask("/automations/filter", {"automations": {"name": {"any_": [CRASHES]}}})
    server.ask(f"/automations/{automation['id']}", method="DELETE")  # what is killed below stays dead
    (again,) = running(server, "long")
    return killed, again


def test_a_killed_training_is_marked_and_runs_again_by_itself(server, rerun):
    killed, again = (server.ask(f"/flow_runs/{run}") for run in rerun)
    assert killed["state"]["name"] == "Crashed" and "SIGKILL" in killed["state"]["message"]
    assert killed["parameters"] == again["parameters"] and killed["name"] != again["name"]
    assert all(run["name"].startswith("pretrain small on tea, ") for run in (killed, again))


def is_up(server):
    try:
        return answer(server.port, "/api/health", password="tea:pot")[0] == 200
    except OSError:
        return False


def test_a_training_and_a_run_that_begins_survive_their_server(server, tea, rerun, samples):
    folder = server.workspace / "models" / "long"
    wait_for_steps(server, folder)
    given = server.ask(f"/flow_runs/{tea[0]}")["parameters"]
    # another version than the training's
    given |= {"source": [str(samples / "general.txt")], "gates": {"max_lost_documents": 1}}
    begins = server.begin("refresh-corpus/default", **given)
    wait_until(lambda: processes_of(begins), server.log)
    log = state_folder(server.workspace) / "server.log"
    log.write_text("last words\n", encoding="utf-8")
    server.part("server").kill()
    wait_until(lambda: "the server ended by itself: starting it again" in server.log(), server.log)
    wait_for_steps(server, folder)
    wait_until(lambda: is_up(server), server.log)
    assert log.read_text(encoding="utf-8").startswith("last words\n")
    assert server.state(rerun[1])[0] == "Running" and not list(folder.glob("checkpoint-40000"))
    assert server.wait_for_end(begins)[0] == "Completed"


def test_a_training_whose_runner_is_killed_is_resumed_by_the_next_runner(server, checkpoint, rerun):
    folder = server.workspace / "models" / "long"
    wait_for_steps(server, folder)
    server.part("runner").kill()
    name, message = server.wait_for_end(rerun[1])
    assert name == "Crashed" and "worker of this run is gone" in message
    step = stopped_at(server.workspace, "long")
    again = server.begin("continued-pretraining/default", init=checkpoint, **LONG)
    wait_for_steps(server, folder)
    begun = f"resuming at step {step:,} of 40,000"
    wait_until(lambda: any(line.startswith(begun) for line in server.messages(again)), server.log)
    assert any("goes on with version" in line for line in server.messages(again))
    server.cancel(again)
    assert server.wait_for_end(again)[0] == "Cancelled"
    assert step < stopped_at(server.workspace, "long") < LONG["steps"]


@pytest.fixture(scope="module")
def whole(server, corpus, checkpoint, samples):
    """Parameters of an end-to-end run whose pretraining takes minutes."""
    splits = {split: str(samples / f"tea_topics_{split}.tsv") for split in ("train", "dev", "test")}
    sizes = {"text": {"max_seq_length": 64}, "pretraining": {"batch_tokens": 512}}
    sizes |= {"steps": 100_000, "workers": 1}
    domain = [str(samples / "tea.jsonl")]
    return {"init": checkpoint, "domain": domain, "task": "tea-topics", **splits, **sizes}


def domain_run(server):
    """The folder of the end-to-end run's pretraining, before and after it is there."""
    return next(server.workspace.glob("models/domain-*"), server.workspace / "models" / "domain")


def test_a_cancelled_end_to_end_run_is_cancelled_with_its_training_and_leaves_a_checkpoint(server, whole):
    run = server.begin("end-to-end/default", **whole)
    wait_until(lambda: any(steps_of(domain_run(server))), server.log)
    server.cancel(run)
    state = server.wait_for_end(run)
    assert state[0] == "Cancelled", state
    parts = server.ask("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    states = {part["name"].partition(",")[0]: part["state"]["name"] for part in parts}
    assert states == {"refresh domain": "Completed", "pretrain small on domain": "Cancelled"}
    wait_until(lambda: not processes_of(run), lambda: processes_of(run))
    assert 0 < stopped_at(server.workspace, domain_run(server).name) < 100_000
    assert not list(server.workspace.glob("reports/end-to-end-*"))


def test_clients_without_the_password_and_pages_of_other_sites_are_refused(server, trained):
    for path in ("/api/admin/version", "/api/flow_runs/count", "/reports/whole/index.html"):
        assert answer(server.port, path)[0] == 401
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    own = [f"http://{host}:{server.port}" for host in ("127.0.0.1", "localhost")]
    theirs = "https://example.org"
    for origin in (*own, theirs):
        headers = asked | {"Origin": origin}
        status, allowed, _ = answer(server.port, "/api/deployments/filter", "OPTIONS", **headers)
        is_allowed = status < 300 and allowed["access-control-allow-origin"] in ("*", origin)
        assert is_allowed == (origin in own)
    # a page may send these without asking
    assert answer(server.port, "/api/flows/", "POST", body='{"name": "theirs"}', Origin=theirs)[0] == 403


def test_two_servers_on_one_port_or_workspace_are_refused(server, tmp_path):
    for workspace, other, message in [
        (tmp_path / "w", server.port, f"port {server.port} of 127.0.0.1 cannot be used"),
        (server.workspace, free_port(), "is being served already"),
    ]:
        refused(run_here("serve", "--port", other, "--workspace", workspace), message)


def test_the_same_run_resumes_and_a_stop_of_the_server_cancels_all_runs(server, whole, weekly):
    """Last of the module: it takes the server away."""
    folder = domain_run(server)
    before = steps_of(folder)
    run = server.begin("end-to-end/default", **whole)
    wait_for_steps(server, folder)
    with sole_writer(Workspace(server.workspace), "weekly"):  # a refresh waits for its turn
        refresh = server.begin("refresh-corpus/default", **weekly[1], seed=1)
        server.wait_for_state(refresh, "Running")
        server.process.terminate()  # as systemctl stop does
        wait_until(lambda: "stopping" in server.log(), server.log)
        later = server.begin("train-tokenizer/default", after=timedelta(hours=1))
        assert server.stop(0) == 0, server.log()
    assert not processes_of(run) and not processes_of(refresh) and not is_up(server)
    states = server.recorded_states()
    assert states[run] == states[refresh] == "Cancelled" and states[later] == "Scheduled"
    assert steps_of(folder)[: len(before)] == before and domain_run(server) == folder
    stopped_at(server.workspace, folder.name)
