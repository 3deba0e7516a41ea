"""The pages of docs/: their code blocks, and a folder in which their commands were run."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from tests import ROOT
from tests.commands import run_here

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RUN_IN_ORDER = ("quickstart.md", "corpus.md", "checkpoint.md")


def blocks(page, language):
    """Code blocks of a page: what stands after the language, and the code."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}(?: (\S+))?\n(.*?)^```", text, re.M | re.S)


def follow(folder, server):
    """Run the pages' commands in a folder with the samples, jixu's in this process; `server`: variables."""
    (folder / "data").symlink_to(ROOT / "data")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**server, "PYTHONPATH": str(ROOT), "PATH": path}
    with patch.dict(os.environ, variables), contextlib.chdir(folder):
        del os.environ["JIXU_WORKSPACE"]
        for page in RUN_IN_ORDER:
            for name, content in blocks(page, "yaml"):
                Path(name).write_text(content, encoding="utf-8")
            for command in "".join(commands for _, commands in blocks(page, "sh")).splitlines():
                jixu, *arguments = shlex.split(command)
                in_shell = {"capture_output": True, "text": True, "timeout": 600}
                bash = ["bash", "-ec", command]
                done = run_here(*arguments) if jixu == "jixu" else subprocess.run(bash, **in_shell)
                assert done.returncode == 0, f"{page}: {command}\n{done.stdout}{done.stderr}"
