import numpy as np
import pytest
import torch

from albert.model import AlbertConfig, PretrainingModel, pack, start_from_corpus, word_width


@pytest.mark.parametrize("preset", ["tiny", "bert-tiny", "base"])
def test_heads_find_the_token_at_their_distance_and_the_bias_knows_frequencies(preset):
    model = PretrainingModel(AlbertConfig.preset(preset, vocab_size=500)).eval()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, word_width(model.config))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    frequencies = rng.dirichlet(np.ones(500))
    start_from_corpus(model, vectors, frequencies, seed=0)
    attention, T = model.encoder.attentions[0], 100
    batch = pack([rng.integers(5, 500, T).tolist()])
    with torch.no_grad():
        states = model.encoder.embedding(batch)
        query, key, _ = attention.query_key_value(states).view(T, 3, attention.heads, -1).unbind(1)
        scores = torch.einsum("qnd,knd->nqk", query, key)
    for head, distance in enumerate((-1, 1, -2, 2, -3, 3, -4, 4, -6, 6)):
        places = torch.arange(12, T - 12)
        assert (scores[head].argmax(-1)[places] == places + distance).float().mean() > 0.95
    assert np.allclose(model.mlm.bias.softmax(0).detach(), frequencies, atol=1e-6)
