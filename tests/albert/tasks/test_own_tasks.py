"""Tasks that users write: the page on them, the formats their files come in, and texts in common."""

import json
import re

import datasets
import pytest
from pydantic import TypeAdapter

from albert.finetuning import fine_tune_one, predict_file, prepare
from albert.finetuning import read_task as read_settings
from albert.tasks import Kind, Task, read_task
from data.errors import InputError
from data.options import options_of
from tests.albert.finetuning.examples import settings_of, table
from tests.conftest import copied
from tests.pages import DOCS, blocks


def test_what_parts_of_a_task_have_in_common_is_counted_and_can_be_dropped(tmp_path):
    rows = {
        "train": [
            ("这家店的茶叶很香，价格也公道。", 1),
            ("送来的茶叶全碎了，客服不理人，我再也不会来这里买。", 0),
            ("👍👍", 1),
            ("水很好喝", 1),
            ("壶漏水", 0),
        ],
        "dev": [
            ("這家店的茶葉很香 价格也公道", 1),
            ("送来的茶叶都碎了，客服不理人，我再也不会来这里买。", 0),
            *((f"炒锅太烫{mark}", 0) for mark in ("！", "", "。")),
            ("👍👍", 1),
        ],
        "test": [("炒锅太烫", 0), ("杯子小巧", 1)],
    }
    paths = {name: table(tmp_path / f"{name}.tsv", "text label", lines) for name, lines in rows.items()}
    data = read_task(Task(name="t"), paths)
    counts = [(one.split, one.earlier, one.examples, one.identical, one.near) for one in data.overlaps]
    assert counts == [("dev", "train", 6, 1, 2), ("test", "dev", 2, 1, 0)]
    assert data.overlaps[1].shown == (("炒锅太烫", "炒锅太烫"),)
    less = read_task(Task(name="t"), paths, drop_overlap=True)
    assert [one.text for one in less.splits["train"].examples] == ["水很好喝", "壶漏水"]
    assert less.dropped == 3 and less.overlaps == data.overlaps
    table(paths["dev"], "text label", rows["train"][3:])
    with pytest.raises(InputError, match="nothing is left to learn"):
        read_task(Task(name="t"), {"train": copied(paths["dev"]), "dev": paths["dev"]}, drop_overlap=True)
    for name, lines in (("train", [*rows["train"][3:], ("炒锅太烫", 2)]), ("dev", [("炒锅太烫", 2)])):
        table(paths[name], "text label", lines)
    with pytest.raises(InputError, match="label '2' in .* in .*train.tsv without 1 dropped examples; its 2"):
        read_task(Task(name="t"), paths, drop_overlap=True)
    with pytest.raises(InputError, match="--train and --test are the same file"):
        read_task(Task(name="t"), paths | {"test": tmp_path / "." / "train.tsv"})


def test_the_page_of_tasks_has_every_field_as_it_is_declared():
    text = (DOCS / "tasks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) ?\| (.*) \|$", text, re.M)
    assert [row[0] for row in rows] == list(options_of(Task))
    schema = TypeAdapter(Task).json_schema()
    for name, kind, default, meaning in rows:
        field = options_of(Task)[name]
        assert meaning == field.description
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        assert default.strip() == ("the file's name" if name == "name" else f"`{value}`" if value else "")
        declared = [schema["properties"][name], schema["$defs"]["Kind"] if name == "kind" else {}]
        choices = re.findall(r'"enum": \[(.*?)\]', json.dumps(declared))
        assert re.findall(r"`(\S+?)`", kind) == [one for part in choices for one in json.loads(f"[{part}]")]


def test_the_usual_names_of_the_page_are_those_that_are_read(read):
    text = (DOCS / "tasks.md").read_text(encoding="utf-8")
    usual = {
        role: re.findall(r"`(.+?)`", names)
        for role, names in re.findall(r"^\| (\w+) \| (`.*`) \|$", text, re.M)
    }
    with pytest.raises(InputError, match=f"expected one of {', '.join(usual['text'])}, or"):
        read("t.jsonl", [{"label": 1}], "t")
    with pytest.raises(InputError, match=f"expected one of {', '.join(usual['label'])}, or"):
        read("t.jsonl", [{"text": 1}], "t")
    for pair in usual["pair"]:
        (one,) = read("t.jsonl", [{"text": "甲", pair: "乙", "label": "丙"}], "t").examples
        assert one.pair == "乙"


@pytest.mark.parametrize("number", range(6))
def test_the_examples_of_the_page_are_read_and_learnt(number, tmp_path, model_folder):
    name, content = blocks("tasks.md", "yaml")[number]
    file, rows = blocks("tasks.md", "text")[number]
    (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / file).write_text(rows, encoding="gb18030" if number == 0 else "utf-8")
    settings = settings_of(str(tmp_path / name), tmp_path / file, model_folder, epochs=1)
    data = read_settings(settings)
    assert len(data.splits["train"].examples) == (3, 3, 4, 2, 3, 2)[number]
    assert not data.splits["train"].skipped
    run = fine_tune_one(prepare(settings, data, 0), 0, 1e-3, tmp_path / "kept")
    assert predict_file(tmp_path / "kept", tmp_path / file).predictions.answers == run.dev.answers


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "utf-16"])
@pytest.mark.parametrize("mark", ",;\t")
def test_a_table_is_read_as_excel_saves_it(mark, encoding, read, tmp_path):
    rows = [["茶很香，包装也很好，还会再来买", "yes"], [f"等了一个小时{mark}没有人理我们", "no"]]
    header = ["评论", "推荐"]
    lines = [mark.join(f'"{cell}"' if mark in cell else cell for cell in row) for row in [header, *rows]]
    (tmp_path / "t.yaml").write_text("name: t\ncolumns: {text: 评论, label: 推荐}\nlabels: [no, yes]\n")
    for end in ("\r\n", "\r"):  # of Windows, and of Excel's format for the Macintosh
        split = read("t.csv", end.join([*lines, ""]).encode(encoding), str(tmp_path / "t.yaml"))
        assert [[one.text, one.label] for one in split.examples] == rows and not split.skipped


CLUENER = {"text": "杭州产茶", "label": {"地名": {"杭州": [[0, 1]]}, "物品": {"茶": [[3, 3]]}}}
DOCCANO = {"text": "杭州产茶", "label": [[0, 2, "地名"], [3, 4, "物品"]]}
LABEL_STUDIO = {
    "text": "杭州产茶",
    "label": [{"start": 0, "end": 2, "labels": ["地名"]}, {"start": 3, "end": 4, "labels": ["物品"]}],
}
CMEEE = {
    "text": "杭州产茶",
    "entities": [
        {"start_idx": 0, "end_idx": 1, "type": "地名", "entity": "杭州"},
        {"start_idx": 3, "end_idx": 3, "type": "物品", "entity": "茶"},
    ],
}
# of spaces it keeps one, and a line's end is written as \n
SPACED = {"text": "杭  州\n茶", "label": [{"start": 0, "end": 6, "text": "杭 州\\n茶", "labels": ["地名"]}]}


@pytest.mark.parametrize(
    "file, content",
    [
        ("t.bmes", "杭 B-地名\n州 E-地名\n产 O\n茶 S-物品\n"),
        ("t.bioes", "杭 B-地名\n州 E-地名\n产 O\n茶 S-物品\n"),
        ("t.conll", "-DOCSTART- -X- O\n杭 -X- _ B-地名\n州 -X- _ I-地名\n产 -X- _ O\n茶 -X- _ B-物品\n"),
        ("t.json", CLUENER),
        ("t.jsonl", [DOCCANO]),
        ("t.json", [LABEL_STUDIO]),
        ("t.json", [CMEEE]),
        ("t.tsv", "杭 州 产 茶\tB-地名 I-地名 O B-物品\n"),
        ("t.tsv", "text_a\tlabel\n杭 州 产 茶\tB-地名 I-地名 O B-物品\n"),
        ("t.jsonl", [{"tokens": [*"杭州产茶"], "tags": ["B-地名", "I-地名", "O", "B-物品"]}]),
    ],
)
def test_entities_of_every_format_are_the_same(file, content, read):
    (one,) = read(file, content, "msra_ner").examples
    assert (one.tokens, one.tags) == (tuple("杭州产茶"), ("B-地名", "I-地名", "O", "B-物品"))
    if file == "t.tsv":  # without tags, to be predicted
        texts = "\n".join(line.split("\t")[0] for line in content.split("\n"))
        assert read(file, texts, "msra_ner", is_labelled=False).examples[0].tokens == one.tokens


def test_a_text_that_was_annotated_in_label_studio_may_have_no_entity(read):
    plain = {"text": "水", "annotation_id": 2}
    others = [{**plain, "annotation_id": None}, {**plain, "another": LABEL_STUDIO["label"]}]
    split = read("t.json", [LABEL_STUDIO, plain, *others, SPACED], "msra_ner")
    assert [len(one.tags) for one in split.examples] == [4, 1, 6] and split.examples[1].tags == ("O",)
    assert [line.split(": ")[1] for line in split.skipped] == ["no entities under 'label'"] * 2


@pytest.mark.parametrize(
    "label, fault",
    [
        ({"地名": {"杭州": [[1, 2]]}}, "'杭州' is not at 1 to 2"),
        ({"地名": {"杭州": [[0, 1]], "杭": [[0, 0]]}}, "'杭' overlaps another entity"),
        ([[3, 5, "物品"]], "'茶' is not at 3 to 4"),
        # Label Studio counts an emoji before it twice
        ([{"start": 1, "end": 3, "text": "杭州", "labels": ["地名"]}], "'杭州' is not at 1 to 2"),
        ([{"start_idx": 1, "end_idx": 2, "type": "地名", "entity": "杭州"}], "'杭州' is not at 1 to 2"),
        ("地名", "no entities under 'label'"),
        *(
            (label, "not in a format of the task")
            for label in (
                {"地名": {"杭州": 3}},
                {"地名": {"杭州": [["a", 1]]}},
                [[0, 2]],
                [{"start": 0}],
                [{"entity": 1}],
            )
        ),
    ],
)
def test_entities_that_are_not_there_are_named(label, fault, read):
    rows = [CLUENER, CLUENER | {"label": label}]
    split = read("t.jsonl", rows, "msra_ner")
    assert len(split.examples) == 1 and split.skipped[0].endswith(f"row 2: {fault}")
    predicted = read("t.jsonl", rows, "msra_ner", is_labelled=False)  # reads no label
    assert len(predicted.examples) == 2 and not predicted.skipped


def test_a_json_array_is_read_like_json_lines(read):
    rows = [{"text": "甲", "label": "a"}, ["b"], {"text": "乙", "label": "b"}]
    lines, array = read("lines.jsonl", rows, "t"), read("array.json", "\n" + json.dumps(rows, indent=1), "t")
    assert array.examples == lines.examples and len(array.examples) == 2
    assert [one.rsplit("/")[-1] for one in array.skipped] == ["array.json, row 2: not a JSON object"]
    questions = [{"context": "甲乙", "question": "谁？", "answer": "乙"}] * 2
    for content in (json.dumps(questions, indent=1), "\n".join(map(json.dumps, questions))):
        asked = read("questions.json", content, Task(name="t", kind=Kind.SPAN)).examples
        assert [one.gold() for one in asked] == ["乙", "乙"]


@pytest.mark.parametrize("names", ["正文\t好坏\n", "text\tlabel\n", ""])
def test_a_header_of_a_file_is_no_example_where_the_task_names_the_columns_too(names, read):
    header = ("text", "label") if "text" in names else ("正文", "好坏")
    task = Task(name="t", header=header, columns=dict(zip(("text", "label"), header, strict=True)))
    assert [one.text for one in read("t.tsv", f"{names}甲\t1\n乙\t0\n", task).examples] == ["甲", "乙"]


@pytest.mark.parametrize("kind", [Kind.REGRESSION, Kind.MULTILABEL])
def test_splits_with_and_without_a_second_sentence_are_refused(kind, tmp_path):
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tlabel\n甲\t乙\t1\n")
    (tmp_path / "b.tsv").write_text("sentence1\tlabel\n丁\t1\n")
    with pytest.raises(InputError, match="only some of train, dev have a second sentence"):
        read_task(Task(name="t", kind=kind), {"train": tmp_path / "a.tsv", "dev": tmp_path / "b.tsv"})


def test_parquet_is_read_like_json_lines_and_numbered_labels_have_their_names(read, tmp_path):
    def write(name, columns, **features):
        features = datasets.Features(features) if features else None
        datasets.Dataset.from_dict(columns, features).to_parquet(tmp_path / name)
        return (tmp_path / name).read_bytes()

    text, label = datasets.Value("string"), datasets.ClassLabel(names=["差", "好"])
    columns = {"text": ["甲", "乙", "丙", ""], "label": [1, 0, -1, 1]}
    named = read("t.parquet", write("t.parquet", columns, text=text, label=label), "t")
    assert [(one.text, one.label) for one in named.examples] == [("甲", "好"), ("乙", "差")]
    assert [one.rsplit("/")[-1] for one in named.skipped] == [
        "t.parquet, row 3: column 'label' is missing",
        "t.parquet, row 4: column 'text' is empty or no text",
    ]
    ours = read("t.parquet", write("t.parquet", columns, text=text, label=label), "chnsenticorp")
    assert [one.label for one in ours.examples] == ["1", "0"]  # as the task has them
    tagged = {"tokens": [["杭", "州"]], "ner_tags": [[1, 2]]}
    tags = datasets.ClassLabel(names=["O", "B-地名", "I-地名"])
    content = write("n.parquet", tagged, tokens=datasets.List(text), ner_tags=datasets.List(tags))
    (one,) = read("n.parquet", content, Task(name="t", kind=Kind.TOKENS)).examples
    assert one.gold() == "地名 杭州"
    asked = {"context": ["甲乙"], "question": ["谁？"], "answers": [{"text": ["乙"], "answer_start": [1]}]}
    (one,) = read("s.parquet", write("s.parquet", asked), Task(name="t", kind=Kind.SPAN)).examples
    assert one.gold() == "乙"
    choices = {"article": ["甲来了。"], "question": ["谁？"], "options": [["乙", "甲"]], "answer": ["B"]}
    (one,) = read("c.parquet", write("c.parquet", choices), Task(name="t", kind=Kind.CHOICE)).examples
    assert one.gold() == "甲"
    for bad in (content[:-9], b"", b"text\tlabel\n"):
        with pytest.raises(InputError, match="n.parquet cannot be read"):
            read("n.parquet", bad, Task(name="t", kind=Kind.TOKENS))
