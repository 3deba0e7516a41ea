"""`jixu serve` from its start to its end, however that comes, and with parts that die."""

import os
import signal
import time
from itertools import product

import psutil
import pytest
import yaml
from filelock import FileLock
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.runner import Runner

from data.errors import InputError
from data.terminal import EXIT_INTERRUPTED
from data.workspace import Workspace
from flows.orchestration.automations import LOST
from flows.orchestration.runner import add_deployment, make_deployment, read_served
from flows.orchestration.serve import Services, environment, listen, read_declared, show, stop_on_signal
from flows.orchestration.servers import ROOT, STOP_SECONDS, wait_for_server
from tests.flows.serving import DEADLINE, Server, free_port, wait_until


def test_variables_of_the_user_win_and_the_server_is_closed(tmp_path, monkeypatch):
    own = {"PREFECT_RUNNER_POLL_FREQUENCY": "7", "PREFECT_API_AUTH_STRING": "tea:pot"}
    for name, value in {"PREFECT_API_URL": "http://elsewhere/api", **own}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    expected = own | {
        "PREFECT_API_URL": "http://127.0.0.1:4201/api",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1:4201,http://localhost:4201",
        "PREFECT_SERVER_API_AUTH_STRING": "tea:pot",
        "JIXU_WORKSPACE": str(tmp_path / "w"),  # runs start in other folders
    }
    assert expected.items() <= environment("w", 4201).items()
    assert environment("s3://tea/w", 4201)["JIXU_WORKSPACE"] == "s3://tea/w"


def test_a_server_that_never_answers_is_killed_and_reported(tmp_path, monkeypatch):
    with psutil.Popen(["sleep", "600"]) as silent, listen(free_port()) as listener:
        monkeypatch.setattr("flows.orchestration.servers.START_SECONDS", 0.1)
        (tmp_path / "server.log").touch()
        with pytest.raises(InputError, match="the server did not start: it said nothing"):
            wait_for_server(silent, listener, tmp_path / "server.log")
        assert silent.returncode == -signal.SIGKILL


def test_restarts_of_a_part_are_counted_for_ten_minutes(tmp_path):
    services = Services(Workspace(tmp_path), None, 1, None)
    services.restarts["server"] = [time.monotonic() - 600] * 9
    for name in ["server"] * 5 + ["runner"]:
        services.count_restart(name)
    with pytest.raises(InputError, match="the server ended once more, after 5 restarts in ten minutes"):
        services.count_restart("server")


def test_nohup_keeps_a_closed_terminal_from_stopping_it_and_a_background_job_can_be(monkeypatch):
    handled = []
    monkeypatch.setattr("signal.getsignal", lambda number: signal.SIG_IGN)
    monkeypatch.setattr("signal.signal", lambda number, _: handled.append(number))
    stop_on_signal()
    assert handled == [signal.SIGINT, signal.SIGTERM]


def test_a_closed_terminal_is_no_reason_to_stop(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        show("stopping")
        monkeypatch.undo()
        with open(os.devnull, "w") as nowhere:  # for what is left in its buffer
            os.dup2(nowhere.fileno(), writer)


@pytest.mark.slow
def test_a_deployment_is_made_as_the_file_says_and_stays_as_a_person_set_it(prefect_server):
    written = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    loaded = [make_deployment(entry, {}) for entry in written]
    assert len(written) == len(loaded) > 5
    for entry, made in zip(written, loaded, strict=True):
        flow = entry["entrypoint"].rpartition(":")[2].replace("_", "-")
        assert (made.flow_name, made.name, made.tags) == (flow, entry["name"], entry["tags"])
        assert made.description == entry["description"] and made.work_pool_name is None
        assert made.parameters == entry.get("parameters", {})
        times = [(one.schedule.cron, one.schedule.timezone, one.slug, one.active) for one in made.schedules]
        keys = ("cron", "timezone", "slug", "active")
        assert times == [tuple(one[key] for key in keys) for one in entry.get("schedules", [])]
        limit = entry.get("concurrency_limit", {})
        assert made.concurrency_limit == limit.get("limit")
        strategy = made.concurrency_options and made.concurrency_options.collision_strategy.value
        assert strategy == limit.get("collision_strategy")
    (weekly,) = [made for made in loaded if made.schedules]
    with get_client(sync_client=True) as client:
        made = weekly.apply()
        (schedule,) = client.read_deployment(made).schedules
        assert not schedule.active
        client.update_deployment_schedule(made, schedule.id, active=True)
        client.create_deployment_schedules(made, [(CronSchedule(cron="0 4 * * 2", timezone="UTC"), False)])
        own = {"corpus": "mine", "source": ["texts"]}
        client.create_work_pool(WorkPoolCreate(name="before", type="process"))
        client.update_deployment(made, DeploymentUpdate(parameters=own, paused=True, work_pool_name="before"))

        def state():
            found = client.read_deployment(made)
            times = {(one.schedule.cron, one.slug, one.active) for one in found.schedules}
            return found.parameters, found.paused, times, found.work_pool_name

        def start_again():
            make_deployment(declared, read_served()).apply()

        declared = next(one for one in written if one["name"] == "law-weekly")
        before = state()
        times = {("30 2 * * 1", "weekly", True), ("0 4 * * 2", None, False)}
        assert before == (own, True, times, "before")
        start_again()
        assert state() == (own, True, times, None)
        declared["parameters"]["corpus"] = "other"
        start_again()
        assert state()[0]["corpus"] == "other"
        client.delete_deployment(made)
        client.delete_work_pool("before")


def test_a_deployment_with_a_mistake_is_named_and_not_served(prefect_server, capsys):
    daily = {"cron": "0 2 * * *"}
    wrong = [
        ({"parameters": {"sources": ["raw"]}}, "'sources' was unexpected"),
        ({"parameters": {"source": "raw"}}, "not of type 'array'"),
        ({"schedules": [{"cron": "61 2 * * 1"}]}, 'Invalid cron string: "61 2 * * 1"'),
        ({"schedules": [daily | {"timezone": "Asia/Beijing"}]}, "timezone: Invalid"),
        ({"schedules": [daily | {"timezon": "UTC"}]}, "unexpected keyword argument 'timezon'"),
        ({"schedules": [daily | {"parameters": {"sources": ["raw"]}}]}, "schedules.0.parameters: Additional"),
        ({"schedules": daily}, "must be a mapping, not str"),
        ({"schedules": [daily | {"slug": "a"}] * 2}, "Data integrity conflict"),
        ({"concurrency_limit": {"limits": 1}}, "limit: Field required"),
        ({"concurrency_limit": {"limit": 0}}, "concurrency_limit: Input should be greater than 0"),
        ({"entrypoint": "./flows/law.py:refresh_corpus"}, "No such file or directory: 'flows/law.py'"),
    ]
    sound = read_declared()[0]
    make_deployment(sound | {"name": "served"}, {}).apply()
    for (mistake, why), name in product(wrong, ("new", "served")):
        add_deployment(Runner(), sound | {"name": name} | mistake, {})
        shown = capsys.readouterr().out
        assert shown.startswith(f"refresh-corpus/{name} is not served: ") and why in shown
        assert shown.count("\n") == 1
    every = {"schedules": [{"interval": 3600}], "concurrency_limit": 1}
    add_deployment(Runner(), every | {"name": "hourly", "entrypoint": sound["entrypoint"]}, {})
    assert not capsys.readouterr().out
    with get_client(sync_client=True) as client:  # doctor would miss the runs of their schedules
        for one in read_served().values():
            client.delete_deployment(one.id)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Served by one server after the other: to make its database takes each of them seconds."""
    return tmp_path_factory.mktemp("serve") / "w"


@pytest.fixture
def given(samples, vocabulary_file):
    """Parameters of a refresh."""
    source = [str(samples / "tea.jsonl")]
    return {"corpus": "tea", "source": source, "tokenizer": str(vocabulary_file), "workers": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "parts"),
    [(signal.SIGHUP, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 2)],
    ids=["closed terminal", "SIGTERM while the runner starts", "killed"],
)
def test_stopped_while_it_starts_it_leaves_no_process(workspace, number, parts):
    server = Server(workspace, free_port())
    serve = psutil.Process(server.process.pid)
    wait_until(lambda: len(serve.children()) == parts, server.log)
    begun = serve.children()
    assert server.stop(number) == (-number if number == signal.SIGKILL else 0), server.log()
    assert not psutil.wait_procs(begun, DEADLINE if number == signal.SIGKILL else 0)[1]
    assert "Traceback" not in server.log()


@pytest.mark.slow
def test_runs_lost_in_a_power_failure_are_marked_and_a_second_ctrl_c_leaves_no_process(workspace, given):
    quick = {"PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT2S"}
    with Server(workspace, free_port(), **quick) as server:
        assert "schedule weekly of refresh-corpus/law-weekly is not active" in server.log()
        # as a person may change it in the UI: the server keeps what it finds
        (found,) = server.ask("/automations/filter", {"automations": {"name": {"any_": [next(iter(LOST))]}}})
        found["trigger"]["within"] = 45
        changed = {name: found[name] for name in ("name", "description", "enabled", "trigger", "actions")}
        server.ask(f"/automations/{found['id']}", changed, method="PUT")
        with FileLock(server.workspace / "locks" / "catalog.lock"):  # it cannot commit and end
            lost = server.begin("refresh-corpus/default", **given)
            wait_until(lambda: server.ask("/task_runs/count", tasks_of(lost)), lambda: server.state(lost))
            begun = psutil.Process(server.process.pid).children(recursive=True)
            for process in (server.process, *begun):  # at once
                process.kill()
            server.process.wait(DEADLINE)
            psutil.wait_procs(begun, DEADLINE)
    locked = FileLock(server.workspace / "locks" / "catalog.lock")
    with Server(workspace, free_port(), **quick) as server, locked:
        run = server.begin("refresh-corpus/default", **given)
        name, message = server.wait_for_end(lost)
        assert name == "Crashed" and "The process of this run is gone" in message
        wait_until(lambda: not server.ask("/task_runs/count", tasks_of(lost, "RUNNING")), server.log)
        # the lost run's slot of the deployment is free
        server.wait_for_state(run, "Running")
        begun = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in server.log(), server.log)
        assert server.stop(signal.SIGINT) == EXIT_INTERRUPTED
        assert len(begun) > 2 and not [one for one in begun if one.is_running()], server.log()


NO_RESTARTS = """
import sys
from flows import __main__
from flows.orchestration import serve
serve.MOST_RESTARTS = 0
sys.exit(__main__.main())
"""


@pytest.mark.slow
def test_a_server_that_dies_too_often_is_given_up_at_once_with_its_runs(workspace, given):
    # else what a run has to tell takes it a minute of tries
    quick = {"PREFECT_CLIENT_MAX_RETRIES": "2"}
    temporary = workspace.parent
    (temporary / "runner_storage").touch()  # as closed to it as the folder of another user's runner
    server = Server(workspace, free_port(), ("-c", NO_RESTARTS), TMPDIR=str(temporary), **quick)
    with server, FileLock(workspace / "locks" / "catalog.lock"):
        run = server.begin("refresh-corpus/default", **given)
        server.wait_for_state(run, "Running")
        begun = psutil.Process(server.process.pid).children(recursive=True)
        server.part("server").kill()
        died = time.monotonic()
        assert server.process.wait(DEADLINE) == 2
        # no part of it waits for an answer of the server
        assert time.monotonic() - died < STOP_SECONDS
        assert "the server ended once more, after 0 restarts in ten minutes" in server.log()
        assert len(begun) > 2 and not [one for one in begun if one.is_running()], server.log()


def tasks_of(run, *states):
    query = {"flow_runs": {"id": {"any_": [run]}}}
    return query | ({"task_runs": {"state": {"type": {"any_": states}}}} if states else {})
