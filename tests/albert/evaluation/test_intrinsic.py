"""What a checkpoint knows and costs, on a model that was made to know something."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from albert.batching import InstanceStream, is_held_out
from albert.checkpoints import PADDING_OF_TABLES, save_pretrained
from albert.evaluation import Cloze, HeldOut, Intrinsic, measure_intrinsic, unpack
from albert.evaluation.held_out import flip_segments
from albert.evaluation.intrinsic import HELD_OUT_TOKENS
from albert.finetuning import measure_cost
from albert.model import IGNORED, measure_sizes
from data.tokenization import WordPieceTokenizer
from tests.albert.finetuning.examples import prepared, settings_of, table
from tests.conftest import change_tensors, sample_texts, save_small_model, small_model
from tests.corpora import make_corpus

SHARE = 0.3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocabulary_file):
    """Shards of the sample, a document a file so that they have an order."""
    root = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(sample_texts()[:12]):
        (root / f"{number}.txt").write_text(text, encoding="utf-8")
    return HeldOut(make_corpus(root / "w", "tea", root / "*.txt", vocabulary_file), SHARE)


def test_a_cloze_word_is_asked_where_it_fits_and_right_when_all_of_its_tokens_are(tokenizer, tmp_path):
    model = small_model(tokenizer, max_position_embeddings=16)
    with torch.no_grad():  # says 茶 whatever it is asked
        model.mlm.bias[tokenizer.vocabulary.index("茶")] = 1e4
    save_pretrained(model, tokenizer, tmp_path / "m")
    # 14 tokens and [CLS] and [SEP]; what stands behind a word is cut off
    fits, late = Cloze("采" * 12 + "茶香" + "采" * 9, "茶香"), Cloze("采" * 13 + "茶香", "茶香")
    asked = [Cloze("采茶要早", "茶"), fits, late, Cloze("没有它", "茶")]
    found = measure_intrinsic(tmp_path / "m", domain=None, general=None, cloze=asked)
    assert (found.cloze_words, found.cloze_accuracy) == (2, 0.5)  # a word that is not there is not asked
    assert found.domain_mlm_loss is None and found.sop_accuracy is None


def test_cost_is_that_of_the_model_with_its_head(tokenizer, tmp_path):
    folder = save_small_model(tmp_path / "m", tokenizer, hidden_dropout_prob=0.5)
    path = table(tmp_path / "t.tsv", "text label", [("茶" * n, n % 2) for n in range(1, 9)])
    candidate = prepared(settings_of("t", path, folder))
    cost, config = measure_cost(candidate), candidate.config
    sizes = measure_sizes(config)
    assert cost.parameters == sizes.embeddings + sizes.encoder + 2 * config.hidden_size + 2
    assert cost.checkpoint_bytes == (candidate.path / "model.safetensors").stat().st_size
    assert [one.batch_size for one in cost.latency] == [1, 32]
    assert all(0 < one.p50_ms <= one.p95_ms and one.repeats == 20 for one in cost.latency)
    H, F, E = config.hidden_size, config.intermediate_size, config.embedding_size
    T = 6.5  # mean of 1..8 characters with [CLS] and [SEP]
    assert cost.sequence_length == T
    assert cost.flops == T * (2 * (4 * H * H + 2 * H * F) + 4 * T * H + 2 * E * H)


def test_figures_are_of_every_masked_token_of_the_held_out_documents_alone(corpus, tokenizer, tmp_path):
    model = small_model(tokenizer, hidden_dropout_prob=0.5)
    save_pretrained(model, tokenizer, tmp_path / "m")
    losses, right, orders = [], [], []
    stream = InstanceStream(corpus.shards, batch_tokens=700, held_out_share=SHARE)
    batches = list(stream.held_out_batches(HELD_OUT_TOKENS))
    model.eval()
    for batch in batches:
        with torch.no_grad():
            hidden = model.encoder(batch)
            scores = model.mlm_logits(hidden[batch.masked_index])
            turned = flip_segments(batch)
            for one, labels in ((batch, batch.sop_labels), (turned, 1 - batch.sop_labels)):
                answers = model.sop_logits(model.encoder(one, one.cu_seqlens[:-1])).argmax(-1)
                orders.append((answers == labels)[batch.sop_labels != IGNORED])
        losses.append(F.cross_entropy(scores, batch.masked_labels, reduction="none"))
        right.append(scores.argmax(-1) == batch.masked_labels)
    held_out = is_held_out(np.concatenate([pq.read_table(path)["side"] for path in corpus.shards]), SHARE)
    assert 0 < sum(held_out) < len(held_out)
    assert sum(batch.sequences for batch in batches) == sum(held_out)
    found = measure_intrinsic(tmp_path / "m", domain=corpus, general=None)
    assert found == measure_intrinsic(tmp_path / "m", domain=corpus, general=None)
    assert found.cloze_accuracy is None and found.cloze_words == 0
    assert found.domain_mlm_loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert found.domain_mlm_accuracy == pytest.approx(torch.cat(right).float().mean().item())
    assert found.sop_accuracy == pytest.approx(torch.cat(orders).float().mean().item())
    assert found.general_mlm_loss is None
    assert measure_intrinsic(tmp_path / "m", domain=None, general=corpus).sop_accuracy == found.sop_accuracy
    other = measure_intrinsic(tmp_path / "m", domain=replace(corpus, share=0.9), general=corpus)
    assert other.domain_mlm_loss != found.domain_mlm_loss == other.general_mlm_loss
    # not the order of other documents beside that of those which other checkpoints have not read
    read = measure_intrinsic(tmp_path / "m", domain=replace(corpus, is_read=True), general=corpus)
    assert read == replace(other, domain_mlm_loss=None, domain_mlm_accuracy=None, sop_accuracy=None)
    predicted, masked, _ = unpack(other.general_outcomes)[0].sum(0)
    assert (predicted, masked) == (torch.cat(right).sum(), len(torch.cat(right)))


def test_a_corpus_that_a_model_cannot_read_is_not_asked_about(corpus, tokenizer, tmp_path):
    known = tokenizer.vocabulary
    larger = WordPieceTokenizer([*known, *(f"[unused{n}]" for n in range(500, 500 + PADDING_OF_TABLES))])
    smaller = WordPieceTokenizer(known[:-1])
    for words, name in ((larger, "larger"), (smaller, "smaller")):
        save_pretrained(small_model(words), words, tmp_path / name)
    short = save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=64)
    for folder in (tmp_path / "larger", tmp_path / "smaller", short):
        found = measure_intrinsic(folder, domain=corpus, general=corpus)
        assert found.domain_mlm_loss is None and found.general_mlm_accuracy is None
    # a table may be a little larger than its vocabulary, to be even
    padded = small_model(tokenizer, vocab_size=tokenizer.vocab_size + PADDING_OF_TABLES - 1)
    save_pretrained(padded, tokenizer, tmp_path / "padded")
    assert measure_intrinsic(tmp_path / "padded", domain=corpus, general=None).domain_mlm_loss > 0


def test_a_head_that_a_checkpoint_lacks_is_not_asked(corpus, tokenizer, tmp_path):
    asked = {"domain": corpus, "general": corpus, "cloze": [Cloze("采茶要早", "茶")]}
    folder = save_small_model(tmp_path / "m", tokenizer)
    whole = measure_intrinsic(folder, **asked)
    # as RoBERTa-wwm is published, then as a fine-tuned model is kept
    for part, expected in (("pooler", replace(whole, sop_accuracy=None)), ("predictions", Intrinsic())):
        change_tensors(folder, lambda name, tensor, part=part: {} if part in name else {name: tensor})
        assert measure_intrinsic(folder, **asked) == expected
