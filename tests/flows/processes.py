"""What test_disks.py does without Prefect: python -m tests.flows.processes FUNCTION ARGUMENTS."""

import sys
from pathlib import Path


def refresh(workspace, tokenizer, *sources):
    """Refresh the corpus tea without Prefect."""
    from data.refresh import RefreshSettings, refresh

    shared = {"corpus": "tea", "tokenizer": tokenizer, "workers": 1}
    print(refresh(RefreshSettings(workspace=Path(workspace), source=sources, **shared)))


def funnel(workspace):
    """Print the first row of a corpus's statistics."""
    from data.catalog import open_workspace

    print(open_workspace(Path(workspace)).funnel("tea").fetchall()[0])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
