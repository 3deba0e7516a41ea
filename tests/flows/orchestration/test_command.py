"""Prefect's environment as a command sets it, whether there is room, and what services refuse."""

import os
from importlib import reload
from pathlib import Path

import pytest

import flows
from data.errors import InputError
from data.workspace import check_room
from flows.orchestration import EndToEndOptions, RefreshOptions, without_credentials
from flows.orchestration.command import run, set_up_prefect
from tests.commands import refused, run_here


@pytest.fixture
def environment(monkeypatch):
    """An environment of its own, with nothing of Prefect's."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")] + ["DO_NOT_TRACK"]:
        monkeypatch.delenv(name, raising=False)
    return os.environ


def test_nothing_is_sent_anywhere_and_history_stays_on_this_machine(environment, tmp_path):
    reload(flows)
    environment["PREFECT_API_URL"] = ""
    set_up_prefect(tmp_path / "w")
    silent = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    silent["PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS"] = "false"
    assert silent.items() <= environment.items() and "PREFECT_API_URL" not in environment
    home = Path(environment["PREFECT_HOME"])
    assert home.stat().st_mode & 0o777 == 0o700 and home.is_relative_to(environment["XDG_STATE_HOME"])
    assert not (tmp_path / "w").exists()  # it may lie on a network disk


def test_a_server_of_the_users_keeps_its_files_and_what_is_set_stays(environment, tmp_path):
    environment |= {"PREFECT_API_URL": "http://127.0.0.1:4200/api", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    set_up_prefect(tmp_path / "w")
    assert "PREFECT_HOME" not in environment and not (tmp_path / "w").exists()
    assert environment["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    environment["PREFECT_HOME"] = str(tmp_path / "theirs")
    set_up_prefect(tmp_path / "w")
    assert environment["PREFECT_HOME"] == str(tmp_path / "theirs") and (tmp_path / "theirs").is_dir()


def test_a_user_without_a_folder_for_the_history_is_told_what_to_set(environment, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="file/jixu/.* cannot be written to: set HOME or XDG_STATE_HOME"):
        set_up_prefect(tmp_path / "w")
    for name in ("HOME", "XDG_STATE_HOME", "PREFECT_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a container's user, by number alone
    with pytest.raises(InputError, match="no home folder: set HOME"):
        set_up_prefect(tmp_path / "w")


def test_a_workspace_without_room_or_that_is_a_file_is_refused(tmp_path, monkeypatch):
    check_room(tmp_path / "w")
    (tmp_path / "file").touch()
    (tmp_path / "disk").symlink_to(tmp_path / "unmounted")
    for place in (tmp_path / "file", tmp_path / "file" / "w", tmp_path / "disk"):
        with pytest.raises(InputError, match="cannot be made .*: choose another --workspace"):
            check_room(place)
    monkeypatch.setattr("data.workspace.LEAST_BYTES", 2**60)
    with pytest.raises(InputError, match="MiB are free on the disk of .*: make room"):
        check_room(tmp_path / "w")


def test_credentials_of_a_source_are_not_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JIXU_COMMAND", "")
    source = "http://tea:geheim@127.0.0.1:9/tea.jsonl?token=verraten"
    monkeypatch.setenv("JIXU_WORKSPACE", str(tmp_path))
    given = ["--corpus", "tea", "--source", source, "--reading.allow-loopback"]
    assert run("refresh-corpus", given) == 2
    assert os.environ["JIXU_COMMAND"].endswith(f" --workspace {tmp_path}")
    shown = capsys.readouterr().err + os.environ["JIXU_COMMAND"]
    shown += str(without_credentials(RefreshOptions(corpus="tea", source=[source, {"path": source}])))
    shown += str(without_credentials(EndToEndOptions(general=[source], domain=[source])))
    assert shown.count("http://***@127.0.0.1:9/tea.jsonl?***") == 6
    assert "geheim" not in shown and "verraten" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--port", 0], "port=0: it must be from 1 to 65535"),
        (["serve", "--port", 65536], "port=65536: it must be from 1 to 65535"),
        (["serve", "--limit", 0], "limit=0: it must be 1 or more"),
        (["refresh-corpus", "--recipe"], "--recipe"),
        (["automations"], "nothing asked for"),
        (["automations", "--webhook", "ftp://127.0.0.1/hook"], "must begin with http:// or https://"),
        (["automations", "--webhook", "127.0.0.1/hook"], "must begin with http:// or https://"),
        (["automations", "--webhook", "http://[::1"], "must begin with http:// or https:// and a host"),
        (["automations", "--pretrain-after-drift", 0], "pretrain_after_drift=0: it must be 1 or more"),
        (["automations", "--webhook", "https://127.0.0.1/hook"], "no PREFECT_API_URL"),
    ],
)
def test_a_service_that_cannot_work_is_refused_in_a_line(arguments, message, tmp_path):
    refused(run_here(*arguments, PREFECT_API_URL="", JIXU_WORKSPACE=str(tmp_path)), message)
