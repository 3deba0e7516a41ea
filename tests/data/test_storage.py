import bz2
import socket
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import psutil
import pytest

from data.errors import InputError, masked
from data.refresh import describe_changes, preview
from data.sources import Dropped, find_files, read_documents
from data.storage import check_hosts, reaching, size_and_digest
from tests.corpora import NEW
from tests.data.helpers import parquet_of, zip_of

USER_INFO, QUERY = "tea:geheim", "token=verraten/1&page=1"
TABLES = "select view_name from duckdb_views() where not internal"


class Handler(SimpleHTTPRequestHandler):
    """A folder's files, to which /here/ leads too; other paths with a slash lead to another host."""

    breaks_off = False
    hosts = {
        "here": "",
        "v4": "http://169.254.1.1",
        "v6": "http://[fe80::1]",
        "mapped": "http://[::ffff:a9fe:101]",
        "loopback": "http://127.0.0.1:9",
        "name": "http://localhost:9",
        "any": "http://0.0.0.0:9",
    }

    def copyfile(self, source, target):
        target.write(source.read(4000 if self.breaks_off else 5))
        if self.breaks_off:
            self.close_connection = True
        else:
            time.sleep(0.02)  # the first bytes arrive alone
            super().copyfile(source, target)

    def send_head(self):
        _, place, *rest = self.path.partition("?")[0].split("/")
        if not rest:
            return super().send_head()
        self.send_response(302)
        name = "uri" if place == "any" else "location"
        self.send_header(name, "/".join([self.hosts[place], *rest]))
        self.end_headers()


@pytest.fixture
def server(samples):
    pytest.importorskip("aiohttp")
    handler = partial(Handler, directory=samples)
    with ThreadingHTTPServer(("0.0.0.0", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://{USER_INFO}@127.0.0.1:{http.server_port}"
        http.shutdown()


def test_credentials_reach_no_record_or_message_and_a_cut_transfer_ends_the_refresh(server, tea, monkeypatch):
    tea = tea.changed(source=(f"{server}/tea.jsonl?{QUERY}",), reading={"allow_loopback": True})
    refused = pytest.raises(InputError, match="tea.jsonl.*cannot be reached")
    with monkeypatch.context() as patch, refused as cut:
        patch.setattr(Handler, "breaks_off", True)
        tea.refresh()
    seen = [str(cut.value), describe_changes(preview(tea.plan()))]
    assert tea.refresh().documents > 100
    assert not tea.refresh().is_new
    others = tea.settings.source[0].replace(USER_INFO, "milch:andere")
    # a file is named once in the catalog
    assert len(tea.plan(source=(*tea.settings.source, others)).files) == 1
    assert size_and_digest(others) == size_and_digest(*tea.settings.source)
    seen += [str(tea.ask(f"from {table}")) for (table,) in tea.ask(TABLES)]
    places = tea.ask("select uri from sources union all select distinct source_uri from documents")
    assert all("://***@127.0.0.1" in place and "/tea.jsonl?***" in place for (place,) in places)
    for name in ("nothing.jsonl", f"nothing.jsonl?{QUERY}"):
        with pytest.raises(InputError, match="does not exist") as missing:
            find_files(f"{server}/{name}", allow_loopback=True)
        seen.append(str(missing.value))
    assert len(seen) > 10 and not [text for text in seen if "geheim" in text or "verraten" in text]


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://2852039166/a.txt", "is link-local"),
        ("https://[fe80::1]/a.txt", "is link-local"),
        ("zip://a.txt::http://[::ffff:169.254.1.1]/a.zip", "is link-local"),
        ("sftp://me@localhost:8000/a.txt", "is this machine.* --reading.allow-loopback"),
        ("HTTP://0.0.\t0.0/a.txt", "is this machine"),
        ("http://a..b/a.txt", "a..b/a.txt cannot be reached"),
        ("http://[::no]/a.txt", r"::no\]/a.txt cannot be reached"),
        ("nonsense://bucket/a.txt", r"^nonsense://bucket/a.txt: Prot.* pip install 'jixu\[remote\]'"),
        ("dropbox://bucket/a.txt", r"^dropbox://bucket/a.txt: Drop.* pip install 'jixu\[remote\]'"),
    ],
)
def test_addresses_that_cannot_or_may_not_be_reached_are_refused(url, fault):
    for read in (find_files, read_documents) if "bucket" in url else (find_files,):
        with pytest.raises(InputError, match=fault):
            list(read(url))


def test_a_remote_file_is_fetched_once_and_by_a_server_without_ranges_too(server, monkeypatch, tmp_path):
    # as FSSPEC_HTTPS gives them
    monkeypatch.setitem(fsspec.config.conf, "https", {"client_kwargs": {"headers": {"Key": "geheim"}}})
    fetched, answer = [], Handler.do_GET

    def do_get(handler):
        fetched.append((handler.path, handler.headers["key"]))
        answer(handler)

    monkeypatch.setattr(Handler, "do_GET", do_get)
    assert len(list(read_documents(f"{server}/tea.jsonl"))) > 100
    assert size_and_digest(f"{server}/tea.jsonl")[0] > 100_000  # by the time of its last change
    assert fetched == [("/tea.jsonl", "geheim")]
    monkeypatch.setattr(Handler, "translate_path", lambda self, path: f"{tmp_path}{path}")
    for name, content in (
        ("a.zip", zip_of({"a.txt": NEW.encode()})),
        ("a.parquet", parquet_of(text=[NEW])),
        ("a.txt.bz2", bz2.compress(NEW.encode())),
        ("a.html", f"<p>{NEW}</p><a href='a.zip'></a>".encode()),  # no folder of what it leads to
    ):
        (tmp_path / name).write_bytes(content)
        assert find_files(f"{server}/{name}", allow_loopback=True) == [f"{server}/{name}"]
        with monkeypatch.context() as patch:
            for _ in range(2):  # the second time as of a server that does not know how long its answer is
                assert [item.text for item in read_documents(f"{server}/{name}")] == [NEW]
                assert size_and_digest(f"{server}/{name}")[0] == len(content)
                patch.setattr(Handler, "send_header", lambda self, name, value: None)
    (tmp_path / "none.tar").write_bytes(bytes(10240))
    place = masked(f"{server}/none.tar")
    assert list(read_documents(f"{server}/none.tar")) == [Dropped(place, "empty_file")]
    for error, why in ((TimeoutError(), "TimeoutError"), (OSError(f"s3://{'me' * 99}@b\nc"), "s3:.*@b c")):
        with pytest.raises(InputError, match=f"a cannot be reached: {why}$"), reaching("s3://b/a"):
            raise error


@pytest.mark.parametrize("chain", ["", "zip://tea.txt::"])
def test_a_redirect_to_what_only_this_machine_can_reach_is_not_followed(server, chain, monkeypatch):
    assert len(list(read_documents(f"{server}/here/tea.jsonl"))) > 100
    for host in ("v4", "v6", "mapped"):
        # the second without a check of the URL: a server may redirect later than that
        for read in (partial(find_files, allow_loopback=True), read_documents):
            with pytest.raises(InputError, match="is link-local, which is not read"):
                list(read(f"{chain}{server}/here/{host}/tea.txt"))
    check_hosts("http://192.0.2.1/a.txt", False)
    resolve = socket.getaddrinfo
    # a name may be of several machines
    monkeypatch.setattr(socket, "getaddrinfo", lambda *host, **_: resolve("192.0.2.1", 0) + resolve(*host))
    # as from another machine, where this one has an address for others
    for address in (one for interface in psutil.net_if_addrs().values() for one in interface):
        if address.family != socket.AF_INET or address.address.startswith("127."):
            continue
        elsewhere = server.replace("127.0.0.1", address.address)
        assert len(list(read_documents(f"{elsewhere}/here/tea.jsonl"))) > 100
        for host in ("loopback", "name", "any"):
            with pytest.raises(InputError, match="is this machine, to which no redirect is followed"):
                list(read_documents(f"{chain}{elsewhere}/{host}/tea.txt"))
