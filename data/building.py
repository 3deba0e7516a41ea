"""Second half of a refresh: the documents of one piece in, an instance shard and its documents file out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.assignment import Piece
from data.files import sha256
from data.instances import build_instances, tokenize_document
from data.masking import MaskRule
from data.segmentation import split_words
from data.shards import Shard, instance_table, length_histogram, table_digest, write_table
from data.tokenization import Tokenizer, load_tokenizer
from data.workspace import Workspace

DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("source_uri", pa.string()),
        ("text", pa.string()),  # sentences joined by line ends
        ("words", pa.list_(pa.list_(pa.string()))),  # of each sentence; joined they are the sentence
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildingRules:
    """What makes instances of documents."""

    tokenizer_path: str
    max_seq_length: int = 128
    sop: bool = True
    copies: int = 1
    seed: int = 0
    mask_rate: float = 0.15
    max_ngram: int = 3


@lru_cache(maxsize=2)
def _tokenizer(path: str) -> Tokenizer:
    return load_tokenizer(Path(path))


def build_shard(piece: Piece, rules: BuildingRules, workspace: Workspace, corpus: str) -> Shard | None:
    """Segment, tokenise, cut and mask the documents of a piece; None if they gave no instance.

    A pure function of the piece's documents and the rules. The shard counts the documents that gave an
    instance.
    """
    tokenizer = _tokenizer(rules.tokenizer_path)
    table = pq.read_table(piece.assigned_path)
    segmented = "words" in table.column_names
    instances, rows, usable, characters = [], [], 0, 0
    for row in _rows(table):
        words = row["words"] if segmented else [split_words(sentence) for sentence in row["sentences"]]
        document = tokenize_document(row["doc_id"], words, tokenizer, rules.max_seq_length - 3)
        made = [
            instance
            for copy in range(rules.copies)
            for instance in build_instances(
                document,
                tokenizer,
                max_seq_length=rules.max_seq_length,
                sop=rules.sop,
                copy=copy,
                seed=rules.seed,
            )
        ]
        usable += bool(made)
        characters += sum(len(word) for sentence in words for word in sentence) if made else 0
        instances += made
        text = "\n".join("".join(sentence) for sentence in words)
        rows.append({"doc_id": row["doc_id"], "source_uri": row["source_uri"], "text": text, "words": words})
    if not instances:
        return None
    rule = MaskRule(rate=rules.mask_rate, max_ngram=rules.max_ngram)
    shard_table = instance_table(
        instances, tokenizer, rule, max_seq_length=rules.max_seq_length, seed=rules.seed
    )
    shard_path = write_table(shard_table, workspace.shards(corpus), table_digest(shard_table))
    documents_table = pa.Table.from_pylist(rows, DOCUMENTS)
    documents_path = write_table(documents_table, workspace.documents(corpus), table_digest(documents_table))
    lengths = [len(instance.input_ids) for instance in instances]
    return Shard(
        path=workspace.relative(shard_path),
        sha256=sha256(shard_path),
        documents_path=workspace.relative(documents_path),
        documents_sha256=sha256(documents_path),
        instances=len(instances),
        tokens=sum(lengths),
        documents=usable,
        characters=characters,
        words=sum(len(sentence) for row in rows for sentence in row["words"]),
        sentences=sum(len(row["words"]) for row in rows),
        length_histogram=length_histogram(lengths),
    )


def _rows(table: pa.Table) -> Iterator[dict]:
    """Rows one batch at a time, so that the Python objects of only one are alive."""
    return chain.from_iterable(batch.to_pylist() for batch in table.to_batches(max_chunksize=256))
