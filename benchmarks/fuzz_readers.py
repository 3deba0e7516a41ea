"""Whether a damaged file ends a reader in a traceback: hypothesis changes real files of each kind, for hours.

Each example is read as a source of a refresh and as a file of the guard. Of each kind: examples, seconds of
CPU, tracebacks by their last line, and what was recorded as damage.
Run: python -m benchmarks.fuzz_readers --minutes 60
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter, defaultdict
from itertools import cycle
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.support.results import write_result
from tests.data.refresh.test_hostile import REAL_FILES, mutated_files, read_mutated

ROUND = 25  # examples of a kind before the next one's turn


def fuzz(name: str, folder: Path, done: Counter[str], findings: Counter[str], damage: Counter[str]) -> None:
    """Try one round of a kind; the file of each new finding stays in the folder."""

    @settings(
        max_examples=ROUND,
        deadline=None,
        derandomize=False,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(content=mutated_files(name))
    def one(content: bytes) -> None:
        done["examples"] += 1
        try:
            damage.update(re.sub("[0-9]+", "0", text)[:60] for text in read_mutated(folder, name, content))
        except Exception as error:
            finding = f"{type(error).__name__}: {' '.join(str(error).split())}"[:120]
            if finding not in findings:
                (folder / f"finding-{len(findings)}-{name}").write_bytes(content)
            findings[finding] += 1

    begin = time.process_time()
    one()
    done["cpu_milliseconds"] += int(1000 * (time.process_time() - begin))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where files of findings stay; by default nowhere")
    arguments = parser.parse_args()
    done, findings, damage = (defaultdict[str, Counter[str]](Counter) for _ in range(3))
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in cycle(sorted(REAL_FILES)):
            fuzz(name, folder, done[name], findings[name], damage[name])
            if time.monotonic() > end and len(done) == len(REAL_FILES):
                break
    total = sum(done.values(), Counter[str]())
    minutes, found = total["cpu_milliseconds"] / 60_000, sum(map(len, findings.values()))
    write_result(
        "fuzz_readers",
        f"{total['examples']:,} examples, {minutes:.1f} minutes of CPU, {found} findings",
        {"minutes": arguments.minutes, "done": done, "findings": findings, "damage": damage},
    )


if __name__ == "__main__":
    main()
