"""The pages of docs/: their code blocks, and a folder in which their commands were run."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RUN_IN_ORDER = ("quickstart.md", "corpus.md", "checkpoint.md")


def blocks(page, language):
    """Code blocks of a page: what stands after the language, and the code."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}(?: (\S+))?\n(.*?)^```", text, re.M | re.S)


def follow(folder, server):
    """Run every command of the pages as it stands, in a folder that has the samples; `server` is what the
    environment says of one.
    """
    (folder / "data").symlink_to(ROOT / "data")
    environment = {k: v for k, v in os.environ.items() if k not in ("PREFECT_HOME", "JIXU_WORKSPACE")}
    environment |= {
        **server,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for page in RUN_IN_ORDER:
        for name, content in blocks(page, "yaml"):
            (folder / name).write_text(content, encoding="utf-8")
        for _, commands in blocks(page, "sh"):
            done = subprocess.run(
                ["bash", "-ec", commands],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, f"{page}: {commands}\n{done.stdout}{done.stderr}"
