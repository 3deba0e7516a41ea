"""hf: names, from the Hub's cache without a network, and from a Hub of our own over HTTP."""

import base64
import json
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer

from albert.checkpoints import compare, load_model, load_pretrained, new_model, push, read_checkpoint
from albert.pretraining import MANIFEST_FILE
from albert.reports import build_report, write_card, write_report
from data.errors import InputError
from tests.albert.report_samples import CORPUS, comparison, history, model, pretraining, report_of
from tests.conftest import put_into_hub_cache, save_small_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_safetensors_are_preferred_and_what_cannot_be_had_is_one_line(cache, model_folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = put_into_hub_cache(cache, model_folder)
    (snapshot / "pytorch_model.bin").write_bytes(b"not read")
    for name in ("hf:org/albert-tea", str(snapshot)):  # a clone has what the Hub has
        assert load_model(name)[1].new == ()
    for name, message in (
        (str(model_folder.parent), "pass one of its folders, small$"),  # of a run
        ("hf:org/unknown", "not in the local cache and the Hub cannot be reached"),
        ("hf:not a name", "cannot be downloaded: .*; write hf:OWNER/NAME"),
    ):
        with pytest.raises(InputError, match=message) as error:
            load_model(name)
        assert "\n" not in str(error.value)


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub's protocol as a snapshot of a repository takes, and a commit to it."""

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
        path, files = self.path.partition("?")[0], self.files
        if "/tree/" in path:
            tree = [{"type": "file", "path": n, "size": len(f), "oid": n} for n, f in files.items()]
            self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        elif path.startswith("/api/models/org/albert-tea"):
            about = {"id": "org/albert-tea", "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]}
            self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
        elif path.startswith("/org/albert-tea/resolve/") and (name := path.rpartition("/")[2]) in files:
            self.answer(200, files[name], ETag=f'"{name}"', Accept_Ranges="bytes")
        else:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = "https://huggingface.co/org/albert-tea"
        answer: dict[str, object] = {"url": address, "commitUrl": f"{address}/commit/1", "commitOid": COMMIT}
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        if "/commit/" in self.path:
            for entry in (json.loads(line)["value"] for line in body.splitlines()[1:]):
                self.files[entry["path"]] = base64.b64decode(entry["content"])
        allowed = self.headers["Authorization"] == "Bearer hf_good"
        self.answer(200 if allowed else 403, json.dumps(answer).encode(), Content_Type="application/json")


@pytest.fixture
def hub(model_folder, cache, monkeypatch):
    files = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    files["unwanted.onnx"] = b"large"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, files))
    server.files = files
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)
    yield server
    server.shutdown()


def test_what_is_needed_of_a_repository_is_fetched_once_and_an_unknown_one_is_named(hub, cache, model_folder):
    model, _ = load_pretrained("hf:org/albert-tea")
    same, _ = load_model(model_folder)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    assert not list(cache.rglob("unwanted.onnx"))
    with pytest.raises(InputError, match=r"hf:org/other cannot be downloaded: .*404"):
        load_model("hf:org/other")
    hub.shutdown()
    hub.server_close()
    started, report = new_model("hf:org/albert-tea@main", 7, seed=0)
    assert started.config == same.config and report is not None


def test_a_card_is_of_its_checkpoint_and_run_whatever_else_the_report_has(tmp_path, tokenizer):
    last = pretraining(tmp_path)
    base = replace(last, run_folder=last.run_folder.with_name("b"), learning_rate=0.003)
    settings = {f"pretraining: {run}": {"init": f"hf:org/of-{run}"} for run in "rb"}
    report = report_of(bases=[base], pretraining=last, settings=settings)
    for run, peak in (("r", "0.0002"), ("b", "0.003")):
        folder = save_small_model(tmp_path / "models" / run / "checkpoint-25", tokenizer)
        state = {"step": 25, "tokens": 80_000, "history": history()[:5]}
        (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
        (folder / MANIFEST_FILE).write_text("{}", encoding="utf-8")
        card = write_card(folder, report=write_report(report, tmp_path / "report")).read_text("utf-8")
        shown = ("| steps | 25 |", "| tokens | 80,000 |", "| before | after 20 steps |", "| 20 | 6.333 |")
        shown += ("\n\nHeld-out MLM loss 8.00 → 6.33, ",)
        for part in (*shown, f"| {peak} |", f"base_model: org/of-{run}\n"):
            assert part in card, card
        assert "| 30 | 5.500 |" not in card
    (folder / "README.md").unlink()
    other = replace(report, bases=(), pretraining=pretraining(tmp_path, "general"))
    with pytest.raises(InputError, match="the report 't' is not of .*'s run: choose its own run's"):
        write_card(folder, report=write_report(other, tmp_path / "other"))


def test_a_checkpoint_is_pushed_with_a_card_that_has_a_licence(tmp_path, tokenizer, hub, cache, monkeypatch):
    """The card is made from the run's records; what comes back from the Hub is the model."""
    folder = save_small_model(tmp_path / "models" / "r" / "checkpoint-40", tokenizer)
    (folder / "trainer_state.safetensors").write_bytes(b"stays here")
    result = comparison(model("before", [0.6, 0.62, 0.6]), model("after", [0.8, 0.82, 0.81]))
    report = build_report(
        title="茶 <model>",
        command="jixu",
        corpora=(replace(CORPUS, sources=("tea.jsonl", "3 more")),),
        pretraining=pretraining(tmp_path, "general"),
        evaluations=(result,),
        settings={"pretraining": {"init": "hf:org/base@v1", "steps": 40, "run_folder": "/home/me"}},
    )
    write_report(report, tmp_path / "reports" / "r")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    with pytest.raises(InputError, match="states no licence: write one with jixu checkpoint card"):
        push(folder, "hf:org/albert-tea")
    card = write_card(folder)
    with pytest.raises(InputError, match="states no licence"):
        push(folder, "hf:org/albert-tea")
    with pytest.raises(InputError, match="is already there"):
        write_card(folder)
    card.unlink()
    with pytest.raises(InputError, match="no corpus 'law' in the report: it has 茶"):
        write_card(folder, source_licences={"law": "MIT"})
    hub.files.clear()
    write_card(folder, licence="apache-2.0", source_licences={"茶": "CC-BY-4.0"})
    text = card.read_text(encoding="utf-8")
    for part in (
        "license: apache-2.0", "base_model: org/base\n",
        "| 茶, version 2 | 35 | 12,345 | tea.jsonl, 3 more | CC-BY-4.0 |",
        "| steps | 40 |", "| 40 | 4.667 |", "| MLM loss, general | 6.000 | 6.500 | +0.500 |",
        "| after | 81.0 ± 5.6 |", "starts from random weights", "## Limits",
    ):  # fmt: skip
        assert part in text, text
    assert "/home/me" not in text and "library_name: transformers" in text
    own = save_small_model(folder.with_name("checkpoint-41"), tokenizer, norm="pre")
    assert "library_name: jixu" in write_card(own).read_text(encoding="utf-8")  # transformers has no pre-LN

    for name in ("task.json", "pooled_model.py"):  # a fine-tuned model's, which go along
        (folder / name).write_text("{}")
    assert push(folder, "hf:org/albert-tea") == ["pushed https://huggingface.co/org/albert-tea/commit/1"]
    names = {path.name for path in folder.iterdir()} - {"trainer_state.safetensors"}
    assert set(hub.files) == names
    assert not compare(read_checkpoint(folder), read_checkpoint("hf:org/albert-tea"))[0]
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 512
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(InputError, match=r"cannot be pushed to hf:org/albert-tea: .*403"):
        push(folder, "hf:org/albert-tea")
    hub.shutdown()
    hub.server_close()
    with pytest.raises(InputError, match=r"cannot be pushed to hf:org/albert-tea: .*refused"):
        push(folder, "hf:org/albert-tea")
    with pytest.raises(InputError, match="write hf:OWNER/NAME"):
        push(folder, "tea")
