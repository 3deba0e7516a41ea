"""Prefect's server with a workspace's reports at /reports/, read-only and behind the same password.

python -m flows.orchestration.web PARENT LISTENER [REPORTS]: the process id of `jixu serve` or of a command,
the number of its listening socket, and a folder. Without it there is no UI, and no schedule fires.
"""

from __future__ import annotations

import base64
import hmac
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from html import escape
from pathlib import Path
from urllib.parse import quote

import uvicorn
from prefect.server.api.server import create_app
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import temporary_database_config
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, get_current_settings
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from data.workers import end_with_parent


class Reports(StaticFiles):
    """The files of a folder and a list of its reports; nothing outside it, be it by `..` or by a link."""

    def __init__(self, folder: Path, password: str | None):
        super().__init__(directory=folder, html=True)
        self.folder = folder
        self.credentials = f"Basic {base64.b64encode(password.encode()).decode()}" if password else None

    async def get_response(self, path: str, scope: Scope) -> Response:
        sent = Headers(scope=scope).get("authorization", "")
        if self.credentials and not hmac.compare_digest(sent.encode(), self.credentials.encode()):
            return PlainTextResponse("Unauthorized", 401, {"www-authenticate": 'Basic realm="jixu"'})
        if path == "." and scope["method"] == "GET":
            response: Response = HTMLResponse(list_of_reports(self.folder))
        else:
            response = await super().get_response(path, scope)
        # a page shares its origin with the API: it gets no scripts, and may not act for its reader
        response.headers["content-security-policy"] = "sandbox"
        return response


class OwnPages:
    """A server that refuses requests of other origins' pages: CORS alone only hides the answers from them."""

    def __init__(self, app: ASGIApp, origins: Collection[str]):
        self.app, self.origins = app, {*origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        origin = None if scope["type"] == "lifespan" else Headers(scope=scope).get("origin")
        if origin and not self.origins & {origin, "*"}:
            app = PlainTextResponse(f"{origin} is none of PREFECT_SERVER_CORS_ALLOWED_ORIGINS", 403)
        await app(scope, receive, send)


def list_of_reports(folder: Path) -> str:
    """A page with a link to each report, the newest first."""
    pages = [page for page in folder.glob("*/index.html") if not page.parent.is_symlink()]
    pages.sort(key=lambda page: page.stat().st_mtime, reverse=True)
    lines = [
        f"<li>{datetime.fromtimestamp(page.stat().st_mtime):%Y-%m-%d %H:%M} "
        f'<a href="{quote(page.parent.name)}/index.html">{escape(page.parent.name)}</a>'
        for page in pages
    ]
    return f"<!doctype html><title>jixu: reports</title><h1>Reports</h1><ul>{''.join(lines)}</ul>"


class LockingFirst(AioSqliteConfiguration):
    """SQLite whose transactions take the write lock when they begin.

    One that reads before it writes otherwise fails at once ("database is locked") if another wrote meanwhile;
    after a few tries Prefect drops the event, and an automation does not fire.
    """

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def run_server(listener: socket.socket, reports: Path | None) -> None:
    """Run Prefect's server, with its API, UI and services, on a listening socket until SIGINT."""
    settings = get_current_settings().server
    web = create_app(final=True, ephemeral=reports is None)
    if reports:
        reports.mkdir(parents=True, exist_ok=True)
        password = settings.api.auth_string
        shown = Reports(reports, password.get_secret_value() if password else None)
        # before the UI, which answers any path
        web.router.routes.insert(0, Mount("/reports", shown))
    # browsers have no business with a command's own server
    own = OwnPages(web, settings.api.cors_allowed_origins.split(",") if reports else ())
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    with temporary_database_config(LockingFirst(url) if url.startswith("sqlite") else None):
        uvicorn.Server(uvicorn.Config(own, log_level=settings.logging_level.lower())).run([listener])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    # a service manager may send it to every process; runs that are stopped still have to report their end
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_with_parent(int(sys.argv[1]), signal.SIGINT)
    run_server(socket.socket(fileno=int(sys.argv[2])), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
