"""Packed batches hold their rows: every token of them, in order, and nothing else."""

from itertools import takewhile

import numpy as np
import pytest
import torch

from albert.batching import InstanceStream, pack_batch
from albert.model import IGNORED
from data.instances import read_shard
from tests.corpora import make_corpus


@pytest.fixture(scope="module")
def stream(sample_shards):
    return {
        masking: InstanceStream(sample_shards, batch_tokens=600, masking=masking)
        for masking in ("dynamic", "static")
    }


def packed(stream, rows):
    instances = next(stream.plan()).instances
    return instances, pack_batch(instances, rows, stream.info.vocabulary, stream.info.rule, seed=0, epoch=3)


@pytest.mark.parametrize("masking", ["dynamic", "static"])
@pytest.mark.parametrize("rows", np.split(np.random.default_rng(0).permutation(40), [1, 8, 9, 30]), ids=len)
def test_a_batch_is_its_rows_one_after_the_other(stream, masking, rows):
    instances, batch = packed(stream[masking], rows)
    plain = batch.input_ids.clone()
    plain[batch.masked_index] = batch.masked_labels
    assert len(batch.masked_index) >= len(rows)
    assert batch.max_seqlen == instances.lengths[rows].max()
    for number, row in enumerate(rows):
        begin, end = batch.cu_seqlens[number : number + 2].tolist()
        tokens = instances.input_ids[instances.offsets[row] : instances.offsets[row + 1]]
        assert plain[begin:end].tolist() == tokens.tolist()
        assert batch.position_ids[begin:end].tolist() == list(range(len(tokens)))
        first_b = instances.segment_b_start[row] or len(tokens)
        types = [0] * first_b + [1] * (len(tokens) - first_b)
        assert batch.token_type_ids[begin:end].tolist() == types
    orders = instances.sop_labels[rows]
    assert (batch.sop_labels is None) == (orders == IGNORED).all()
    assert batch.sop_labels is None or batch.sop_labels.tolist() == orders.tolist()


@pytest.mark.parametrize("masking", ["dynamic", "static"])
def test_masks_do_not_depend_on_what_is_packed_together(stream, masking):
    _, together = packed(stream[masking], np.arange(12))
    _, alone = packed(stream[masking], np.arange(5, 12))
    begin = together.cu_seqlens[5]
    assert torch.equal(alone.input_ids, together.input_ids[begin:])
    assert torch.equal(alone.masked_index, (together.masked_index - begin)[together.masked_index >= begin])


def test_each_epoch_reads_everything_in_an_order_of_its_own(tmp_path, samples, vocabulary_file, monkeypatch):
    monkeypatch.setattr("data.instances.shards.ROW_GROUP", 16)
    shards = make_corpus(tmp_path, "tea", samples / "tea.jsonl", vocabulary_file, max_seq_length=64)
    ids, windows = {0: [], 1: []}, {0: [], 1: []}
    for planned in takewhile(lambda one: one.epoch < 2, InstanceStream(shards, batch_tokens=300).plan()):
        ids[planned.epoch] += planned.instances.instance_ids[planned.rows].tolist()
        windows[planned.epoch].append(frozenset(planned.instances.instance_ids.tolist()))
    everything = [one for shard in shards for one in read_shard(shard)["instance_id"].to_pylist()]
    assert len(everything) > 10 * 16 and sorted(ids[0]) == sorted(ids[1]) == sorted(everything)
    # row groups far apart are read together, others in each epoch
    in_file = [everything.index(one) for one in windows[0][0]]
    assert len(in_file) == 4 * 16 and max(in_file) - min(in_file) > 6 * 16
    assert not set(windows[0]) & set(windows[1])
