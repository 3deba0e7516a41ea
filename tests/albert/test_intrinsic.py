"""What a checkpoint knows and costs, on a model that was made to know something."""

import pytest
import torch

from albert.batching import InstanceStream
from albert.checkpoints import save_model
from albert.config.sizes import measure_sizes
from albert.costs import measure_cost
from albert.finetuning import FineTuneSettings, prepare, read_task
from albert.intrinsic import Cloze, HeldOut, measure_intrinsic
from albert.optim import adamw
from albert.tasks import Task
from data.recipe import RefreshSettings
from data.refresh import refresh
from tests.conftest import sample_texts, save_small_model, small_model

SHARE = 0.3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocabulary_file):
    """Shards of the sample, a document a file so that they have an order."""
    root = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(sample_texts()[:12]):
        (root / f"{number}.txt").write_text(text, encoding="utf-8")
    settings = RefreshSettings(
        corpus="tea",
        sources=(str(root / "*.txt"),),
        workspace=root / "w",
        tokenizer=str(vocabulary_file),
        workers=1,
    )
    refresh(settings)
    return HeldOut(tuple(sorted((root / "w/shards/tea").glob("*.parquet"))), SHARE)


def test_held_out_text_is_known_better_after_training_on_it(corpus, tokenizer, tmp_path):
    before = save_small_model(tmp_path / "before", tokenizer)
    model = small_model(tokenizer)
    optimizer = adamw(model, 3e-3)
    stream = InstanceStream(corpus.shards, batch_tokens=4096, held_out_share=SHARE)
    batches = list(stream.held_out_batches(16_384))
    for _ in range(30):
        for batch in batches:
            loss = model(batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_model(model, tmp_path / "after", tokenizer)
    first, second = (
        measure_intrinsic(path, domain=corpus, general=corpus) for path in (before, tmp_path / "after")
    )
    assert first == measure_intrinsic(before, domain=corpus, general=corpus)
    assert second.domain_mlm_loss < first.domain_mlm_loss - 0.5
    assert second.domain_mlm_accuracy > first.domain_mlm_accuracy
    assert first.general_mlm_loss == first.domain_mlm_loss and 0 <= first.sop_accuracy <= 1
    assert first.cloze_accuracy is None and first.cloze_words == 0


def test_a_cloze_word_is_right_when_all_of_its_tokens_are(tokenizer, tmp_path):
    model = small_model(tokenizer)
    tea, scent = (tokenizer.vocabulary.index(c) for c in "茶香")
    with torch.no_grad():  # says 茶 whatever it is asked
        model.mlm.bias[tea] = 1e4
    save_model(model, tmp_path / "m", tokenizer)
    asked = [
        Cloze("采茶要早", "茶"),
        Cloze("茶香山高", "茶香"),
        Cloze("没有它", "茶"),
        Cloze("茶" * 600, "高"),
    ]
    found = measure_intrinsic(tmp_path / "m", domain=None, general=None, cloze=asked)
    assert scent != tea
    assert (found.cloze_words, found.cloze_accuracy) == (2, 0.5)  # a word that is not there is not asked
    assert found.domain_mlm_loss is None and found.sop_accuracy is None


def test_cost_is_that_of_the_model_with_its_head(tokenizer, tmp_path):
    folder = save_small_model(tmp_path / "m", tokenizer)
    rows = ["text\tlabel", *(f"{'茶' * n}\t{n % 2}" for n in range(1, 9))]
    (tmp_path / "t.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    path = tmp_path / "t.tsv"
    settings = FineTuneSettings(task=Task(name="t"), train=path, dev=path, models=(folder,))
    cost = measure_cost(prepare(settings, read_task(settings), 0))
    config = small_model(tokenizer).config
    assert cost.parameters == measure_sizes(config).body + 2 * config.hidden_size + 2
    assert cost.checkpoint_bytes == (folder / "model.safetensors").stat().st_size
    assert [one.batch_size for one in cost.latency] == [1, 32]
    assert all(0 < one.p50_ms <= one.p95_ms for one in cost.latency)
    H, F, E = config.hidden_size, config.intermediate_size, config.embedding_size
    T = 6.5  # mean of 1..8 characters with [CLS] and [SEP]
    assert cost.flops == T * (2 * (4 * H * H + 2 * H * F) + 4 * T * H + 2 * E * H)
