"""What a command says when it cannot use the server."""

import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from data.errors import InputError
from flows.orchestration.servers import OWNER, end_orphaned_servers, server_version


@contextmanager
def answering(status):
    """A web server that is not Prefect's."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = b"<html>a page</html>"
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/api"
        http.shutdown()


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "it wants a password: set PREFECT_API_AUTH_STRING"), (404, "start it with make serve")],
)
def test_an_answer_that_is_of_no_use_is_reported_in_a_line(status, message, monkeypatch):
    with answering(status) as url, temporary_settings({PREFECT_API_URL: url}):
        monkeypatch.setenv("PREFECT_API_URL", url)
        with pytest.raises(InputError, match=f"^server {url}: .*{message}") as refused:
            server_version()
    assert "\n" not in str(refused.value)


def test_servers_of_commands_that_were_killed_are_ended_and_others_stay(monkeypatch):
    monkeypatch.delenv(OWNER, raising=False)
    command = ["sh", "-c", "read line; :", "prefect.server.api.server:create_app"]
    gone = subprocess.Popen(["true"])
    gone.wait()

    def begin(owner):
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | owner)

    lost, held, served = begin({OWNER: str(gone.pid)}), begin({OWNER: str(os.getpid())}), begin({})
    with lost, held, served:
        end_orphaned_servers()
        assert lost.wait(60) != 0 and held.poll() is None and served.poll() is None
        assert os.environ[OWNER] == str(os.getpid())
        for process in (held, served):
            process.kill()
