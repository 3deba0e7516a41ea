"""The reports that a server shows; test_server.py opens one by its artifact's link."""

import os
import re
import threading
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.flows.serving import answer, wait_until


@contextmanager
def shown(reports, password=None):
    """The port of a web server with reports in its folder /reports."""
    # takes three seconds to import, and every worker of pytest imports every file of tests
    from flows.orchestration.web import Reports

    web = Starlette(routes=[Mount("/reports", Reports(reports, password))])
    server = uvicorn.Server(uvicorn.Config(web, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def reports(tmp_path):
    """The reports of a workspace, beside a file that is none of them."""
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    page = tmp_path / "reports" / "茶" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<title>茶</title>", encoding="utf-8")
    page.with_name("out.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "reports" / "outside").symlink_to(tmp_path)
    return tmp_path / "reports"


def test_pages_are_shown_without_scripts_and_listed_the_newest_first_and_nothing_outside_is(reports):
    odd = reports / "a <b>?" / "index.html"
    odd.parent.mkdir()
    odd.write_text("odd", encoding="utf-8")
    os.utime(odd, (0, 0))
    with shown(reports) as port:
        for path in ("/reports/%E8%8C%B6/index.html", "/reports/%E8%8C%B6/"):
            status, headers, text = answer(port, path)
            assert (status, text) == (200, "<title>茶</title>")
            assert headers["content-security-policy"] == "sandbox"
        secret = ("../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "/secret.txt")
        others = ("outside/secret.txt", "outside/", "%E8%8C%B6/out.txt", "%00")
        for path in (*secret, *others, str(reports.parent / "secret.txt")):
            status, _, text = answer(port, f"/reports/{path}")
            assert status == 404 and "secret" not in text, path
        for method in ("POST", "PUT", "DELETE"):
            assert answer(port, "/reports/%E8%8C%B6/index.html", method)[0] == 405
        status, headers, text = answer(port, "/reports/")
        assert status == 200 and headers["content-security-policy"] == "sandbox"
        links = re.findall('<a href="(.+?)">(.+?)</a>', text)
        assert [name for _, name in links] == ["茶", "a &lt;b&gt;?"]
        pages = [answer(port, f"/reports/{link}")[2] for link, _ in links]
        assert pages == ["<title>茶</title>", "odd"]


def test_a_password_is_asked_for(reports):
    with shown(reports, "tea:pot") as port:
        page = "/reports/%E8%8C%B6/"
        for wrong in (None, "tea:", "tea:pots", "茶:pot"):
            for path in (page, "/reports/"):
                status, headers, text = answer(port, path, password=wrong)
                assert (status, text) == (401, "Unauthorized") and "Basic" in headers["www-authenticate"]
            assert answer(port, "/reports/none", password=wrong)[0] == 401  # nor whether it is there
        assert answer(port, page, password="tea:pot")[0] == 200
