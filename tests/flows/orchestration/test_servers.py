"""What a command says when it cannot use a server, and the life of a server of its own."""

import os
import subprocess
import sys
from urllib.parse import urlsplit

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from data.errors import InputError
from data.files import write_text
from flows.orchestration.command import set_up_prefect
from flows.orchestration.servers import ROOT, address_file, served_at, server_version
from tests.flows.serving import DEADLINE, add_database, answer, answering


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "it wants a password: set PREFECT_API_AUTH_STRING"), (404, "start it with make serve")],
)
def test_an_answer_that_is_of_no_use_is_reported_in_a_line(status, message, monkeypatch):
    with answering(status) as (url, _), temporary_settings({PREFECT_API_URL: url}):
        monkeypatch.setenv("PREFECT_API_URL", url)
        with pytest.raises(InputError, match=f"^server {url}: .*{message}") as refused:
            server_version()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("spared", ["", "intranet.example", "*"])
def test_no_proxy_is_asked_for_a_server_of_this_machine(spared, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nothing listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, spared)
    with answering(200) as (url, _):
        write_text(address_file(tmp_path), f"{url} {os.getpid()}")
        assert served_at(tmp_path) == served_at(tmp_path) == url
        set_up_prefect(tmp_path)
        assert os.environ["PREFECT_API_URL"] == url
        os.utime(address_file(tmp_path), (0, 0))  # by an earlier process of the same number
        assert served_at(tmp_path) is None
        write_text(address_file(tmp_path), f"{url} {2**22}")  # of a process that was killed
        assert served_at(tmp_path) is None
    own = "127.0.0.1,localhost"
    assert os.environ["no_proxy"] == {"": own, "*": "*"}.get(spared, f"{spared},{own}")


OWN = """
import os
from flows.orchestration.servers import begin_own_server
begin_own_server()()
print(os.environ["PREFECT_API_URL"], flush=True)
input()
"""


@pytest.mark.slow
def test_a_commands_server_outlives_a_service_managers_sigterm_and_no_kill_of_its_command(tmp_path):
    add_database(tmp_path)
    home = {"PREFECT_HOME": str(tmp_path)}
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with psutil.Popen([sys.executable, "-c", OWN], env=os.environ | home, cwd=ROOT, **piped) as command:
        port = urlsplit(command.stdout.readline()).port
        assert answer(port, "/api/health", Origin="http://127.0.0.1:4200")[0] == 403
        (server,) = command.children()
        server.terminate()
        with pytest.raises(psutil.TimeoutExpired):
            server.wait(1)
        assert answer(port, "/api/health")[0] == 200
        command.kill()
        server.wait(DEADLINE)
