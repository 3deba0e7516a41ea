"""Models that transformers cannot express, or has other defaults for; test_oracle.py has the others."""

import json
from dataclasses import asdict

import pytest
import torch
import transformers

from albert.checkpoints import load_model, new_model, save_pretrained
from albert.checkpoints.config_files import read_config
from albert.model import AlbertConfig, PretrainingModel
from data.errors import ConfigError
from tests.conftest import change_json

SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "hidden_act": "relu"}
BERT = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64}


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "bright"},
        {"layout": "bright", "norm": "pre", "tie_word_embeddings": False},
        *({"share": s} for s in ("attention", "ffn", "none")),
        {"layout": "bert", "share": "none", "embedding_size": 64, "classifier_dropout_prob": 0.0},
        {"layout": "bert", "share": "none", "embedding_size": 64, "norm": "pre"},
    ],
)
def test_what_transformers_would_change_comes_back_the_same(change, tmp_path):
    torch.manual_seed(0)
    config = AlbertConfig(**{"vocab_size": 50, "max_position_embeddings": 96, **SHAPE, **change})
    model = PretrainingModel(config)
    save_pretrained(model, None, tmp_path)
    again, report = load_model(tmp_path)
    assert again.config == config and not report.new and not report.unused
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("given, read", [(None, 0.3), (0.0, 0.0), (0.2, 0.2)])
def test_a_berts_classifier_drops_what_transformers_would(given, read, tmp_path):
    config = transformers.BertConfig(hidden_dropout_prob=0.3, classifier_dropout=given, **BERT)
    theirs = transformers.BertForSequenceClassification(config)
    theirs.save_pretrained(tmp_path)
    model, _ = load_model(tmp_path)
    assert model.config.classifier_dropout_prob == theirs.dropout.p == read


def test_the_seed_decides_a_new_head(tmp_path):
    transformers.BertModel(transformers.BertConfig(vocab_size=50, **BERT)).save_pretrained(tmp_path)
    first, again, other = (new_model(str(tmp_path), 50, seed=seed)[0].sop.weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("theirs", [transformers.BertConfig(), transformers.AlbertConfig()], ids=type)
def test_what_a_config_leaves_out_is_transformers_default(theirs, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": theirs.model_type}))
    read = asdict(read_config(tmp_path / "config.json"))
    wanted = {name: getattr(theirs, name) for name in read if hasattr(theirs, name)}
    assert {name: read[name] for name in wanted} == wanted and len(wanted) > 10


def test_a_config_without_a_model_type_has_it_in_its_name(tmp_path):
    model = PretrainingModel(AlbertConfig(**SHAPE, layout="bert", share="none", embedding_size=64))
    save_pretrained(model, None, tmp_path)
    change_json(tmp_path / "config.json", model_type=None)
    with pytest.raises(ConfigError, match="model_type None: .*add it to a file that has none"):
        load_model(tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "bert_config.json")
    assert load_model(tmp_path)[0].config == model.config
