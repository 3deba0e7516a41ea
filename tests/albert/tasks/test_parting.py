"""Dev and test set aside from the training file."""

import random
import re
from collections import Counter

import pytest

from albert.tasks import Kind, Task, load_task, read_task
from data.errors import InputError

WORDS = "采茶要早炒锅要热水开以后再泡好茶香气高长山上多雾清明前后新芽最嫩"


def text_of(rng):
    return "".join(rng.choices(WORDS, k=20))


@pytest.fixture
def part(tmp_path):
    """Reads a task that has a training file alone, or with test."""

    def part(rows, task="t", header="text\tlabel\tlaw", **files):
        for name, lines in {"train": rows, **files}.items():
            (tmp_path / f"{name}.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
        task = Task(name=task) if isinstance(task, str) else task
        return read_task(task, {name: tmp_path / f"{name}.tsv" for name in ("train", *files)})

    return part


def texts_in(data):
    return {name: {one.text for one in split.examples} for name, split in data.splits.items()}


def test_dev_and_test_are_set_aside_from_train_with_their_share_of_each_label(part):
    rng = random.Random(0)
    rows = [f"{text_of(rng)}\t{'好' if at % 4 else '差'}\t" for at in range(400)]
    rows += [f"{text_of(rng)}\t稀\t", "\t好\t"]  # one example of a label, and a row without a text
    data = part(rows)
    assert [*data.splits] == ["train", "dev", "test"] and not data.overlaps
    sizes = {name: len(split.examples) for name, split in data.splits.items()}
    assert abs(sizes["dev"] - 40) < 5 and abs(sizes["test"] - 80) < 5 and sum(sizes.values()) == 401
    for name in ("dev", "test"):
        count = Counter(one.label for one in data.splits[name].examples)
        assert abs(count["差"] - sizes[name] / 4) < 4 and "稀" not in count
    assert data.labels == ("好", "差", "稀") and [len(one.skipped) for one in data.splits.values()] == [
        1,
        0,
        0,
    ]
    assert data.parted == (
        f"of 401 examples {sizes['dev']} for dev and {sizes['test']} for test were set aside, alike texts "
        "together"
    )
    rng.shuffle(rows)
    assert texts_in(part(rows)) == texts_in(data)


def test_what_belongs_together_is_not_parted(part):
    rng = random.Random(1)
    rows = []
    for law in range(60):
        text = text_of(rng)
        alike = text, f"{text}！", f"{text[:-1]}。"  # by their letters, or nearly so
        rows += [f"{one}\t好\t甲{law}{at}" for at, one in enumerate(alike)]
        rows += [f"{text_of(rng)}\t差\t乙{law}" for _ in range(3)]  # of one law
    data = part(rows, Task(name="t", group="law"))
    homes = [(one.text[:19] if one.label == "好" else one.group, name)
             for name, split in data.splits.items() for one in split.examples]  # fmt: skip
    assert len({home for home, _ in homes}) == len(set(homes)) == 120
    assert all(len(split.examples) > 20 for split in data.splits.values())
    rng.shuffle(rows)
    assert texts_in(part(rows, Task(name="t", group="law"))) == texts_in(data)


def test_with_a_file_for_test_dev_alone_is_set_aside(part):
    rng = random.Random(2)
    rows = [f"{text_of(rng)}\t{rng.random()}\t" for _ in range(160)]
    data = part(rows, Task(name="t", kind=Kind.REGRESSION), test=rows[:8])
    assert [*data.splits] == ["train", "dev", "test"]
    assert len(data.splits["test"].examples) == 8 and abs(len(data.splits["dev"].examples) - 16) < 4
    assert re.fullmatch(r"of 160 examples \d+ for dev were set aside, alike texts together", data.parted)


@pytest.mark.parametrize(
    "rows", [["茶很香\t好\t", "碎了\t差\t"] * 40, [f"茶\t{at % 2}\t" for at in range(9)]]
)
def test_a_file_whose_examples_are_all_alike_is_refused(rows, part):
    with pytest.raises(
        InputError, match="too few examples or groups that are unlike each other to set any aside as"
    ):
        part(rows)


def test_the_choices_of_one_passage_stay_together(tmp_path):
    asked = {"question": "谁？", "choices": ["甲", "乙"], "answer": "A"}
    rng = random.Random(3)
    passages = [text_of(rng) for _ in range(50)]
    rows = [asked | {"context": passage, "question": f"谁{at}？"} for passage in passages for at in range(3)]
    (tmp_path / "t.json").write_text(repr(rows).replace("'", '"'), encoding="utf-8")
    splits = read_task(load_task("c3"), {"train": tmp_path / "t.json"}).splits
    homes = {(one.passage, name) for name, split in splits.items() for one in split.examples}
    assert len(homes) == 50 and {len(split.examples) % 3 for split in splits.values()} == {0}
