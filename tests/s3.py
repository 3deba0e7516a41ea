"""An S3-compatible server on this machine, started as a process of its own."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

START_SECONDS = 120


@contextmanager
def serve_s3(*buckets: str) -> Iterator[dict[str, str]]:
    """Moto's server with some buckets; gives the environment by which boto, and so s3fs, find it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rpartition(":")[2]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_SECONDS
        while not _answers(address):
            assert server.poll() is None and time.monotonic() < until, "moto's server did not start"
            time.sleep(0.1)
        for bucket in buckets:
            urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT")).close()
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        yield {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1", **keys}
    finally:
        server.kill()
        server.wait()


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Some variables, for this process, until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _forget_servers()
    try:
        yield
    finally:
        _forget_servers()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _forget_servers() -> None:
    """fsspec keeps its file systems for the whole process, with the server that they began with."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
