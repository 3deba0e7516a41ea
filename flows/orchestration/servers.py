"""The server at PREFECT_API_URL: does it answer, and does it let us in?"""

from __future__ import annotations

import os

from data.errors import InputError


def server_version() -> str | None:
    """Return its version of Prefect, or None without a URL. Raise InputError if it cannot be used."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return None
    # takes seconds to import
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.read_flow_runs(limit=1)
            return client.api_version()
    except Exception as error:  # refused, not found, not a server of Prefect, or it wants a password
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = (
            "it wants a password: set PREFECT_API_AUTH_STRING=user:password"
            if status == 401
            else f"{' '.join(str(error).split())[:200]}; start it with make serve, or unset PREFECT_API_URL"
        )
        raise InputError(f"server {url}: {why}") from None
