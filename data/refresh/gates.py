"""Gates between building a version and committing it: a version that fails one is not committed.

Row counts come from the footer of every new shard, values from the first instances of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import InputError
from data.instances import MaskVocabulary, Shard, ShardInfo, read_info, read_shard
from data.tokenization import load_tokenizer

if TYPE_CHECKING:
    from data.refresh.assign import Division
    from data.refresh.plan import Plan

AUDITED_SHARDS = 8  # evenly spaced among the new ones
# 80% [MASK], 10% the same, 10% random (Devlin et al. 2019, 3.1)
MASK_SHARE = 0.8
# whole words and max_predictions round below the rate, at least one token to an instance above it
LEAST_RATE, MOST_RATE = 0.5, 1.25
# standard deviations of a share: n-grams are replaced together, so tokens are not independent
DEVIATIONS = 12
FEW_TOKENS = 5000  # with fewer, the share of masks is not checked: short instances round it far up


@dataclass(frozen=True, slots=True)
class Gate:
    """A measured value and the bounds it must lie in."""

    name: str
    value: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        return self.low <= self.value <= self.high

    def describe(self) -> str:
        return f"{self.name} is {self.value:.4g}, not from {self.low:.4g} to {self.high:.4g}"


@dataclass
class _Counts:
    """Sums over the audited instances."""

    tokens: int = 0  # without [CLS] and [SEP]
    unknown: int = 0
    masked: int = 0
    mask_tokens: int = 0
    wrong_labels: int = 0
    masked_special: int = 0
    nulls: int = 0
    false_order: int = 0  # instances with a sentence-order label although the corpus has none


def check_quality(plan: Plan, division: Division, built: Sequence[Shard | None]) -> tuple[Gate, ...]:
    """Measure every gate. Raises InputError naming those that failed."""
    new = [shard for shard in built if shard]
    gates = [*_row_counts(plan, new), *_losses(plan, division, new)]
    if new:
        gates += _audit(plan, new, division.sop)
    failed = [gate for gate in gates if not gate.passed]
    if failed:
        left = f"version {plan.current.version} stays" if plan.current else "it has no version yet"
        raise InputError(
            f"{plan.settings.corpus} was not committed, {left}: "
            f"{'; '.join(gate.describe() for gate in failed)}. Look at the sources; if all is as it should "
            "be, widen the gates of the recipe"
        )
    return tuple(gates)


def _row_counts(plan: Plan, new: Sequence[Shard]) -> list[Gate]:
    missing = 0
    for shard in new:
        for path, rows in ((shard.path, shard.instances), (shard.documents_path, shard.documents)):
            missing += abs(pq.read_metadata(plan.workspace.root / path).num_rows - rows)
    return [Gate("rows that a shard lacks or has too many", missing, 0, 0)]


def _losses(plan: Plan, division: Division, new: Sequence[Shard]) -> list[Gate]:
    if plan.current is None or not plan.current.documents:
        return []
    after = sum(shard.documents for shard in (*division.kept, *new))
    lost = 1 - after / plan.current.documents
    bound = plan.settings.gates.max_lost_documents
    return [Gate("share of documents lost (max_lost_documents)", max(0.0, lost), 0, bound)]


def _audit(plan: Plan, new: Sequence[Shard], sop: bool) -> list[Gate]:
    """Gates on values: nulls, [UNK], labels and masks."""
    step = max(1, len(new) // AUDITED_SHARDS)
    paths = [plan.workspace.root / shard.path for shard in new[::step][:AUDITED_SHARDS]]
    info = read_info(paths[0])
    unknown_id = load_tokenizer(plan.tokenizer_path).unknown_id
    counts = _Counts()
    for path in paths:
        _count(path, info.vocabulary, unknown_id, sop, counts)
    bound = plan.settings.gates.max_unknown_share
    return [
        Gate("nulls where none may be", counts.nulls, 0, 0),
        Gate("labels of sentence order where there is none", counts.false_order, 0, 0),
        Gate("labels that are not the token at their place", counts.wrong_labels, 0, 0),
        Gate("masked special tokens", counts.masked_special, 0, 0),
        Gate("share of [UNK] (max_unknown_share)", counts.unknown / max(counts.tokens, 1), 0, bound),
        *_mask_shares(counts, info),
    ]


def _mask_shares(counts: _Counts, info: ShardInfo) -> list[Gate]:
    gates = []
    if counts.tokens >= FEW_TOKENS:
        low, high = LEAST_RATE * info.rule.rate, MOST_RATE * info.rule.rate
        gates.append(Gate("share of tokens masked", counts.masked / counts.tokens, low, high))
    if counts.masked and info.vocabulary.similar is None:
        off = DEVIATIONS * (MASK_SHARE * (1 - MASK_SHARE) / counts.masked) ** 0.5
        share = counts.mask_tokens / counts.masked
        gates.append(Gate("share of [MASK] among masks", share, MASK_SHARE - off, min(1.0, MASK_SHARE + off)))
    return gates


def _count(path: Path, vocabulary: MaskVocabulary, unknown_id: int, sop: bool, counts: _Counts) -> None:
    """Add up the first row group of a shard."""
    table = read_shard(path, 0).combine_chunks()
    counts.nulls += sum(table[name].null_count for name in table.column_names if name != "sop_label")
    if not sop:
        counts.false_order += len(table) - table["sop_label"].null_count
    ids, starts = _lists(table, "input_ids")
    places, masked = _lists(table, "masked_positions")
    labels, replacements = _lists(table, "masked_labels")[0], _lists(table, "masked_input_ids")[0]
    at = np.repeat(starts[:-1], np.diff(masked)) + places
    special = np.isin(ids, vocabulary.special_ids)
    counts.tokens += int(np.sum(~special | (ids == unknown_id)))
    counts.unknown += int(np.sum(ids == unknown_id))
    counts.masked += len(at)
    counts.mask_tokens += int(np.sum(replacements == vocabulary.mask_id))
    counts.wrong_labels += int(np.sum(ids[at] != labels))
    counts.masked_special += int(np.sum(special[at]))


def _lists(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and offsets of a column of lists."""
    column = table[name].combine_chunks()
    return column.values.to_numpy(), column.offsets.to_numpy()
