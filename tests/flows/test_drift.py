"""How much harder new documents are for a model that knows the older ones."""

import pyarrow.parquet as pq
import pytest

from albert.batching import InstanceStream
from albert.checkpoints import save_pretrained
from albert.optim import adamw
from data.catalog import open_workspace, sample_shards
from data.workspace import Workspace
from flows.orchestration import added_mlm_loss
from tests.conftest import save_small_model, small_model
from tests.corpora import make_corpus


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file):
    """A corpus of tea, to which general text was added."""
    root, texts = tmp_path_factory.mktemp("drift"), (samples / "tea.jsonl", samples / "general.txt")
    for source in (texts[:1], texts):
        make_corpus(root, "茶", source, vocabulary_file, gates={"max_lost_documents": 1.0})
    return Workspace(root)


def test_the_two_sides_are_the_documents_of_the_newest_version_and_those_before(workspace, tmp_path):
    with open_workspace(workspace.root) as statistics:
        added, older = sample_shards(statistics, "茶", tmp_path)
        query = "select doc_id from documents where dropped_reason is null and first_version = ?"
        versions = [{row[0] for row in statistics.sql(query, [number]).fetchall()} for number in (1, 2)]
    found = [set(pq.read_table(path)["doc_id"].to_pylist()) for path in (older, added)]
    assert found[0] and found[0] <= versions[0] and found[1] and found[1] <= versions[1]


@pytest.mark.slow
def test_a_model_that_learnt_the_older_ones_by_heart_finds_the_added_ones_harder(
    workspace, tokenizer, tmp_path
):
    with open_workspace(workspace.root) as statistics:
        _, older = sample_shards(statistics, "茶", tmp_path)
    model = small_model(tokenizer)
    optimizer = adamw(model, 3e-3)
    batches = list(InstanceStream([older], batch_tokens=4096, held_out_share=1.0).held_out_batches(16_384))
    for _ in range(25):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).loss.backward()
            optimizer.step()
    save_pretrained(model, tokenizer, tmp_path / "knows")
    random = added_mlm_loss(workspace, "茶", save_small_model(tmp_path / "random", tokenizer))
    assert abs(random) < 0.3  # what knows nothing finds both alike
    assert added_mlm_loss(workspace, "茶", tmp_path / "knows") > random + 0.3


def test_a_model_with_another_vocabulary_or_too_few_positions_is_not_asked(workspace, tokenizer, tmp_path):
    short = save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=64)
    assert added_mlm_loss(workspace, "茶", short) is None
