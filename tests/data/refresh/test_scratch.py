"""How DuckDB is interrupted while it works for a refresh."""

import os
import signal
import threading

from data.refresh.scratch import connect, interruptible
from tests.workers import PreloadedContext


class Ended(BaseException):
    pass


def end_queries(folder, results):
    """Interrupt long queries by signals; send True for all that holds."""

    def raise_ended(number, frame):
        raise Ended(number)

    def end(number):
        # Prefect takes a termination for a cancellation only while the handler is its own
        results.send(signal.getsignal(number) is raise_ended)
        os.kill(os.getpid(), number)

    query = "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"
    # DuckDB lets either of its threads do the work
    for number in 4 * [signal.SIGINT, signal.SIGTERM]:
        signal.signal(number, raise_ended)
        try:
            with connect(folder, 2) as db:
                threading.Timer(0.2, end, [number]).start()
                interruptible(db, lambda: db.execute(query))
        except Ended as ended:
            results.send(ended.args == (number,))


def test_a_signal_ends_a_query_in_whichever_thread_it_runs(tmp_path):
    context = PreloadedContext()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=end_queries, args=(tmp_path, sender))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert [receiver.recv() for _ in range(16)] == 16 * [True]
