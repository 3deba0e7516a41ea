"""Files of examples that a small model can tell apart, and how a model is made ready for them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from albert.finetuning import Candidate, FineTuneSettings, prepare, read_task
from albert.tasks import Task
from tests.conftest import copied


def settings_of(task: Task | str, path: Path, *models: Path, **changes: object) -> FineTuneSettings:
    """Settings of runs with one start and without baselines; dev are the training examples if not given."""
    usual: dict[str, object] = {"baselines": "no", "optimizer": {"max_restarts": 0}}
    if "dev" not in changes:
        usual["dev"] = copied(path)
    return FineTuneSettings(task=task, train=path, models=models, **usual | changes)


def prepared(settings: FineTuneSettings, number: int = 0) -> Candidate:
    """One of the settings' models, ready to be fine-tuned."""
    return prepare(settings, read_task(settings), number)


def table(path: Path, header: str, rows: Iterable[Sequence[object]]) -> Path:
    """A file of tab-separated rows under the names of a header."""
    lines = ("\t".join(map(str, row)) for row in (header.split(), *rows))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


FILLER = "采茶要早炒锅热水泡"


def filler(rng, n=6):
    return "".join(rng.choice(list(FILLER), n))


def tagged(rng, n):
    rows = ["text_a\tlabel"]
    for _ in range(n):
        text, tags, at = list(filler(rng)), ["O"] * 6, rng.integers(5)
        text[at : at + 2], tags[at : at + 2] = "香山", ["B-LOC", "I-LOC"]
        rows.append(f"{' '.join(text)}\t{' '.join(tags)}")
    return "\n".join(rows)


def spans(rng, n):
    paragraphs = []
    for number in range(n):
        at = int(rng.integers(6))
        text = filler(rng, at) + "香山" + filler(rng, 6 - at)
        answers = [{"text": "香山", "answer_start": at}]
        asked = {"id": str(number), "question": "何处？", "answers": answers}
        paragraphs.append({"context": text, "qas": [asked]})
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


def choices(rng, n):
    content = []
    for _ in range(n):
        texts = [filler(rng, 3) + "香", filler(rng, 4), filler(rng, 4)]
        order = rng.permutation(3)
        asked = {"question": "哪个？", "choice": [texts[i] for i in order], "answer": texts[0]}
        content.append([[filler(rng)], [asked], "1"])
    return json.dumps(content)


def numbers(rng, n):
    rows = ["sentence1\tsentence2\tscore"]
    for many in rng.integers(5, size=n):
        rows.append(f"{filler(rng)}\t{'香' * many + filler(rng, 6 - many)}\t{many}")
    return "\n".join(rows)
