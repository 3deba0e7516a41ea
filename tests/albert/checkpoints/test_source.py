"""hf: names, from the Hub's cache without a network, and from a Hub of our own over HTTP."""

import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from albert.checkpoints import load_model, load_pretrained, new_model
from data.errors import InputError
from tests.conftest import put_into_hub_cache, save_small_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkpoint(tmp_path, tokenizer):
    return save_small_model(tmp_path / "checkpoint", tokenizer)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_cached_repository_is_read_without_a_network(cache, checkpoint, offline):
    put_into_hub_cache(cache, checkpoint)
    model, tokenizer = load_pretrained("hf:org/albert-tea")
    same, _ = load_model(checkpoint)
    assert tokenizer.vocab_size == model.config.vocab_size
    for p, q in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(p, q)
    started, report = new_model("hf:org/albert-tea@main", 7, seed=0)
    assert started.config == same.config and report is not None


def test_of_both_kinds_of_weights_the_hubs_safetensors_are_read(cache, checkpoint, offline):
    snapshot = put_into_hub_cache(cache, checkpoint)
    (snapshot / "pytorch_model.bin").write_bytes(b"not read")
    assert load_model("hf:org/albert-tea")[1].new == ()


@pytest.mark.parametrize(
    "name, message",
    [
        ("hf:org/unknown", "not in the local cache and the Hub cannot be reached"),
        ("hf:not a name", "no repository name; write hf:OWNER/NAME"),
        ("hf:a/b/c", "no repository name; write hf:OWNER/NAME"),
        ("hf:", "no repository name"),
    ],
)
def test_what_cannot_be_had_is_one_line(cache, offline, name, message):
    with pytest.raises(InputError, match=message) as error:
        load_model(name)
    assert "\n" not in str(error.value)


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub's protocol as a snapshot of a repository takes."""

    def __init__(self, files, *arguments):
        self.files = files
        super().__init__(*arguments)

    def log_message(self, *arguments):
        pass

    def answer(self, status, content=b"", **headers):
        self.send_response(status)
        headers = {"Content-Length": len(content), "X-Repo-Commit": COMMIT, **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(f), "oid": name} for name, f in self.files.items()
            ]
            self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        elif path.startswith("/api/models/org/albert-tea"):
            siblings = [{"rfilename": name} for name in self.files]
            about = {"id": "org/albert-tea", "sha": COMMIT, "siblings": siblings}
            self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
        elif path.startswith("/org/albert-tea/resolve/") and path.rpartition("/")[2] in self.files:
            name = path.rpartition("/")[2]
            self.answer(200, self.files[name], ETag=f'"{name}"', Accept_Ranges="bytes")
        else:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(checkpoint, cache, monkeypatch):
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    files["unwanted.onnx"] = b"large"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, files))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)
    yield server
    server.shutdown()


def test_a_repository_is_fetched_once_and_only_what_is_needed(hub, cache, checkpoint):
    model, _ = load_pretrained("hf:org/albert-tea")
    same, _ = load_model(checkpoint)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    assert not list(cache.rglob("unwanted.onnx"))
    hub.shutdown()
    hub.server_close()
    assert load_model("hf:org/albert-tea")[0].config == same.config


def test_an_unknown_repository_is_named(hub):
    with pytest.raises(InputError, match=r"hf:org/other cannot be downloaded .HTTP 404.: check the name"):
        load_model("hf:org/other")
