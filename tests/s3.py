"""An S3-compatible server on this machine, in a thread."""

import logging
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def serve_s3(*buckets: str) -> Iterator[dict[str, str]]:
    """Moto's server with some buckets; yields the environment by which boto, and so s3fs, find it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    try:
        for bucket in buckets:
            urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT")).close()
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        yield {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1", **keys}
    finally:
        server.stop()


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    from s3fs import S3FileSystem

    with patch.dict(os.environ, values):
        # fsspec keeps its file systems, with the server that they began with
        S3FileSystem.clear_instance_cache()
        try:
            yield
        finally:
            S3FileSystem.clear_instance_cache()
