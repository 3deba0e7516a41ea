"""Whether a damaged file ends a reader in a traceback: hypothesis changes real files of each kind, for hours.

Each example is read as a source of a refresh and as a file of the guard. Of each kind: examples, seconds of
CPU, the slowest example, findings (tracebacks, by their last line) and what was recorded as damage.
Run: python -m benchmarks.fuzz_readers --minutes 60
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.support.results import write_result
from tests.data.refresh.test_hostile import REAL_FILES, mutated_files, read_mutated

ROUND = 100  # examples of a kind before the next one's turn


@dataclass
class Fuzzed:
    """What was tried of a kind of file."""

    examples: int = 0
    cpu_seconds: float = 0.0
    slowest_seconds: float = 0.0
    findings: dict[str, int] = field(default_factory=dict)
    damage: dict[str, int] = field(default_factory=dict)


def _add(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def fuzz(name: str, folder: Path, fuzzed: Fuzzed) -> None:
    """Try one round of a kind; keep the file of each finding beside the others in the folder."""

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
        begin = time.process_time()
        try:
            damage = read_mutated(folder, name, content)
            for text in damage:
                _add(fuzzed.damage, re.sub("[0-9]+", "0", text)[:60])
        except Exception as error:
            finding = f"{type(error).__name__}: {' '.join(str(error).split())}"[:120]
            _add(fuzzed.findings, finding)
            (folder / f"finding-{len(fuzzed.findings)}-{name}").write_bytes(content)
        seconds = time.process_time() - begin
        fuzzed.examples += 1
        fuzzed.cpu_seconds += seconds
        if seconds > fuzzed.slowest_seconds:
            fuzzed.slowest_seconds = seconds
            (folder / f"slowest-{name}").write_bytes(content)

    one()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where files of findings stay; by default nowhere")
    arguments = parser.parse_args()
    kinds = {name: Fuzzed() for name in sorted(REAL_FILES)}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        while time.monotonic() - begin < 60 * arguments.minutes:
            for name, fuzzed in kinds.items():
                fuzz(name, folder, fuzzed)
            examples, seconds = (
                sum(getattr(one, part) for one in kinds.values()) for part in ("examples", "cpu_seconds")
            )
            found = sum(len(one.findings) for one in kinds.values())
            write_result(
                "fuzz_readers",
                f"{examples:,} examples, {seconds / 3600:.2f} hours of CPU, {found} findings",
                {
                    "wall_minutes": (time.monotonic() - begin) / 60,
                    "kinds": {name: asdict(one) for name, one in kinds.items()},
                },
            )


if __name__ == "__main__":
    main()
