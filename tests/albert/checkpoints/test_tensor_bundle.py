"""Checkpoints that TensorFlow wrote: every variable is read to the bit, and the model is an independent
numpy one.

Those in tests/albert/tensorflow were written by TensorFlow 1's saver with random values, under the names,
shapes and scopes of google-research/albert, albert_zh and google-research/bert (modeling.py of each), with
slots of their optimisers, LAMB and AdamWeightDecay. "google-fast" has 12 groups, of which 4 layers use 4;
"bert-narrow" has SimBERT's factorised embedding, its word table in float64 as in the published SimBERT-tiny.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from albert.checkpoints import load_model, read_checkpoint
from albert.model import pack
from data.errors import ConfigError, InputError
from tests.conftest import change_json

FOLDER = Path(__file__).parent.parent / "tensorflow"
CHECKPOINTS = ("google", "google-groups", "google-fast", "bright", "bright-preln", "bert", "bert-narrow")
SEQUENCES = [[5, 9, 30, 1, 2, 17, 8, 8, 3, 11, 12, 6], [4], [7, 3, 29, 30, 1]]
TYPES = [[0] * 5 + [1] * 7, [0], [0, 0, 1, 1, 1]]


def activation(x, name):
    # "gelu" is the tanh approximation in all three repositories
    if name == "relu":
        return np.maximum(x, 0)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class NumpyModel:
    """The repositories' modeling.py on one sequence, in float64, by the variables' own names."""

    def __init__(self, layout, config, variables):
        self.layout, self.config = layout, config
        self.v = {name: value.astype(np.float64) for name, value in variables.items()}

    def dense(self, x, name):
        return x @ self.v[f"{name}/kernel"] + self.v[f"{name}/bias"]

    def norm(self, x, name):
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return normed * self.v[f"{name}/gamma"] + self.v[f"{name}/beta"]

    def attention(self, x, scope, output):
        parts = np.stack([self.dense(x, f"{scope}/{part}") for part in ("query", "key", "value")])
        heads = parts.reshape(3, len(x), self.config["num_attention_heads"], -1)
        q, k, v = heads.swapaxes(1, 2)  # each [N, L, D]
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self.dense(mixed.swapaxes(0, 1).reshape(x.shape), output)

    def block(self, x, attention, output, first_norm, inner, outer, second_norm):
        act = self.config["hidden_act"]
        if self.config.get("ln_type") == "preln":
            x = x + self.attention(self.norm(x, first_norm), attention, output)
            return x + self.dense(activation(self.dense(self.norm(x, second_norm), inner), act), outer)
        x = self.norm(x + self.attention(x, attention, output), first_norm)
        return self.norm(x + self.dense(activation(self.dense(x, inner), act), outer), second_norm)

    def hidden(self, ids, types):
        x = self.v["bert/embeddings/word_embeddings"][ids]
        if self.layout == "bright":
            x = x @ self.v["bert/embeddings/word_embeddings_2"]
        x = x + self.v["bert/embeddings/token_type_embeddings"][types]
        x = x + self.v["bert/embeddings/position_embeddings"][: len(ids)]
        x = self.norm(x, "bert/embeddings/LayerNorm")
        layers = self.config["num_hidden_layers"]
        if "bert/encoder/embedding_hidden_mapping_in/kernel" in self.v:
            x = self.dense(x, "bert/encoder/embedding_hidden_mapping_in")
        if self.layout == "google":
            groups, inner = self.config["num_hidden_groups"], range(self.config["inner_group_num"])
            places = [(int(layer / layers * groups), i) for layer in range(layers) for i in inner]
            scopes = [f"transformer/group_{group}/inner_group_{i}" for group, i in places]
            names = ("attention_1/self", "attention_1/output/dense", "LayerNorm")
            names += ("ffn_1/intermediate/dense", "ffn_1/intermediate/output/dense", "LayerNorm_1")
        else:
            scopes = [f"layer_{'shared' if self.layout == 'bright' else n}" for n in range(layers)]
            names = ("attention/self", "attention/output/dense", "attention/output/LayerNorm")
            names += ("intermediate/dense", "output/dense", "output/LayerNorm")
        for scope in scopes:
            x = self.block(x, *(f"bert/encoder/{scope}/{name}" for name in names))
        return x

    def mlm_logits(self, hidden):
        x = activation(self.dense(hidden, "cls/predictions/transform/dense"), self.config["hidden_act"])
        x = self.norm(x, "cls/predictions/transform/LayerNorm")
        if self.layout == "bright":
            x = x @ self.v["bert/embeddings/word_embeddings_2"].T
        return x @ self.v["bert/embeddings/word_embeddings"].T + self.v["cls/predictions/output_bias"]

    def pooled(self, hidden):
        return np.tanh(self.dense(hidden[0], "bert/pooler/dense"))

    def sop_logits(self, hidden):
        weights = self.v["cls/seq_relationship/output_weights"]
        return self.pooled(hidden) @ weights.T + self.v["cls/seq_relationship/output_bias"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_wholly_read_and_computes_what_numpy_does(name):
    folder = FOLDER / name
    variables = dict(np.load(folder / "variables.npz"))
    config = json.loads(next(folder.glob("*config*.json")).read_text())
    model, report = load_model(folder)
    assert not (report.new or report.unused or report.wrong_shape) and not report.notices()
    assert set(report.matched) == set(variables)
    found = read_checkpoint(folder).tensors
    assert set(found) == set(variables)  # no slot of the optimiser
    for variable, value in variables.items():  # to the bit
        transposed = variable.endswith(("/kernel", "word_embeddings_2"))
        wanted = np.float32(value.T if transposed else value)
        assert np.array_equal(found[variable].numpy(), wanted), variable
    oracle = NumpyModel(name.partition("-")[0], config, variables)
    batch = pack(SEQUENCES, TYPES)
    with torch.no_grad():
        hidden = model.eval().encoder(batch)
        first = hidden[batch.cu_seqlens[:-1]]
        mlm, sop, pooled = model.mlm_logits(hidden), model.sop_logits(first), model.encoder.pool(first)
    expected = [oracle.hidden(np.array(i), np.array(t)) for i, t in zip(SEQUENCES, TYPES, strict=True)]
    pairs = {
        "hidden": (hidden, np.concatenate(expected)),
        "pooled": (pooled, np.stack([oracle.pooled(h) for h in expected])),
        "mlm": (mlm, np.concatenate([oracle.mlm_logits(h) for h in expected])),
        "sop": (sop, np.stack([oracle.sop_logits(h) for h in expected])),
    }
    for what, (got, want) in pairs.items():
        assert np.abs(got.double().numpy() - want).max() < 1e-5, what


def test_a_prefix_is_taken_too():
    assert load_model(FOLDER / "google/model.ckpt-best")[0].config.layout == "google"
    assert load_model(FOLDER / "bright/albert_model.ckpt.index")[0].config.layout == "bright"


DATA, INDEX = "albert_model.ckpt.data-00000-of-00001", "albert_model.ckpt.index"
CONFIG = "albert_config_base.json"


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / DATA).unlink(), "no TensorFlow checkpoint"),
        (lambda f: (f / DATA).write_bytes(b"short"), "too short for bert/.*: it is damaged"),
        (lambda f: (f / INDEX).write_bytes(b"\x00" * 500), "not the index of a TensorFlow checkpoint"),
        (lambda f: shutil.copy(f / CONFIG, f / "bert_config.json"), "holds 2 configs"),
        # and nothing is guessed
        (lambda f: change_json(f / CONFIG, num_attention_heads=None), "does not say num_attention_heads"),
    ],
    ids=["no data", "short data", "no index", "two configs", "unnamed heads"],
)
def test_a_damaged_checkpoint_is_refused(damage, message, tmp_path):
    damage(shutil.copytree(FOLDER / "bright", tmp_path / "bright"))
    with pytest.raises((ConfigError, InputError), match=message):
        load_model(tmp_path / "bright")
