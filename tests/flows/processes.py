"""What test_disks.py does without Prefect: python -m tests.flows.processes FUNCTION ARGUMENTS."""

import sys
from pathlib import Path

from tests.corpora import ask, refresh_here, refresh_settings


def refresh(workspace, tokenizer, *sources):
    """Refresh the corpus tea without Prefect."""
    print(refresh_here(refresh_settings(Path(workspace), sources, tokenizer)))


def funnel(workspace):
    """Print a row of a corpus's statistics."""
    print(ask(Path(workspace), "from funnel where stage = 'read'")[0])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
