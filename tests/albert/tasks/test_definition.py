"""Task files and the formats of their publishers, on small samples of our own."""

import gzip
import json
from dataclasses import replace

import pytest

from albert.tasks import Kind, Task, answer_scores, load_task, read_split, read_task
from albert.tasks.definition import METRICS, shipped_tasks
from data.errors import InputError
from tests.conftest import copied

# task: the publisher's file, its columns, and those of the text or texts and of the label; / begins the names
# of a file that comes without them
TABLES = {
    "lcqmc": ("dev.tsv", "text_a|text_b|label", "text_a|text_b|label"),
    "bq": ("dev.csv", "sentence1|sentence2|label", "sentence1|sentence2|label"),
    "oppo": ("dev.tsv", "/text_a|text_b|label", "text_a|text_b|label"),
    "pawsx": ("dev.tsv", "id|sentence1|sentence2|label", "sentence1|sentence2|label"),
    "afqmc": ("dev.json", "sentence1|sentence2|label", "sentence1|sentence2|label"),
    "tnews": ("dev.json", "label|label_desc|sentence|keywords", "sentence|label"),
    "iflytek": ("dev.json", "label|label_des|sentence", "sentence|label"),
    "cmnli": ("dev.json", "sentence1|sentence2|label", "sentence1|sentence2|label"),
    "ocnli": ("dev.json", "level|sentence1|sentence2|label|genre|id", "sentence1|sentence2|label"),
    "csl": ("dev.json", "id|abst|keyword|label", "keyword|abst|label"),
    "chnsenticorp": ("dev.tsv", "label|text_a", "text_a|label"),
    "online_shopping": ("all.csv", "cat|label|review", "review|label"),
    "cola": ("dev.tsv", "/source|label|mark|sentence", "sentence|label"),
    "sst2": ("dev.tsv", "sentence|label", "sentence|label"),
    "mrpc": ("dev.tsv", "\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String", "#1 String|#2 String|Quality"),
    "stsb": ("dev.tsv", "index|sentence1|sentence2|score", "sentence1|sentence2|score"),
    "qqp": ("dev.tsv", "id|qid1|qid2|question1|question2|is_duplicate", "question1|question2|is_duplicate"),
    "mnli": ("dev.tsv", "index|sentence1|sentence2|label1|gold_label", "sentence1|sentence2|gold_label"),
    "qnli": ("dev.tsv", "index|question|sentence|label", "question|sentence|label"),
    "rte": ("dev.tsv", "index|sentence1|sentence2|label", "sentence1|sentence2|label"),
    "wnli": ("dev.tsv", "index|sentence1|sentence2|label", "sentence1|sentence2|label"),
}
# fmt: off
QUESTIONS = [
    {"id": "1", "question": "产于何处？", "answers": [{"text": "杭州", "answer_start": 4}]},
    {"id": "2", "question": "何时采？", "is_impossible": True, "answers": []},
    {"id": "3", "question": "何名？", "answers": [{"text": "龙井", "answer_start": 5}]},
]
SQUAD = {"data": [{"title": "茶", "paragraphs": [{"context": "龙井产于杭州。", "qas": QUESTIONS}]}]}
CMRC = [{"context_id": "DEV_0", "context_text": "龙井产于杭州。", "title": "茶", "qas": [
    {"query_id": "DEV_0_QUERY_0", "query_text": "产于何处？", "answers": ["杭州", "于杭州"]},
    {"query_id": "DEV_0_QUERY_1", "query_text": "何名？", "answers": []},
]}]
DRINKS = {"question": "她喝什么？", "choice": ["茶", "水"], "answer": "水"}
C3 = [[["男：喝茶吗？", "女：不，喝水。"], [DRINKS], "1"]]
RACE = {
    "article": "Tom drinks tea.", "questions": ["Who drinks?", "What?"], "answers": ["B", "A"],
    "id": "high1.txt", "options": [["Ann", "Tom", "Bob", "Eve"], ["tea", "milk", "beer", "water"]],
}
# fmt: on


@pytest.mark.parametrize("name", TABLES)
def test_official_tables_are_read(name, read):
    (file, columns, roles), task = TABLES[name], load_task(name)
    *texts, label = roles.split("|")
    row = {one: f"{one}的内容" for one in columns.strip("/\ufeff").split("|")}
    # a row whose label is none of the task's is skipped, as the pairs of CMNLI without agreement
    rows = [row | {label: one} for one in ((task.labels or ["1.6"])[0], "-")]
    if file.endswith(".json"):
        lines = map(json.dumps, rows)
    else:
        names = [] if columns.startswith("/") else [columns.split("|")]
        lines = map({".csv": ",", ".tsv": "\t"}[file[-4:]].join, [*names, *map(dict.values, rows)])
    split = read(file, "\n".join(lines), task)
    one = split.examples[0]
    assert (*one.texts(), one.label) == (*(row[text] for text in texts), rows[0][label])
    assert len(split.skipped) == (task.labels is not None or name == "stsb")


def test_csls_keywords_and_cluewscs_mentions_are_parts_of_the_text(read):
    row = {"abst": "本文研究茶叶。", "keyword": ["茶叶", "香气"], "label": "1"}
    assert read("dev.json", row, "csl").examples[0].text == "茶叶 香气"
    spans = {"span1_text": "新茶", "span1_index": 3, "span2_text": "它", "span2_index": 9}
    texts = ("短", "柜子里新茶的罐子，它漏气。")
    rows = [{"target": spans, "text": text, "label": "false"} for text in texts]
    split = read("dev.jsonl", rows, "cluewsc2020")
    assert [one.text for one in split.examples] == ["柜子里_新茶_的罐子，[它]漏气。"]
    assert split.skipped[0].endswith("row 1: a span of its target is not in the text")


def test_every_shipped_task_names_itself_and_its_metric_and_a_misspelt_one_is_no_new_one():
    for name in shipped_tasks():
        task = load_task(name)
        assert task.name == name and task.metrics[0] == task.metric in METRICS[task.kind]
    for typed, meant in (("chnsentcorp", "chnsenticorp"), ("LCQCM", "lcqmc")):
        with pytest.raises(InputError, match=f"no task '{typed}': did you mean {meant}?"):
            load_task(typed)
    assert load_task("mine").name == "mine"


@pytest.mark.parametrize("name", ["squad1", "squad2", "cmrc2018", "drcd"])
def test_spans_are_read_and_a_wrong_offset_is_corrected(name, read):
    split = read("dev.json.gz", gzip.compress(json.dumps(SQUAD).encode()), name)
    assert [one.answers for one in split.examples] == [("杭州",), (), ("龙井",)]
    assert [one.starts for one in split.examples] == [(4,), (), (0,)]
    assert [one.id for one in split.examples] == ["1", "2", "3"]
    split = read("dev.json", json.dumps(SQUAD).replace('"id"', '"no"'), name)
    assert [one.id for one in split.examples] == ["0", "1", "2"]


def test_spans_are_read_from_cmrcs_own_layout(read):
    split = read("dev.json", CMRC, "cmrc2018")
    (one,) = split.examples
    assert (one.id, one.passage, one.question) == ("DEV_0_QUERY_0", "龙井产于杭州。", "产于何处？")
    assert (one.answers, one.starts) == (("杭州", "于杭州"), (4, 3))
    (skipped,) = split.skipped
    assert skipped.endswith("question 2: no answer")


def test_choices_are_read_from_c3_and_from_races_folder(read, tmp_path):
    # C3's publisher parts dialogues and other texts
    (one,) = read("both/c3-d-train.json", C3, "c3").examples
    assert (one.passage, one.choices, one.answer) == ("男：喝茶吗？\n女：不，喝水。", ("茶", "水"), 1)
    read("both/c3-m-train.json", C3, "c3")
    assert read_split(tmp_path / "both", load_task("c3"))[1].examples == (one, replace(one, id="1"))
    read("race/high/1.txt", RACE, "race")
    _, split = read_split(tmp_path / "race", load_task("race"))
    assert [(one.question, one.answer) for one in split.examples] == [("Who drinks?", 1), ("What?", 0)]
    (tmp_path / "race/high/2.txt").write_text(json.dumps(RACE).replace("article", "text"), encoding="utf-8")
    _, split = read_split(tmp_path / "race", load_task("race"))
    assert len(split.examples) == 2 and all("2.txt, passage 1, " in one for one in split.skipped)


def test_choices_are_read_from_a_question_a_row(read):
    asked = {"question": "谁？", "choices": ["甲", "乙", "丙"], "answer": "B"}
    rows = [
        {"context": ["女：甲呢？", "男：乙在。"], "question": "谁？", "choice": ["甲", "乙"], "answer": "乙"},
        asked | {"passage": "乙在。", "answer": "乙"},
        asked | {"choices": {"A": "甲", "B": "乙", "C": None, "D": ""}},
        asked | {"choices": ["B", "乙"]},
        asked | {"choices": "甲乙"},
        asked | {"question": None},
    ]
    task = Task(name="t", kind=Kind.CHOICE)
    array = read("array.json", json.dumps(rows), task)
    for split in (array, read("t.jsonl", rows, task), read("t.json", "\n".join(map(json.dumps, rows)), task)):
        assert {one.gold() for one in split.examples} == {"乙"} and split.groups == array.groups
        assert [(one.passage, one.question) for one in split.examples] == [
            ("女：甲呢？\n男：乙在。", "谁？"),
            ("乙在。", "谁？"),
            ("谁？", ""),
        ]
        assert [one.partition("question 1: ")[2] for one in split.skipped] == [
            "the right answer is the letter of another choice",
            *["not in a format of the task"] * 2,
        ]


def test_blanks_are_read_from_chid_with_the_answers_beside_it(read, tmp_path):
    content = ["水#idiom01#，茶#idiom02#。", "远" * 90 + "#idiom03#"]
    first = {"content": content, "candidates": ["清澈见底", "回味无穷"]}
    second = {"content": ["无#idiom04#"], "candidates": ["一言为定", "心满意足"]}
    lines = f"{json.dumps(first)}\n{json.dumps(second)}\n{json.dumps([first])}\n"
    with pytest.raises(InputError, match="no file .*dev_answer.json"):
        read("dev.json", lines, "chid")
    answers = {"#idiom01#": 0, "#idiom02#": 1, "#idiom03#": 0}
    (tmp_path / "dev_answer.json").write_text(json.dumps(answers), encoding="utf-8")
    split = read("dev.json", lines, "chid")
    first, second, third = split.examples
    assert (first.passage, first.choices, first.answer) == ("水____，茶…。", ("清澈见底", "回味无穷"), 0)
    assert (second.passage, second.answer) == ("水…，茶____。", 1)
    assert third.passage == "远" * 28 + "____"
    one = json.loads(lines.partition("\n")[0]) | {"answers": {"candidate_id": [0, 1, 0], "text": []}}
    assert read("rows.jsonl", [one], "chid").examples == split.examples  # as in Hugging Face's copy
    why = ["2: no answer for #idiom04#", f"3: {NO_CHOICE}"]
    assert [line.partition("row ")[2] for line in split.skipped] == why


def test_a_token_may_be_a_space_and_bad_sentences_are_named(tmp_path):
    content = "茶 B-LOC\n\u3000 I-LOC\n  O\n\n茶 O\n香\n\n香 O\n茶 I-LOC\n"
    (tmp_path / "t.txt").write_text(content, encoding="utf-8")
    data = read_task(load_task("msra_ner"), {"train": tmp_path / "t.txt", "dev": copied(tmp_path / "t.txt")})
    (one,) = data.splits["train"].examples
    assert one.tokens == ("茶", "\u3000", " ") and one.tags == ("B-LOC", "I-LOC", "O")
    assert data.labels == ("O", "B-LOC", "I-LOC")
    first, second = data.splits["train"].skipped
    assert "row 5: unknown tag ''" in first and "row 8: tag 'I-LOC' follows 'O'" in second
    (tmp_path / "t.tsv").write_text("茶 香\tB-LOC X\n水\tB-LOC\n", encoding="utf-8")
    _, split = read_split(tmp_path / "t.tsv", load_task("msra_ner"))
    assert len(split.examples) == 1 and "row 1: unknown tag 'X'" in split.skipped[0]


@pytest.mark.parametrize("labels", [("地名", "物品"), ("S-物品", "B-地名", "I-地名", "O")])
def test_labels_of_tagged_tokens_are_kinds_of_entities_or_tags(labels, read, tmp_path):
    text = "杭 B-地名\n州 E-地名\n产 O\n茶 S-物品\n\n茶 O\n\n李 B-人名\n白 E-人名\n"
    split = read("t.bmes", text, Task(name="places", kind="tokens", labels=labels))
    assert [one.tags for one in split.examples] == [("B-地名", "I-地名", "O", "B-物品"), ("O",)]
    assert len(split.skipped) == 1 and "unknown tag 'B-人名'" in split.skipped[0]
    train = tmp_path / "train.bmes"  # without a kind that dev has
    train.write_text("杭 B-地名\n州 E-地名\n", encoding="utf-8")
    data = read_task(Task(name="places", kind="tokens", labels=labels), {"train": train, "dev": split.path})
    assert data.labels == ("O", "B-地名", "I-地名", "B-物品", "I-物品")
    assert data.absent == ("train has no example of 1 of 2 labels: 物品",)


@pytest.mark.parametrize(
    "kind, file, rows",
    [
        ("single", "t.tsv", "text\tlabel\tlaw\n甲\t0\t民\n乙\t1\t刑\n丙\t0\t民\n"),
        ("single", "empty.tsv", "text\tlabel\tlaw\n甲\t0\t民\n乙\t1\t\n"),
        ("span", "t.csv", "context,question,answer,law\n甲乙,哪个,甲,一\n甲乙,谁,乙,二\n丙,什么,丙,一\n"),
        ("tokens", "t.jsonl", [{"tokens": ["甲"], "tags": ["O"], "law": law} for law in (1, 2, 1)]),
        ("tokens", "t.txt", "甲 B-x\n\n乙 B-x\n"),
        ("choice", "t.json", '[[["甲"], [{"question": "?", "choice": ["甲", "乙"], "answer": "甲"}], "1"]]'),
    ],
)
def test_groups_are_read_where_rows_have_columns_and_refused_elsewhere(kind, file, rows, read):
    task = Task(name="t", kind=Kind(kind), group="law")
    if file in ("t.tsv", "t.csv", "t.jsonl"):
        assert read(file, rows, task).groups == (0, 1, 0)
        assert read(file, rows, replace(task, group=None)).groups == ((0, 0, 1) if kind == "span" else None)
        return
    with pytest.raises(InputError, match=f"no column 'law' for groups in each row of .*{file}"):
        read(file, rows, task)


def test_examples_that_hang_together_by_their_texts_are_groups_unless_most_do(read):
    alone = [(f"甲{n}", f"乙{n}") for n in range(40)]
    chained = [("甲0", "丙"), ("丁", "丙"), ("丁", "乙1")]  # through two others to the second of those alone

    def groups_of(pairs):
        rows = "".join(f"{a}\t{b}\t{n % 2}\n" for n, (a, b) in enumerate(pairs))
        split = read("t.tsv", f"text_a\ttext_b\tlabel\n{rows}", Task(name="t", kind=Kind.PAIR))
        return split.groups, split.entangled

    assert groups_of(alone) == (None, 0)
    assert groups_of([*alone[:1], *chained, *alone[2:]]) == ((0, 0, 0, 0, *range(1, 39)), 0)
    assert groups_of([*alone, *chained]) == (None, 5)  # of 43
    for aspects, largest in ((2, 20), (13, 4)):
        asked = [(text, f"方面{n % aspects}") for n, (text, _) in enumerate(alone)]
        assert groups_of(asked) == (None, largest)
    reviews = "text\tlabel\n" + "".join(f"茶{n % 35}\t{n % 2}\n" for n in range(37))
    assert read("t.tsv", reviews, Task(name="t", kind=Kind.SINGLE)).groups == (*range(35), 0, 1)


def test_a_row_may_hold_a_carriage_return_a_quote_and_a_long_text_but_in_csv_no_unmatched_quotes(read):
    long = "茶" * 200_000
    split = read("t.tsv", f'text\tlabel\n好\r的\t1\n"{long}\t0\n', "t")
    assert [one.text for one in split.examples] == ["好\r的", f'"{long}'] and not split.skipped
    rows = f'text,label\n"好,1\n{long},0\n"香"茶,1\n"两\n行",0\n'
    split = read("t.csv", rows, "t")
    assert [one.text for one in split.examples] == [long, "两\n行"]
    faults = [line.partition("row ")[2] for line in split.skipped]
    assert faults == [f"{row}: not CSV, by its quotes or line ends" for row in (2, 4)]
    task = Task(name="t", header=("text", "label"))
    assert len(read("t.csv", rows.partition("\n")[2], task).examples) == 2
    # without a label, as the first row that can be read shows
    assert len(read("t.csv", '"好\n香\n', task, is_labelled=False).examples) == 1
    for head, task in (
        ("", Task(name="t")),
        ("text\n", Task(name="t")),
        ("评\n", Task(name="t", columns={"text": "评"})),
    ):
        lines = read("t.txt", f"{head}好\n\n香，\n", task, is_labelled=False)
        assert [one.text for one in lines.examples] == ["好", "香，"] and len(lines.skipped) == 1
    with pytest.raises(InputError, match="no text column .*columns: 好, 1"):
        read("t.csv", '"text,label\n好,1\n坏,0\n', "t")


@pytest.mark.parametrize(
    "task, file, content, message",
    [
        ("t", "t.tsv", "sentence_a\tgold\n好\t1\n", "no text column .*columns: sentence_a, gold"),
        ("t", "t.tsv", "text\tcategory\n好\t1\n", "no label column"),
        ("t", "t.tsv", "text\tlabel\n", "no example"),
        ("t", "t.csv", "text,label,label,,\n好,1,2,,\n", "t.csv has several columns 'label'"),
        ("t", "t.json", '[["好", 1]]', "no example; row 1 is not a JSON object"),
        ("t", "t.tsv", "text\tlabel\n\t\n", "no usable example"),
        ("named", "t.tsv", "text\tlabel\n好\t1\n", "no column 'x' in .*; its columns are text, label"),
        ("squad1", "t.json", "[1", "is not JSON"),
        ("squad1", "t.json", '{"data": 3}', "not in SQuAD's format"),
        ("squad1", "t.json", '{"data": [{"title": "茶"}]}', "t.json is not in a format of task squad1"),
        ("c3", "t.json", '[{"question": 1}]', "neither C3's nor RACE's"),
        ("msra_ner", "t.tsv", "a\tb\tc\n香\tO\tO\n", "no usable example .* 1 tokens, 2 tags"),
        ("t", "t.tsv", ("茶叶很香\t1\n" * 9).encode() + b"\xff\t0\n", "line 10 is not utf-8"),
        ("t", "t.xlsx", b"PK\x03\x04" + bytes(range(256)) * 20, "is not text in a known encoding"),
        ("t", "t.tsv.gz", gzip.compress(b"text\tlabel\n" + b"tea\t1\n" * 9, mtime=0)[:-20], "cannot be read"),
    ],
    ids=lambda value: "..." if isinstance(value, bytes) else None,
)
def test_a_file_that_does_not_fit_is_refused(task, file, content, message, read):
    with pytest.raises(InputError, match=message):
        read(file, content, Task(name="t", columns={"text": "x"}) if task == "named" else task)


ASKED = {"context": "龙井产于杭州", "question": "哪"}
MARKED = {"text": "杭州", "label": {"地": {"杭州": [[0, 1]]}}}
TEA, PAIR = {"text": "茶"}, {"sentence1": "甲", "label": "a"}
LIST = "column 'label' is a list: only multilabel tasks have several"
NO_TEXT = "column 'label' is empty or no text"
FIRST, NOT_AMONG = "question 1", "the right answer is not among the choices"
NO_CHOICE = "neither C3's nor RACE's nor ChID's format, nor a question with its choices"


@pytest.mark.parametrize(
    "kind, rows, kept, faults",
    [
        (
            "span",
            [ASKED | {"answer": {"text": ["杭州"], "answer_start": [4]}}, ASKED | {"answer": "西湖"}, ASKED],
            "杭州",
            ["2: its answer '西湖' is not in the passage", "3: column 'answer' is missing"],
        ),
        (
            "span",
            [ASKED | {"answer": x, "question": q} for x, q in (("杭州", "哪"), ("杭州", " "), ([""], "哪"))],
            "杭州",
            ["2: no passage or no question", "3: an answer is empty"],
        ),
        (
            "choice",
            [[["甲"], [DRINKS | x], "1"] for x in ({}, {"choice": ["水"]}, {"answer": "酒"})],
            "水",
            [f"2, {FIRST}: fewer than two answers to choose from", f"3, {FIRST}: {NOT_AMONG}"],
        ),
        (
            "tokens",
            [MARKED, {"text": "杭州", "spans": []}, MARKED | {"text": ""}],
            "地 杭州",
            ["2: no entities under 'label'", "3: no text and no tokens"],
        ),
        ("regression", [TEA | {"label": x} for x in (1.5, "nan")], "1.5", ["2: 'nan' is not a number"]),
        ("single", [TEA | {"label": x} for x in (["好", "香"], "好")], "好", [f"1: {LIST}"]),
        ("multilabel", [TEA | {"label": x} for x in (["好", None], {"好": 1})], "好", [f"2: {NO_TEXT}"]),
        # which the first row lacks
        ("pair", [PAIR, PAIR | {"sentence2": "丙"}], "a", ["1: column 'sentence2' is missing"]),
    ],
)
def test_a_row_that_lacks_something_is_skipped_and_the_fault_named(kind, rows, kept, faults, read):
    split = read("t.jsonl", rows, Task(name="t", kind=Kind(kind)))
    assert [one.gold() for one in split.examples] == [kept]
    assert [line.partition("row ")[2] for line in split.skipped] == faults


def test_half_a_character_is_a_fault_of_its_row(read):
    rows = [[["茶"], [DRINKS | {"choice": ["水", choice]}], "1"] for choice in ("茶", "\ud83d")]
    split = read("t.jsonl", rows, "c3")
    (skipped,) = split.skipped
    assert len(split.examples) == 1 and "row 2" in skipped and skipped.endswith("surrogates not allowed")
    row = {"text": "茶", "label": "好", "id": "1", "law": "民"}
    rows = [row, row | {"id": "\ud83d"}, row | {"law": "\ud83d"}]
    split = read("l.jsonl", rows, Task(name="t", group="law"))
    assert len(split.examples) == 1 and len(split.skipped) == 2  # predictions and groups are written too


def test_a_row_with_an_empty_id_has_its_number(read):
    row = {"id": None, "text": "茶", "label": "好"}
    assert [one.id for one in read("t.jsonl", [row, row, row | {"id": 7}], "t").examples] == ["0", "1", "7"]
    choices = [[["茶"], [DRINKS | {"id": None}], "1"]] * 2
    assert [one.id for one in read("c.jsonl", choices, "c3").examples] == ["0", "1"]
    qas = [{**QUESTIONS[0], "id": None}] * 2
    content = {"data": [{"paragraphs": [{"context": "龙井产于杭州。", "qas": qas}]}]}
    assert [one.id for one in read("s.json", content, "squad1").examples] == ["0", "1"]


def test_labels_without_an_example_are_named(tmp_path):
    texts = {"train": "香\t好\n苦\t坏\n甜\t号\n", "dev": "香的\t好\n苦的\t坏\n", "test": "苦了\t坏\n"}
    paths = {name: tmp_path / f"{name}.tsv" for name in texts}
    for name, text in texts.items():
        paths[name].write_text(f" text \tlabel\n{text}", encoding="utf-8")
    assert read_task(Task(name="t"), paths).absent == (
        "dev has no example of 1 of 3 labels: 号",
        "test has no example of 2 of 3 labels: 号, 好",
    )
    for kind in ("f1", "matthews"):
        with pytest.raises(InputError, match=f"{kind} is for two labels, and .*train.tsv has 3"):
            read_task(Task(name="t", metric=kind), paths)


@pytest.mark.parametrize("file, mark", [("t.csv", ","), ("t.tsv", "\t")])
def test_bad_rows_are_skipped_by_number(file, mark, read):
    rows = "\ntext,label\n好,1\n坏\n,0\n香,0,9\n\n苦,0\n\n\n"  # empty lines at the end are no rows
    split = read(file, rows.replace(",", mark), "t")
    assert [one.id for one in split.examples] == ["0", "5"] and split.examples[0].pair is None
    assert [line.split("row ")[1].split(":")[0] for line in split.skipped] == ["4", "5", "6", "7"]


@pytest.mark.parametrize(
    "content, message",
    [
        ("name: t\nkind: poem\n", "kind='poem': it must be 'single', 'pair'"),
        ("name: t\nkind: pair\nmetric: bleu\n", "no metric 'bleu' for kind pair"),
        ("name: t\nkind: span\nanswers: words\n", "answers='words': it must be 'squad', 'squad2' or 'cmrc'"),
        ("name: t\ncolumns: [text]\n", "columns=.*: it must be a valid dictionary"),
        ("name: t\ncolumns: {words: x}\n", "columns.words.*: it must be 'text', 'pair' or 'label'"),
        ("name: t\nlabel: x\n", "unknown label; did you mean labels?"),
        ("name: t\nlabels: [0, 1, 0]\n", "task t: a label stands twice in 0, 1, 0"),
        ("- t\n", "is no task file: it has no fields"),
        ("kind: pair\nname: a/b\n", "task 'a/b': use 1 to 64 letters"),
        ("name: !!python/object/apply:os.system ['true']\n", "name=.*: it must be a valid string"),
        ("name: [\n", "is not YAML"),
    ],
)
def test_a_task_file_with_faults_is_refused(content, message, tmp_path):
    (tmp_path / "t.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_task(str(tmp_path / "t.yaml"))


@pytest.mark.parametrize(
    "predicted, gold, first, second",
    [
        # articles, case and punctuation do not count; the best gold answer does
        ("The Great Wall.", ["great wall"], (1, 1), (1, 1)),
        ("a great wall", ["wall", "the great wall of China"], (0, 2 / 3), (0, 2 / 3)),
        ("wall wall", ["wall"], (0, 2 / 3), (0, 2 / 3)),
        ("", [], (1, 1), (1, 1)),
        ("Rome", [], (0, 0), (0, 0)),
        ("", ["Rome"], (0, 0), (0, 0)),
        # nothing is left of these: that of 1.1 finds no word in common, that of 2.0 takes them for no answer
        ("the", ["A."], (1, 0), (1, 1)),
        ("?", ["the", "the cat"], (1, 0), (0, 0)),
        ("cat", ["the", "the cat"], (1, 1), (1, 1)),
        ("the", [], (0, 0), (1, 1)),
    ],
)
def test_answers_are_scored_as_each_of_squads_scripts_does(predicted, gold, first, second):
    assert answer_scores(predicted, gold, "squad") == pytest.approx(first)
    assert answer_scores(predicted, gold, "squad2") == pytest.approx(second)


@pytest.mark.parametrize(
    "predicted, gold, exact, f1",
    [
        # CMRC's script: characters, the longest common run, no punctuation
        ("《战国无双》", ["战国无双"], 1, 1),
        # 杭州 and 西湖 are in common, but not in one run
        ("杭州的西湖", ["杭州西湖"], 0, 2 * (2 / 5) * (2 / 4) / (2 / 5 + 2 / 4)),
        ("1999年", ["1998年"], 0, 2 * (1 / 2) * (1 / 2) / (1 / 2 + 1 / 2)),  # a number is one unit
        ("Omega Force", ["ω-force", "omega force"], 1, 1),
        ("茶", ["水"], 0, 0),
        # its outcomes where Latin letters, numbers and marks meet
        (".5至3公尺", ["0.5至3公尺"], 0, 4 / 5),
        ("新世沉积层——赞尼特岩层，该", ["赞尼特岩层"], 0, 5 / 9),
        ("北纬40 °15 ′37 ″—40 °30 ′40 ″宝山镇 ", ["北纬40 °15 ′37 ″—40 °30 ′40 ″"], 0, 22 / 25),
        ("Men's YOUNG", ["Men's YOUNG连载"], 0, 3 / 4),
        ("Writers' don't", ["Writers' do"], 0, 6 / 7),
    ],
)
def test_answers_are_scored_as_cmrcs_script_does(predicted, gold, exact, f1):
    assert answer_scores(predicted, gold, "cmrc") == (exact, pytest.approx(f1))
