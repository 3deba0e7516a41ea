"""What comes with jixu: sample texts, a task, and the checkpoint `tiny-zh`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped_checkpoint(name: str) -> Path | None:
    """Find the folder of a checkpoint that comes with jixu; None if the name is of something else."""
    folder = FOLDER / name
    return folder if name and folder.parent == FOLDER and (folder / "config.json").is_file() else None
