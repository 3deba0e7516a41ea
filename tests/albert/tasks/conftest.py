import json

import pytest

from albert.tasks import load_task, read_split


@pytest.fixture
def read(tmp_path):
    """Writes a file, of text or of what JSON or JSON lines hold, and reads it as a split of a task."""

    def read(file, content, task, **options):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict | list):
            content = "\n".join(map(json.dumps, content if path.suffix == ".jsonl" else [content]))
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_split(path, load_task(task) if isinstance(task, str) else task, **options)[1]

    return read
