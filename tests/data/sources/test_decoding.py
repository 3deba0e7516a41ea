import codecs
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.sources import read_documents
from data.sources.decoding import decoded_lines
from tests.data.sources.test_documents import FIRST, PACKED, SECOND, reasons, texts

SIMPLIFIED = f"{FIRST}\n{SECOND}"
TRADITIONAL = "這是一份文件，內容只有兩句話。今天天氣很好。"
# with characters of Hong Kong, which Big5 itself has not
CANTONESE = "佢哋喺茶餐廳度飲奶茶，啲多士好好食。今天天氣很好，我們一起去山上看看。"
UNICODE = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize(
    "encoding, text",
    [
        *((encoding, mark + SIMPLIFIED) for encoding in UNICODE for mark in ("", "\ufeff")),
        ("gb18030", "\n".join([FIRST, *"位尾妹喂卫味啊", "联通"])),  # bytes of the words are UTF-8 too
        *(("gb18030", SIMPLIFIED), ("big5", TRADITIONAL), ("big5hkscs", CANTONESE)),
        ("utf-8", f"BZh5{SIMPLIFIED}"),  # as bzip2 begins
    ],
)
def test_encodings_are_detected_with_their_mark_and_without(write, encoding, text):
    content, text = text.encode(encoding), text.removeprefix("\ufeff")
    (read,) = read_documents(write("corpus.txt", content))
    assert read.text == text and (read.encoding is None) == (encoding == "utf-8")
    assert texts(write("cut.txt", content[:-1])) == [text[:-1] + "\ufffd"]


@pytest.mark.parametrize("noise, most", [(b"\1", 5), (b"\xff", 20)], ids=["control", "broken"])
def test_a_file_with_much_noise_is_no_text(write, noise, most):
    for share, dropped in ((most - 1, {}), (most + 1, {"not_text": 1})):
        assert reasons(write("corpus.txt", b"t" * (100 - share) + noise * share)) == dropped


@pytest.mark.parametrize("compression", PACKED)
def test_an_encoding_is_detected_behind_a_long_beginning_in_ascii(write, compression):
    text = "\n".join(["<p>tea</p>" * 1000, *jsonl_rows(60)])
    path = write(f"corpus.txt{compression}", PACKED[compression](text.encode("utf-16-le")))
    assert texts(path) == [text.removesuffix("\n")]


def jsonl_rows(count):
    return [json.dumps({"text": f"{FIRST}第{n}行。"}, ensure_ascii=False) + "\n" for n in range(count)]


@pytest.mark.parametrize("share", [0, 1, 2, 10, 11], ids=["damaged", "halves", "thirds", "few", "marked"])
def test_lines_that_the_files_encoding_cannot_decode_are_decoded_by_their_own(write, share):
    rows = jsonl_rows(60)
    lines = [row.encode("utf-8" if share and n % (share + 1) else "gb18030") for n, row in enumerate(rows)]
    if not share:
        lines[30] = lines[30].replace("采".encode("gb18030"), b"\xff\xff", 1)
    path = write("corpus.jsonl", codecs.BOM_UTF8 * (share == 11) + b"".join(lines))
    found = texts(path)
    expected = [json.loads(row)["text"] for row in rows]
    assert sum(text == other for text, other in zip(found, expected, strict=True)) == 60 - (not share)
    # bytes that no encoding decodes can be counted
    assert sum(text.count("\ufffd") for text in found) == (0 if share else 2)
    path = write("corpus.jsonl", b"".join([lines[0], b"{\n", *lines[1:]]))
    assert texts(path) == found and reasons(path) == {"bad_json": 1}


@pytest.mark.parametrize("encoding, other", [("gb18030", "big5hkscs"), ("big5hkscs", "gb18030")])
def test_lines_of_big5_and_gb18030_in_one_file_are_decoded_by_their_own(encoding, other):
    own = [TRADITIONAL, "ひらがな", "αβγδ", "饕餮", "靺鞨族", "魑魅魍魎貔貅"]
    text = "\n".join([*own, ""])
    file = io.BufferedReader(io.BytesIO(text.encode(encoding) + TRADITIONAL.encode(other)))
    assert "".join(decoded_lines(file, encoding)) == text + TRADITIONAL


@given(edits=st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=1)), min_size=1, max_size=2))
def test_a_damaged_line_of_utf8_stays_utf8(edits):
    damaged = bytearray(FIRST.encode())
    for at, noise in edits:
        damaged[at % len(damaged) : at % len(damaged) + 1] = noise
    line = bytes(damaged).replace(b"\n", b"").replace(b"\r", b"")
    file = io.BufferedReader(io.BytesIO(line))
    assert list(decoded_lines(file, "utf-8")) == [line.decode("utf-8", "replace")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16"])
def test_lines_are_the_same_however_they_end_and_however_long_one_is(monkeypatch, encoding, end):
    lines = ["", FIRST, "", SECOND * 40, "一\u2028二\x85三", "", ""]
    for longest, block in [(1 << 22, 1 << 16), (16, 7), (15, 8), (64, 1)]:
        monkeypatch.setattr("data.sources.decoding.LONGEST_LINE", longest)
        monkeypatch.setattr("data.sources.decoding.BLOCK", block)
        file = io.BufferedReader(io.BytesIO(end.join(lines).encode(encoding)))
        pieces = list(decoded_lines(file, encoding))
        assert any(not piece.endswith("\n") for piece in pieces) == (longest < 100)
        assert "".join(pieces) == "\n".join(lines)
