import bz2
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from data.cleaning import CleaningRules, count_hits, make_guard
from data.errors import InputError, disk_trouble
from data.sources import Dropped, RawDocument, find_files, read_documents
from tests.data.helpers import parquet_of, tar_of, zip_of

FIRST, SECOND = "第一篇讲采茶。要趁早上采。", "第二篇讲炒茶。锅要烧热。"
BERT = "第一篇讲采茶。\n要趁早上采。\n\n\n第二篇讲炒茶。\n锅要烧热。\n"


def texts(path, **options):
    return [item.text for item in read_documents(path, **options) if isinstance(item, RawDocument)]


def reasons(path, **options):
    return Counter(item.reason for item in read_documents(path, **options) if isinstance(item, Dropped))


def places(path):
    return [item.source_uri for item in read_documents(path)]


ROWS = [{"text": FIRST}, {"text": SECOND}]
CONTENT = {
    "jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode(),
    "json": json.dumps(ROWS, ensure_ascii=False, indent=2).encode(),
    "csv": f"content,text\n1,{FIRST}\n2,{SECOND}\n".encode(),
    "tsv": f"\nid\t内容\n1\t{FIRST}\n2\t{SECOND}\n".encode(),
    "txt": BERT.encode(),
    "parquet": parquet_of(content=[FIRST, None, SECOND]),
}


def zstd(content):
    return pa.compress(content, codec="zstd", asbytes=True)


PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.parametrize("kind", CONTENT)
def test_every_format_gives_its_documents(write, kind, compression):
    for name in (f"corpus.v1.{kind}", *["wiki_00"] * (kind == "jsonl")):
        path = write(f"{name}{compression}", PACKED[compression](CONTENT[kind]))
        for place in (path, f"file://{path}"):  # a URL is read through fsspec
            assert [text.replace("\n", "") for text in texts(place)] == [FIRST, SECOND]


ARTICLES = f"""<doc id="12" url="https://zh.wikipedia.org/wiki?curid=12" title="采茶">
采茶

{FIRST}
</doc>

<doc id="13" url="https://zh.wikipedia.org/wiki?curid=13" title="&lt;br&gt;">
炒茶

{SECOND}
</doc>

"""


@pytest.mark.parametrize("name", ["wiki_00", "wiki_07.gz", "joined.txt"])
def test_articles_as_wikiextractor_writes_them_are_documents(write, name):
    content = ARTICLES.encode()
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    assert texts(path) == [f"采茶\n\n{FIRST}", f"炒茶\n\n{SECOND}"]
    assert places(path) == [f"{path}#line=2", f"{path}#line=8"]


def test_wikipedias_files_are_read_in_an_archive_too(write):
    members = {"wiki/AA/wiki_00": ARTICLES.encode(), "wiki/AB/wiki_17": CONTENT["jsonl"], "mywiki_01": b"{}"}
    for name, content in (("a.zip", zip_of(members)), ("a.tar", tar_of(members))):
        path = write(name, content)
        assert len(texts(path)) == 4 and reasons(path) == {"not_supported": 1}


# good files, a folder, a file of another kind, an archive, and names that lead out of their folder
MEMBERS = {
    "a.jsonl": CONTENT["jsonl"],
    "deep/": b"",
    "deep/b.txt.gz": gzip.compress(CONTENT["txt"]),
    "picture.png": b"\x89PNG",
    "a": b"tea",
    "inner.zip": zip_of({"a.txt": b"tea"}),
    **dict.fromkeys(("../out.txt", "/out.txt", "C:\\out.txt", "a\\..\\o.txt", "\\o.txt"), b"\xe5\x87\xba"),
    "deep/c..parquet": CONTENT["parquet"],
}
LEFT_OUT = {"not_supported": 3, "unsafe_name": 5, "text_not_string": 1}
ARCHIVES = {
    "zip": zip_of(MEMBERS),
    "tar": tar_of(MEMBERS),
    "tar.zst": b"\x50\x2a\x4d\x18\4\0\0\0size" + zstd(tar_of(MEMBERS)),  # as pzstd writes it
    **{f"{tar}{kind}": tar_of(MEMBERS, f"w:{kind}") for kind in ("gz", "bz2", "xz") for tar in ("tar.", "t")},
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives_give_the_documents_of_their_members(tmp_path, write, kind):
    path = write(f"corpus.{kind}", ARCHIVES[kind])
    for place in (path, f"file://{path}", write(f"CORPUS.{kind.upper()}", ARCHIVES[kind])):
        assert [text.replace("\n", "") for text in texts(place)] == [FIRST, SECOND] * 3
    assert reasons(path) == LEFT_OUT
    assert {f"{path}!a.jsonl#line=1", f"{path}!deep/b.txt.gz#line=1"} < set(places(path))
    assert not (tmp_path.parent / "out.txt").exists()


def test_documents_before_the_damage_of_an_archive_are_read(write):
    path = write("cut.tar", ARCHIVES["tar"][:1400])
    assert texts(path)[:2] == [FIRST, SECOND] and reasons(path)["unreadable_file"] == 1
    noise = random.Random(0).randbytes(200_000).hex().encode()  # more than is read at once
    files = {"a.jsonl": CONTENT["jsonl"], "b.txt.gz": gzip.compress(CONTENT["txt"]), "水.txt": noise}
    path = write("cut.tar", tar_of(files)[:20_000])
    assert len(texts(path)) == 5 and len(texts(path)[4]) > 10_000 and reasons(path) == {"unreadable_file": 2}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = write("cut.zip", zip_of(MEMBERS, method)[:-30])
        assert len(texts(path)) == 6 and reasons(path) == {**LEFT_OUT, "unreadable_file": 1}
        whole = zip_of(files, method)
        checksum, name, bad = struct.pack("<L", zlib.crc32(noise)), "水".encode(), b"\xe6\xff\xb4"
        behind = bytes(2**18 - 3) + whole  # the mark of its first member is not read at once
        for damaged in (behind[:-30], whole.replace(checksum, b"#sum"), whole.replace(name, bad)):
            path = write("cut.zip", damaged)
            assert len(texts(path)) == 5 and reasons(path) == {"unreadable_file": 1}
            assert texts(path)[4] == noise.decode()
        path = write("cut.zip", whole.replace(name, bad, 1))  # not in its directory
        assert len(texts(path)) == 4 and reasons(path) == {"unreadable_file": 1}
        path = write("cut.zip", whole[:-10_000])
        assert [text.replace("\n", "") for text in texts(path)[:4]] == [FIRST, SECOND] * 2
        assert len(texts(path)[4]) > 1000 and reasons(path) == {"unreadable_file": 2}
        assert f"{path}!水.txt#cut off" in places(path)


@pytest.mark.parametrize(("at", "value"), [(0, 1), (2, 97)], ids=["a password", "an unknown method"])
def test_a_zip_member_that_cannot_be_opened_leaves_the_others_to_be_read(at, value, write):
    members = {"shut.txt": CONTENT["txt"], "bad.parquet": b"PAR1", "a.jsonl": CONTENT["jsonl"]}
    content = bytearray(zip_of(members))
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the member's own, and the directory's
        content[content.index(header) + flags + at] = value
    for damaged, faults in ((content, 2), (content[:-30], 3)):
        path = write("a.zip", bytes(damaged))
        assert texts(path) == [FIRST, SECOND] and reasons(path) == {"unreadable_file": faults}


class Failing(io.FileIO):
    """A file of a disk, or of a server, that fails behind the first bytes."""

    error: Exception = OSError(errno.EIO, "Input/output error")

    def readinto(self, buffer):
        if self.tell() > 60:
            raise self.error
        return super().readinto(memoryview(buffer)[:50])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.zip", "a.tar", "a.parquet", "a.txt"])
def test_a_failing_disk_or_server_is_no_damage_of_the_content(name, write, monkeypatch):
    kind, _, packed = name.removeprefix("a.").partition(".")
    path = write(name, (gzip.compress if packed else bytes)((CONTENT | ARCHIVES)[kind]))
    monkeypatch.setattr("data.sources.archives.open_binary", lambda uri: io.BufferedReader(Failing(uri)))
    with pytest.raises(OSError, match="Input/output error") as failed:
        list(read_documents(path))
    assert failed.value.filename.startswith(str(path)) and disk_trouble(failed.value)
    monkeypatch.setattr(Failing, "error", InputError("s3://b/a cannot be reached"))
    with pytest.raises(InputError, match="cannot be reached"):
        list(read_documents(path))


def test_a_full_disk_for_temporary_files_is_no_damage_of_the_content(write, monkeypatch):
    fill = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    path = write("a.parquet.gz", gzip.compress(CONTENT["parquet"]))
    with monkeypatch.context() as patch:
        patch.setattr("data.sources.archives.copyfileobj", fill)
        assert len(texts(write("b.parquet", CONTENT["parquet"]))) == 2  # which needs no copy
        with pytest.raises(OSError, match="No space left"):
            list(read_documents(path))
    assert len(texts(path)) == 2


def test_a_cut_zip_file_is_read_on_behind_a_member_whose_header_has_no_size(tmp_path):
    path = tmp_path / "streamed.zip"  # as `zip corpus.zip -` writes its input
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("a.jsonl", "w", force_zip64=True) as member:
            member.write(CONTENT["jsonl"])
        archive.writestr("b.txt", CONTENT["txt"])
    cut = path.read_bytes()[:-30]
    for left_out in (cut, cut.replace(b"\xff" * 8, bytes(8), 1)):
        path.write_bytes(left_out)
        assert len(texts(path)) == 4 and reasons(path) == {"unreadable_file": 1}


def test_names_in_archives_that_are_not_utf_8_are_decoded_or_escaped_and_links_not_read(write):
    member, name = zipfile.ZipInfo("abcd.txt"), "茶经.txt"
    plain = zip_of({member: CONTENT["txt"]}).replace(b"abcd.txt", name.encode("gbk"))
    # Info-ZIP's field with the name in UTF-8, which Python reads from 3.12 on
    field = struct.pack("<BL", 1, zlib.crc32(name.encode("gbk"))) + name.encode()
    member.extra = struct.pack("<2H", 0x7075, len(field)) + field
    both = zip_of({member: CONTENT["txt"]}).replace(b"abcd.txt", name.encode("gbk"))
    for damage in (plain, plain[:-30], both):
        path = write("corpus.zip", damage)
        assert len(texts(path)) == 2
        assert places(path)[0] == f"{path}!茶经.txt#line=1"
    path = write("accents?.zip", zip_of({"éé.txt": CONTENT["txt"]}))  # which says that it is in UTF-8
    assert places(path)[0] == f"{path}!éé.txt#line=1"
    path = write("names.tar", tar_of({"\udcff.txt": CONTENT["txt"]}))
    assert places(path)[0] == f"{path}!\\udcff.txt#line=1"
    member.external_attr = stat.S_IFLNK << 16
    path = write("link.zip", zip_of({member: b"a.jsonl"}))
    assert list(read_documents(path)) == [Dropped(f"{path}!abcd.txt", "not_a_file")]
    link = tarfile.TarInfo("link.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "a.jsonl"
    path = write("link.tar", link.tobuf() + ARCHIVES["tar"])
    assert len(texts(path)) == 6 and reasons(path)["not_a_file"] == 1


WHOLE = ARCHIVES["tar.gz"]
ENDLESS = tarfile.TarInfo("tea.txt")
ENDLESS.size = 1 << 60


@pytest.mark.parametrize(
    "content, good, why",
    [
        (WHOLE[:-8] + bytes([WHOLE[-8] ^ 1]) + WHOLE[-7:], 6, "CRC check failed"),
        (WHOLE + gzip.compress(ARCHIVES["tar"]), 6, "goes on after"),
        (WHOLE[:10], 0, "ended before the end-of-stream marker"),
        (gzip.compress(bytes(10240))[:30], 0, "ended before the end-of-stream marker"),
        (ENDLESS.tobuf(tarfile.GNU_FORMAT) + bytes(1024), 0, "1152921504606846976 bytes"),
    ],
    ids=["wrong sum", "more behind its end", "cut in its header", "cut before a member", "a lying length"],
)
def test_what_is_wrong_with_an_archive_is_reported_behind_its_documents(write, content, good, why):
    path = write("corpus.tar.gz", content)
    assert len(texts(path)) == good and reasons(path)["unreadable_file"] == 1
    assert why in places(path)[-1]


def test_text_of_parquet_that_is_not_utf_8_costs_only_its_bytes_and_bytes_that_are_utf_8_are_text(write):
    broken = pa.array([FIRST.encode() + b"\xff", None, SECOND.encode()], pa.binary()).view(pa.string())
    assert texts(write("corpus.parquet", parquet_of(text=broken))) == [f"{FIRST}\ufffd", SECOND]
    path = write("spark.parquet", parquet_of(text=[FIRST.encode(), b"\x89PNG\xff", SECOND.encode(), None]))
    assert texts(path) == [FIRST, SECOND] and reasons(path) == {"text_not_string": 2}
    picture = write("guard.parquet", parquet_of(text=[b"\x89PNG\xff"]))
    with pytest.raises(InputError, match=r"guard\.parquet: no text"):
        make_guard((str(picture),), 13, CleaningRules())
    guard = make_guard((str(write("g.parquet", parquet_of(text=[FIRST.encode()]))),), 13, CleaningRules())
    assert count_hits(guard, [[FIRST], [SECOND]]).tolist() == [1, 0]


@pytest.mark.parametrize("text_format, count", [("auto", 2), ("bert", 2), ("document", 1)])
def test_a_named_layout_takes_the_place_of_the_one_that_is_found(write, text_format, count):
    prose = "第一段说采茶，有两句。第二句在这里。\n\n第二段说炒茶。\n"
    assert len(texts(write("one.txt", BERT), text_format=text_format)) == count
    assert len(texts(write("two.txt", prose), text_format=text_format)) == 1 + (text_format == "bert")
    assert len(texts(write("a.bert.txt", prose), text_format=text_format)) == count


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz"])
def test_of_a_damaged_file_what_is_whole_is_read(write, suffix):
    pack = PACKED[suffix]
    rows = [{"text": FIRST + hashlib.sha256(b"%d" % n).hexdigest()} for n in range(4000)]
    whole = pack("".join(json.dumps(row) + "\n" for row in rows).encode())
    path = write(f"cut.jsonl{suffix}", whole[: len(whole) // 2])
    assert 1000 < len(texts(path)) < 3000 and reasons(path) == {"bad_json": 1, "unreadable_file": 1}
    whole = pack("\n".join(row["text"] for row in rows).encode())
    joined = whole[:-20_000] + whole[:20_000]
    more = whole + b"more" * 99_999
    for damaged, least in ((whole[:-2000], 200_000), (joined, 90_000), (whole[:12], -1), (more, 200_000)):
        path = write(f"cut.txt{suffix}", damaged)
        assert len("".join(texts(path))) > least and reasons(path) == {"unreadable_file": 1}


@pytest.mark.parametrize(
    "name, content",
    [
        ("zeros.tar", bytes(10240)),
        ("empty.zip", zip_of({})),
        ("mark.txt", b"\xef\xbb\xbf"),
        ("nothing.txt.bz2", bz2.compress(b"", 1)),
        ("header.csv", b"text\n"),
        ("b.zip!rows.parquet", zip_of({"rows.parquet": parquet_of(text=pa.array([], pa.string()))})),
        ("a.tar!b.tsv", tar_of({"b.tsv": b"text\n"})),
    ],
)
def test_what_holds_nothing_has_a_row(write, name, content):
    path = write(name.split("!")[0], content)
    assert list(read_documents(path)) == [Dropped(str(path.with_name(name)), "empty_file")]


def test_lists_and_quotes_are_read_to_a_hundred_levels_and_deeper_ones_are_named(write):
    path = write("page.md", "".join(f"{'  ' * depth}- {FIRST}\n" for depth in range(40)))
    assert texts(path)[0].split("\n") == [FIRST] * 40
    assert texts(write("deep.md", ">" * 99 + FIRST)) == [FIRST]
    for deep in (">" * 100 + FIRST, "- " * 60 + FIRST):
        path.write_text(f"{SECOND}\n\n{deep}\n", encoding="utf-8")
        assert list(read_documents(path)) == [Dropped(f"{path}#nested over 100 levels", "unreadable_file")]


def test_a_huge_document_is_cut_into_several_at_the_same_places_whatever_is_held(write, monkeypatch):
    lines = [SECOND, "采茶！要早吗？" * 340_000, "完"]
    path = write("corpus.txt", "\n".join([*lines, ""]))
    at_once = list(read_documents(path))
    assert "".join(part.text for part in at_once).replace("\n", "") == "".join(lines)
    assert all(part.text[-1] in "！？" for part in at_once[:-1])
    assert len(texts(write("marks.txt", "茶" * 2_400_000))) == 3
    monkeypatch.setattr("data.sources.documents.MAX_HELD_CHARACTERS", 1_100_000)
    monkeypatch.setattr("data.sources.decoding.LONGEST_LINE", 100_000)
    assert list(read_documents(path)) == at_once
    assert places(path) == [f"{path}#part={n}" for n in (1, 2, 3)]
    monkeypatch.setattr("data.sources.documents.MAX_HELD_CHARACTERS", 20)
    path = write("lines.txt", f"{FIRST}\n{SECOND}\n" * 3)
    assert places(path) == [f"{path}{place}" for place in ("", "#line=3", "#line=5")]


@pytest.mark.parametrize(
    "source, message",
    [
        ("HERE/no", "does not exist"),
        ("HERE/empty", "holds no file"),
        ("no/*.txt", f"no/.* does not exist in {Path.cwd()}"),
        ("~/no/*.txt", "~/no/.* does not exist$"),
        ("hf:o/n", "hf:o/n does not exist in .*: the Hub's datasets are hf://datasets/OWNER/NAME$"),
        (" ", "an empty source"),
        ("HERE/a.docx", "not a supported input"),
    ],
)
def test_nothing_to_read_is_an_error(tmp_path, source, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.docx").write_bytes(b"")
    with pytest.raises(InputError, match=message):
        find_files(source.replace("HERE", str(tmp_path)))


def test_folders_and_globs_are_searched_in_order(tmp_path, write, monkeypatch):
    for folder in ("deep", ".hidden"):
        (tmp_path / folder).mkdir()
    for name in ("b.txt", "a.jsonl", "名字 有空格 (1).txt", "deep/c.csv", ".hidden/d.txt", "deep/.e.txt"):
        write(name, "text\n")
    names = [str(Path(p).relative_to(tmp_path)) for p in find_files(str(tmp_path))]
    assert names == sorted(names) and len(names) == 4
    assert [Path(p).name for p in find_files(str(tmp_path / "**/[ac].*"))] == ["a.jsonl", "c.csv"]
    for pattern in ("*", "**"):  # as a shell's expansion of it
        assert find_files(str(tmp_path / pattern)) == find_files(str(tmp_path))
    remote = [f"file://{tmp_path / name}" for name in names]
    assert find_files(f"file://{tmp_path}") == remote
    assert find_files(f"file://{tmp_path}/*") == [uri for uri in remote if "deep" not in uri]
    for pattern, name in (("?.txt", "b.txt"), (".hidden", ".hidden/d.txt")):
        assert find_files(f"file://{tmp_path}/{pattern}") == [f"file://{tmp_path}/{name}"]
    scandir = os.scandir

    def refuse(folder):
        if str(folder).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert places(find_files(str(tmp_path))[2]) == [str(tmp_path / "deep")]
