"""The probe tells a checkpoint that knows its language from one that was put together wrongly."""

import math
from dataclasses import replace

import pytest
import torch

from albert.batching import InstanceStream
from albert.checkpoints import load_model, save_pretrained
from albert.evaluation import PROBE_RULE, Probe, probe_model, probe_sentences
from albert.model import AlbertConfig, PretrainingModel, pack
from albert.optim import adamw
from data.errors import InputError
from tests.conftest import change_json, small_model

V, LENGTH, FIRST, MASK = 35, 12, 5, 4


def counting_batch(seed, sequences=64):
    """Sequences that count up, round and round, from a random start: neighbours alone tell a mask."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, V - FIRST, (sequences, 1), generator=generator)
    batch = pack((FIRST + (start + torch.arange(LENGTH)) % (V - FIRST)).tolist())
    at = (torch.rand(batch.tokens, generator=generator) < 0.15).nonzero().flatten()
    labels, ids = batch.input_ids[at].clone(), batch.input_ids.clone()
    ids[at] = MASK
    return replace(batch, input_ids=ids, masked_index=at, masked_labels=labels)


@pytest.fixture(scope="module")
def counting():
    torch.manual_seed(0)
    shape = {"num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": LENGTH}
    config = AlbertConfig(vocab_size=V, embedding_size=32, hidden_size=64, intermediate_size=128, **shape)
    model = PretrainingModel(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    optimizer = adamw(model, 1e-3)
    for step in range(400):
        optimizer.zero_grad()
        model(counting_batch(step)).loss.backward()
        optimizer.step()
    return model


def probed(model, tmp_path, wrong=None):
    """The probe of the model as it comes back from a file whose config says something else."""
    save_pretrained(model, None, tmp_path)
    change_json(tmp_path / "config.json", **(wrong or {}))
    return probe_model(load_model(tmp_path)[0], [counting_batch(10_000)])


def test_a_checkpoint_that_knows_its_language_passes_and_a_wrong_config_or_ids_show(counting, tmp_path):
    known = probed(counting, tmp_path)
    assert known.mlm_loss < 0.2 * known.uniform_loss and known.mlm_accuracy > 0.8
    assert known.warning() is None
    # the same text in a vocabulary of other ids
    batch, other = counting_batch(10_000), torch.arange(V)
    other[FIRST:] = FIRST + torch.randperm(V - FIRST, generator=torch.Generator().manual_seed(0))
    shuffled = replace(batch, input_ids=other[batch.input_ids], masked_labels=other[batch.masked_labels])
    found = probe_model(counting, [shuffled])
    assert found.mlm_loss > found.uniform_loss and "or vocabulary is not" in found.warning()
    with pytest.raises(InputError, match="far worse than chance"):
        found.check()
    # a wrong config loads without an error
    right = known.mlm_loss
    for name, value in {"num_attention_heads": 16, "hidden_act": "relu", "num_hidden_layers": 6}.items():
        assert probed(counting, tmp_path / name, {name: value}).mlm_loss > 1.5 * right, name
    model, _ = load_model(tmp_path)
    for block in (*model.encoder.attentions, *model.encoder.feed_forwards):
        block.norm_first = True  # as if weights of the other kind had been taken for these
    assert probe_model(model, [counting_batch(10_000)]).mlm_loss > 1.5 * right


def test_masks_are_of_the_rules_share_and_always_the_same(sample_shards):
    stream = InstanceStream(sample_shards, batch_tokens=2048, held_out_share=0.1)
    first, second = (list(stream.probe_batches(PROBE_RULE, 40)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.masked_index, b.masked_index) and torch.equal(a.input_ids, b.input_ids)
    tokens = sum(batch.tokens for batch in first)
    assert 0.08 < sum(len(batch.masked_index) for batch in first) / tokens < 0.16
    many = stream.probe_batches(replace(PROBE_RULE, rate=0.4), 40)
    assert 0.3 < sum(len(batch.masked_index) for batch in many) / tokens < 0.41
    assert sum(batch.sequences for batch in first) <= 40


@pytest.mark.parametrize(
    "words, said, masked, right",
    [
        (["茶𫝀𫝀香"], "[UNK]", 1, 0),  # of an unknown character nothing can be predicted
        (["abc", "15"], "a", 5, 1),  # ##1 goes on with the word
    ],
)
def test_words_of_a_text_are_those_of_a_corpus(tokenizer, words, said, masked, right):
    model = small_model(tokenizer)
    with torch.no_grad():
        model.mlm.bias[tokenizer.vocabulary.index(said)] = 1e4
    found = probe_sentences(model, tokenizer, [words])
    assert (found.masked_tokens, round(found.mlm_accuracy * masked)) == (masked, right)


def test_the_loss_is_compared_with_ln_v_and_nothing_to_probe_with_is_refused(counting):
    assert Probe(9.0, 0.0, math.log(21128), 100, 1).warning()
    assert not Probe(9.0, 0.0, math.log(21128), 2, 1).warning()  # of two tokens nothing follows
    assert not Probe(3.0, 0.4, math.log(21128), 10, 1).warning()
    record = Probe(3.0, 0.4, 9.9, 10, 1).to_record()
    assert Probe.from_record({"step": 0, **record}) == Probe(3.0, 0.4, 9.9, 10, 1)
    with pytest.raises(InputError, match="no held-out document to probe"):
        probe_model(counting, [])
