"""What a refresh with the default recipe makes of texts: documents by reason, sentences that begin wrongly,
instances without sentence order, and masks.

Run: python -m benchmarks.whole_refreshes --tokenizer VOCAB [NAME=SOURCE ...]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.support.corpora import SAMPLES
from benchmarks.support.results import command, markdown, write_result
from data.catalog import open_workspace
from data.refresh import RefreshSettings, refresh

_WRONG = "^[，、：；。！？）》」』”]"  # what no sentence begins with
_LINES = "select unnest(string_split(text, chr(10))) as line from document_texts where corpus = ?"


class Measured(NamedTuple):
    text: str
    read: int
    kept: int
    left_out: tuple[tuple[str, int], ...]  # by reason
    sentences: int
    wrong: int  # sentences that begin with a mark
    without_order: float  # share of the instances
    masked: float  # share of the tokens

    def cells(self) -> list[str]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out)
        counts = [f"{count:,}" for count in (self.sentences, self.wrong)]
        shares = [f"{share:.1%}" for share in (self.without_order, self.masked)]
        return [self.text, f"{self.read:,}", f"{self.kept:,}", reasons, *counts, *shares]


def measured(name: str, source: str, tokenizer: str, workspace: Path) -> Measured:
    settings = RefreshSettings(
        corpus=name, source=(source,), tokenizer=tokenizer, workspace=workspace, workers=1
    )
    made = refresh(settings)
    with open_workspace(workspace) as statistics:
        query = f"select count(*), count(*) filter (regexp_matches(line, ?)) from ({_LINES})"
        ((sentences, wrong),) = statistics.sql(query, [_WRONG, name]).fetchall()
    left_out = tuple(made.counts("documents"))
    read = made.documents + sum(count for _, count in left_out)
    without_order = (
        sum(count for _, count in made.counts("without_order")) / made.instances if made.sop else 1.0
    )
    masked = next(gate.value for gate in made.gates if gate.name == "share of tokens masked")
    return Measured(name, read, made.documents, left_out, sentences, wrong, without_order, masked)


def main(*texts: str, tokenizer: str = "tiny-zh") -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for text in texts or [f"tea={SAMPLES / 'tea.jsonl'}"]:
            name, _, source = text.partition("=")
            rows.append(measured(name, source, tokenizer, Path(folder)))
    titles = [name.replace("_", " ") for name in Measured._fields]
    table = markdown(titles, [row.cells() for row in rows])
    write_result("whole_refreshes", table, {"rows": [row._asdict() for row in rows]})


if __name__ == "__main__":
    command(main)
