"""How much harder new documents are for a model than the older ones."""

import pyarrow.parquet as pq
import pytest

from data.catalog import open_workspace, sample_shards
from data.tokenization import load_tokenizer
from data.workspace import Workspace
from flows.orchestration import added_mlm_loss
from tests.conftest import SAMPLES, save_small_model
from tests.corpora import make_corpus

TRAINED = SAMPLES / "tiny-zh"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A corpus of general text, to which tea was added."""
    root, texts = tmp_path_factory.mktemp("drift"), (SAMPLES / "general.txt", SAMPLES / "tea.jsonl")
    for source in (texts[:1], texts):
        make_corpus(root, "茶", source, TRAINED / "vocab.txt", gates={"max_lost_documents": 1.0})
    return Workspace(root)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TRAINED / "vocab.txt")


def test_the_two_sides_are_the_documents_of_the_newest_version_and_those_before(workspace, tmp_path):
    with open_workspace(workspace.root) as statistics:
        added, older = sample_shards(statistics, "茶", tmp_path)
        query = "select doc_id from documents where dropped_reason is null and first_version = ?"
        versions = [{row[0] for row in statistics.sql(query, [number]).fetchall()} for number in (1, 2)]
    found = [set(pq.read_table(path)["doc_id"].to_pylist()) for path in (older, added)]
    assert found[0] and found[0] <= versions[0] and found[1] and found[1] <= versions[1]


def test_text_of_a_field_is_harder_for_a_model_that_has_learnt_the_language_and_can_read_it(
    workspace, tokenizer, tmp_path
):
    random = added_mlm_loss(workspace, "茶", save_small_model(tmp_path / "random", tokenizer))
    assert abs(random) < 0.05  # what knows nothing finds both alike
    assert added_mlm_loss(workspace, "茶", TRAINED) > 0.2
    short = save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=64)
    assert added_mlm_loss(workspace, "茶", short) is None
