"""The pictures of docs/: the page of a run and of an artifact, from a server as `make serve` starts it.

python -m tests.flows.pictures docs
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.albert.chromium import find_chromium, launch
from tests.conftest import SAMPLES
from tests.flows.serving import Server, free_port

SIZE = {"width": 1280, "height": 860}  # pixels
RUN = {"corpus": "tea", "init": "tiny", "steps": 60, "batch_tokens": 512, "run": "tea-tiny"}


def prepare(server: Server) -> str:
    """A vocabulary, a corpus and a pretraining by deployments; returns the id of the last run."""
    vocabulary = {"source": [str(SAMPLES / "general.txt"), str(SAMPLES / "tea.jsonl")]}
    jobs = [
        ("train-tokenizer/default", {**vocabulary, "vocab_size": 4000, "name": "tea"}),
        ("refresh-corpus/default", {"corpus": "tea", "source": [str(SAMPLES / "tea.jsonl")], "workers": 1}),
        ("continued-pretraining/default", RUN),
    ]
    for deployment, parameters in jobs:
        run = server.complete(deployment, **parameters)
    return run


def take(server: Server, run: str, folder: Path) -> None:
    """Write run.png and artifact.png."""
    query = {"artifacts": {"key": {"any_": ["verdict-tea-tiny"]}}}
    (verdict,) = server.ask("/artifacts/filter", query)
    ui = server.api.removesuffix("/api")
    with launch(find_chromium()) as browser:
        tab = browser.new_page(viewport=SIZE)
        for name, path in (
            ("run.png", f"/runs/flow-run/{run}"),
            ("artifact.png", f"/artifacts/artifact/{verdict['id']}"),
        ):
            tab.goto(ui + path, timeout=120_000)
            tab.wait_for_load_state("networkidle", timeout=120_000)
            tab.wait_for_timeout(5000)  # the drawing of tasks in time moves into place
            tab.screenshot(path=folder / name)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary) / "workspace", free_port())
        try:
            server.wait_until_it_serves()
            take(server, prepare(server), folder)
        finally:
            server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
