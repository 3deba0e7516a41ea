import gzip
import json

import pytest

from data.cleaning import CleaningRules, GuardRules, count_hits, find_leak, make_guard
from data.errors import InputError
from tests.data.helpers import parquet_of, zip_of

QUESTION = "清明前采的龙井茶应该用多少度的水来泡才好"
LAW = "县级以上地方各级人民政府应当公布收购价格"


def hits(path, *documents, ngram=13):
    guard = make_guard((str(path),), ngram, CleaningRules())
    return count_hits(guard, documents).tolist()


@pytest.mark.parametrize("share, found", [(0, [8, 2, 1, 2]), (2 / 9, [8, 2, 1, 0]), (1, [8, 0, 1, 0])])
def test_a_share_of_an_evaluation_text_can_be_asked_for(write, share, found):
    pair = f"{QUESTION}\t龙井茶怎么泡才好喝", f"{LAW}\t{QUESTION}"
    files = tuple(str(write(f"{number}.tsv", f"a\tb\n{row}\n")) for number, row in enumerate(pair))
    guard = make_guard(files, 13, CleaningRules(), share)
    phrase = LAW[:14] + "做好别的工作"
    again = f"请问龙井茶怎么泡才好喝？{phrase[2:]}"
    documents = [[f"有人问：{QUESTION}？"], [phrase], [again], [QUESTION[:12], LAW[:13], LAW[:13]]]
    assert count_hits(guard, documents).tolist() == found


def test_a_text_of_eight_letters_is_found_anywhere_and_a_shorter_one_as_a_sentence(write):
    path = write("dev.txt", "龙井茶怎么泡好喝\t要泡多久\n龙井怎么泡好\t0\n")
    anywhere = ["请问龙井茶，怎么泡好喝呢？", "要泡多久？"], ["请问龙井茶。", "怎么泡好喝呢？"]
    assert hits(path, *anywhere, ["龙井茶怎么泡好"]) == [1, 1, 0]
    documents = ["龙井怎么", "泡好"], ["他问龙井怎么泡好"], ["“龙井怎么泡好？”", "有人问"]
    assert hits(path, *documents) == [0, 0, 1]
    assert hits(write("a.txt", QUESTION), [QUESTION[:8]], ngram=8) == [1]
    assert find_leak([("龙井怎么泡好",)], ["\n".join(documents[1])]).rows == ()
    assert find_leak([("龙井怎么泡好",)], ["\n".join(documents[2])]).rows == (0,)


def test_short_sentences_of_a_pair_are_found_where_a_document_holds_both(write):
    path = write(
        "dev.tsv",
        f"id\ta\tb\tlabel\n1023\t{QUESTION}\t茶\t1\n1024\t茶怎么存\t新茶该放在哪里\t1\n1025\t泡好茶\t水温多少\t0\n"
        "1026\t好T多少錢\tt，多少钱\t1\n1027\t水有多热\t水有多热呢\t1\n",
    )
    both = ["有人问新茶，该放在哪里？", "也有人问茶怎麼存好。"]
    others = ["他问新茶该放在哪里"], ["茶怎么存", "水温多少"], ["泡好茶的水温多少", "好t多少钱，水有多热呢"]
    assert hits(path, both, *others) == [2, 0, 0, 0]
    rows = [(f"{tea}茶怎么存", f"新{tea}放哪里") for tea in "红绿白黄黑青"]
    leak = find_leak([*rows, ("红茶怎么存", "茶叶价格")], [*map("\n".join, rows), "新红放哪里\n茶叶价格"])
    assert (leak.texts, leak.found, leak.rows) == (13, sum(rows, ()), tuple(range(6))) and leak.documents == 6


@pytest.mark.parametrize("share, leaked", [(0.0, 2), (0.5, 1)])
def test_a_leak_is_counted_by_the_share_that_the_guard_asks_for(share, leaked):
    documents = [f"有人问：{QUESTION}？", *["茶。"] * 1000, LAW[:13] + "做好别的工作"]
    leak = find_leak([(QUESTION,), (LAW,)], documents, share)
    assert (leak.texts, len(leak.found), leak.documents) == (2, leaked, leaked)
    # of the last text each document holds a third, as it holds most of one of the others
    halves = f"{QUESTION}今年呢", f"{LAW}和标准"
    rows = [(halves[0] + "甲乙",), (halves[1] + "丙丁",), ("".join(halves),)]
    assert find_leak(rows, halves, share).rows == ((0, 1, 2), (0, 1))[share > 0]
    assert find_leak([((QUESTION + LAW)[:37],)], [(QUESTION + LAW)[:19]], 0.28).found  # 7 n-grams of 25
    none = find_leak([(LAW,)], [documents[0], LAW[:12]], share), find_leak([], documents, share)
    assert all(leak.found == leak.rows == () for leak in none)


OTHER = "另外一个更长的问题在这里等着回答"
ROWS = [{"q": [QUESTION], "label": 1}, {"q": [OTHER], "label": 7}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
FORMS = {
    "dev.jsonl": JSONL,
    "dev.tsv": f"{QUESTION}\t0\n{OTHER}\t1\n",
    "dev.txt": f"{QUESTION}\n" + "茶\n" * 10_000 + f"{OTHER[:5]}<b>{OTHER[5:]}</b>\n",
    "dev.csv": f'sep=,\nquestion,b\n"{QUESTION}",0\n7,{OTHER}\n',  # its names of columns are no texts
    "dev.parquet.gz": gzip.compress(parquet_of(q=[QUESTION, None], a=["茶", OTHER], label=[1, 7])),
    "dev.zip": zip_of({"dev.jsonl": JSONL.encode(), "readme.bin": b"\0\1"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_field_of_every_usual_form_of_an_evaluation_set_is_read(write, name):
    path = write(name, FORMS[name])
    unlike = "先读一句话，这里什么也没有，没有question，然后再读一句话。"
    assert hits(path, [QUESTION], [unlike], [OTHER]) == [len(QUESTION) - 12, 0, len(OTHER) - 12]


def test_width_case_punctuation_and_traditional_characters_do_not_hide_a_text(write):
    texts = ["ＡＢＣＤＥＦＧ１２３４５６７８９０水温", "圖書館開設閱覽室讀者可以憑證件免費借閱"]
    plain = ["abcdefg，1234567890 水温", "图书馆开设阅览室；读者可以凭证件免费借阅"]
    for written, read in ((texts, plain), (plain, texts)):
        path = write("dev.tsv", "text\n" + "\n".join(written) + "\n")
        assert hits(path, *([text] for text in read)) == [7, 7]


def good_jsonl(count):
    return "".join(json.dumps({"q": f"{n}号问题：{QUESTION}"}) + "\n" for n in range(count)).encode()


@pytest.mark.parametrize(
    "name, content",
    [
        ("none.tsv", b"a\tb\n1\t2\n"),
        ("gone.tsv", None),
        ("*.jsonl", None),
        ("broken.jsonl", good_jsonl(3) + b'{"q": \n' + good_jsonl(3)),
        ("cut.jsonl.gz", gzip.compress(good_jsonl(500), mtime=0)[:-20]),
        ("cut.txt.gz", gzip.compress(bytes(range(50)).hex().encode() * 500, mtime=0)[:-20]),
        ("cut.tsv.gz", gzip.compress(f"{QUESTION}\n".encode() * 500, mtime=0)[:-20]),
        ("quotes.csv", f'a,b\n"{QUESTION},1\n{QUESTION},0\n'.encode()),
        ("noise.zip", zip_of({"dev.jsonl": good_jsonl(3), "b.csv": bytes(range(256))})),
        ("long.zip", zip_of({"dev.jsonl": good_jsonl(3), "b.md": b"tea " * (2 << 20 | 1)})),
        ("no.parquet", b"PAR1 no table PAR1"),
        ("out.zip", zip_of({"dev.jsonl": good_jsonl(3), "../dev.jsonl": good_jsonl(3)})),
    ],
)
def test_a_guard_without_text_or_that_cannot_be_read_to_its_end_is_refused(tmp_path, name, content):
    path = tmp_path / name
    if content:
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        make_guard((str(path),), 13, CleaningRules())
    message = str(refused.value)
    assert f"guard file {path}" in message and "\n" not in message
    advice = "check the path" if content is None else "no text of 6 letters" if "none" in name else "mend it"
    assert advice in message


@pytest.mark.parametrize("action, kept", [("drop", 1), ("report", 2)])
def test_a_refresh_drops_or_reports_them(tea, write, action, kept):
    tea.put("raw", f"先读一句话。{QUESTION}？有人这样问。", "茶要慢慢喝。水要慢慢烧。")
    evaluation = write("test.tsv", "text\n清明前採的龍井茶應該用多少度的水來泡才好\n")
    guard = GuardRules(files=(str(evaluation),), action=action)
    assert tea.refresh(cleaning=CleaningRules(simplify=True), guard=guard).documents == kept
    reason = "in_evaluation_set" if action == "drop" else None
    rows = tea.ask("select guard_hits, dropped_reason from documents order by 1 desc")
    assert rows == [(len(QUESTION) - 12, reason), (0, None)]
    assert ("in_evaluation_set", 1) in tea.ask("select reason, count from funnel where stage = 'guard'")
