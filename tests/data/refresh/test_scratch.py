"""How DuckDB is interrupted while it works for a refresh, and what it does on a machine of many cores."""

import os
import signal
import threading
import traceback
import weakref
from functools import partial
from multiprocessing import Pipe

import duckdb
import pytest

from data.cleaning import BANDS, find_candidates
from data.errors import InputError
from data.refresh.scratch import connect, interruptible
from tests.workers import begin

LONG = "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"


class Ended(BaseException):
    pass


class Struck(threading.Thread):
    """A thread that begins when a signal comes."""

    def start(self):
        super().start()
        raise Ended


def end_queries(folder, results):
    """Interrupt long queries by signals; send True for all that holds."""

    def raise_ended(number, frame):
        raise Ended(number)

    def end(number):
        # Prefect takes a termination for a cancellation only while the handler is its own
        results.send(signal.getsignal(number) is raise_ended)
        os.kill(os.getpid(), number)

    # DuckDB lets either of its threads do the work
    for number in 4 * [signal.SIGINT, signal.SIGTERM]:
        signal.signal(number, raise_ended)
        try:
            with connect(folder, 2) as db:
                threading.Timer(0.1, end, [number]).start()
                interruptible(db, lambda: db.execute(LONG))
        except Ended as ended:
            results.send(ended.args == (number,))


def test_a_signal_ends_a_query_in_whichever_thread_it_runs(tmp_path):
    receiver, sender = Pipe(duplex=False)
    process = begin(end_queries, tmp_path, sender)
    process.join(60)
    assert process.exitcode == 0
    assert [receiver.recv() for _ in range(16)] == 16 * [True]


def test_an_error_keeps_nothing_of_the_work_nor_a_signal_while_its_thread_begins(tmp_path, monkeypatch):
    def fail(held):
        raise InputError("no document can be used")

    held = Struck()
    kept = weakref.ref(held)
    with pytest.raises(InputError) as failed:
        interruptible(duckdb.connect(), partial(fail, held))
    del held
    traceback.clear_frames(failed.tb)
    assert kept() is None
    monkeypatch.setattr("data.refresh.scratch.Thread", Struck)
    for _ in range(5):
        with pytest.raises(Ended), connect(tmp_path, 1) as db:
            interruptible(db, lambda: db.execute(LONG))


def test_near_duplicates_of_100_000_documents_are_sought_on_64_cores(tmp_path):
    bands = f"list_transform(range({BANDS}), lambda band: hash(range // 2, band)::uhugeint % 4294967296)"
    with connect(tmp_path, 64) as db:
        db.execute(
            f"""
            create table sketched as
            select range as rank, false as is_known, {bands}::uinteger[{BANDS}] as bands from range(100000)
            """
        )
        find_candidates(db)
        ((found,),) = db.execute("select count(*) from candidates").fetchall()
    assert found >= 50_000
