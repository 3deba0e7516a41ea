"""jixu: continued pretraining of Chinese ALBERT and BERT, from raw text to a report."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import App

from data.terminal import make_app, run_app, run_named, run_piped

FLOWS = {
    "refresh-corpus": "raw text -> a new version of a corpus",
    "continued-pretraining": "a corpus and a checkpoint -> a better checkpoint and a report",
    "fine-tune": "models and a labelled task -> a comparison and a report",
    "train-tokenizer": "a corpus or raw text -> a vocabulary",
    "end-to-end": "raw text -> a report, all of it in one run",
    "lcqmc-experiment": "does a field's text help more than other text? two fields",
}
SERVICES = {
    "serve": "Prefect's server and UI, and the deployments",
    "worker": "run deployments of a server, also on other machines",
    "doctor": "check the installation, the workspace and the server",
    "automations": "messages on failure, reruns after a crash, pretraining after drift",
}
GROUPS = {
    "predict": "labels and probabilities by a fine-tuned model",
    "corpus": "list, dropped, words, gc, remove, compact, pull, push, unlock",
    "checkpoint": "sizes, inspect, convert, diff, average, card, push",
    "report": "compare, schema",
}


def usage() -> str:
    """The tree of commands, a line each."""
    lines = [f"  {name:<22} {help}" for part in (FLOWS, SERVICES, GROUPS) for name, help in part.items()]
    return "\n".join(
        ["Usage: jixu COMMAND [OPTIONS]", "", *lines, "", "jixu COMMAND --help lists its options."]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    tokens = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    return run_piped(lambda: run_named("jixu", lambda: _run(*tokens)))  # modules load, which Ctrl-C may end


def _run(command: str, *rest: str) -> int:
    if command in ("-h", "--help"):
        print(usage())
        return 0
    if command == "--version":
        print(f"jixu {importlib.metadata.version('jixu')}")
        return 0
    if command in FLOWS:
        from flows.orchestration import run

        return run(command, rest)
    if command not in (*SERVICES, *GROUPS):
        near = get_close_matches(command, (*FLOWS, *SERVICES, *GROUPS), 1, cutoff=0.55)
        hint = f" (did you mean {near[0]}?)" if near else ""
        print(f"jixu: no command {command!r}{hint}; jixu --help lists them", file=sys.stderr)
        return 2
    if command in GROUPS:
        return run_app(tree(command), [command, *rest], name=command)
    from flows.orchestration import explain

    return run_app(tree(command), [command, *rest], name=command, explain=explain)


def tree(*commands: str) -> App:
    """The app jixu with some of its services and groups, whose usage begins with its name."""
    jixu = make_app("jixu", "")
    for command in commands:
        home = "data.__main__" if command == "corpus" else "albert.__main__"
        if command in SERVICES:
            home = f"flows.orchestration.{command}"
        jixu.command(getattr(importlib.import_module(home), command))
    return jixu


if __name__ == "__main__":
    sys.exit(main())
