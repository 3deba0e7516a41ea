"""transformers itself is the oracle: the same weights give the same numbers there and here, both ways."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from albert.checkpoints import load_model, load_pretrained, new_model, save_model
from albert.model import AlbertConfig, PretrainingModel, pack
from data.errors import ConfigError, InputError

SHAPES = [
    {"hidden_size": 312, "num_attention_heads": 12, "num_hidden_layers": 4, "intermediate_size": 1248},
    {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 96,
        "hidden_act": "relu",
    },
    {
        "hidden_size": 60,
        "num_attention_heads": 5,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "hidden_act": "gelu",
    },
    {
        "hidden_size": 64,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "embedding_size": 24,
    },
]


def theirs(shape, seed=0):
    torch.manual_seed(seed)
    config = transformers.AlbertConfig(
        vocab_size=211, max_position_embeddings=96, num_hidden_groups=1, **{"embedding_size": 128, **shape}
    )
    model = transformers.AlbertForPreTraining(config).eval()
    for parameter in model.parameters():  # biases and LayerNorm too, or a mixed-up name would not show
        torch.nn.init.normal_(parameter, std=0.05 if parameter.dim() > 1 else 0.3)
    return model


def sequences():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 211, (length,), generator=generator).tolist() for length in (96, 1, 17, 40)]


def their_outputs(model, ids, types):
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    token_types = torch.tensor([row + [0] * (longest - len(row)) for row in types])
    out = model(padded, attention_mask=mask, token_type_ids=token_types, output_hidden_states=True)
    keep = mask.bool()
    return [state[keep] for state in out.hidden_states], out.prediction_logits[keep], out.sop_logits


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"H{s['hidden_size']}-N{s['num_attention_heads']}")
def test_their_weights_give_their_numbers_here(shape, tmp_path):
    oracle = theirs(shape)
    oracle.save_pretrained(tmp_path)
    ours, report = load_model(tmp_path)
    assert not report.new and not report.unused
    ids = sequences()
    types = [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in ids]
    batch = pack(ids, types)
    with torch.no_grad():
        states, mlm, sop = their_outputs(oracle, ids, types)
        ours_states = ours.eval().encoder.hidden_states(batch)
        for theirs_state, ours_state in zip(states, ours_states, strict=True):
            # values of up to some tens: the tolerance is relative to the largest
            assert (theirs_state - ours_state).abs().max() < 1e-5 * theirs_state.abs().max().clamp_min(1)
        assert (ours.mlm_logits(ours_states[-1]) - mlm).abs().max() < 1e-5
        assert (ours.sop_logits(ours_states[-1], batch) - sop).abs().max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES[:2], ids=["tiny", "relu"])
def test_our_weights_give_our_numbers_there(shape, tmp_path):
    torch.manual_seed(0)
    config = AlbertConfig(**{"vocab_size": 211, "max_position_embeddings": 96, **shape})
    ours = PretrainingModel(config).eval()
    save_model(ours, tmp_path)
    oracle, info = transformers.AlbertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    ids = sequences()
    batch = pack(ids)
    with torch.no_grad():
        states, mlm, sop = their_outputs(oracle.eval(), ids, [[0] * len(row) for row in ids])
        hidden = ours.encoder(batch)
        assert (hidden - states[-1]).abs().max() < 1e-5
        assert (ours.mlm_logits(hidden) - mlm).abs().max() < 1e-5
        assert (ours.sop_logits(hidden, batch) - sop).abs().max() < 1e-5


def test_there_and_back_is_bit_identical(tmp_path):
    theirs(SHAPES[1]).save_pretrained(tmp_path / "a")
    model, _ = load_model(tmp_path / "a")
    save_model(model, tmp_path / "b")
    again, _ = load_model(tmp_path / "b")
    for (name, p), (_, q) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    a, b = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert all(torch.equal(b[name], value) for name, value in a.items())


BERT_SHAPES = [
    {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 96},
    {
        "hidden_size": 64,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 40,
        "hidden_act": "relu",
    },
]


@pytest.mark.parametrize("shape", BERT_SHAPES, ids=["erf", "relu"])
def test_bert_is_the_same_here_and_there(shape, tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=211, max_position_embeddings=96, **shape)
    oracle = transformers.BertForPreTraining(config).eval()
    for parameter in oracle.parameters():
        torch.nn.init.normal_(parameter, std=0.05 if parameter.dim() > 1 else 0.3)
    oracle.save_pretrained(tmp_path / "a")
    ours, report = load_model(tmp_path / "a")
    assert not report.new and not report.unused
    save_model(ours, tmp_path / "b")
    again = transformers.BertForPreTraining.from_pretrained(tmp_path / "b").eval()
    ids = sequences()
    types = [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in ids]
    batch = pack(ids, types)
    longest = max(map(len, ids))
    padded, padded_types = (
        torch.tensor([row + [0] * (longest - len(row)) for row in rows]) for rows in (ids, types)
    )
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    with torch.no_grad():
        hidden = ours.eval().encoder(batch)
        for model in (oracle, again):
            out = model(padded, attention_mask=mask, token_type_ids=padded_types, output_hidden_states=True)
            assert (out.hidden_states[-1][mask.bool()] - hidden).abs().max() < 1e-5
            assert (out.prediction_logits[mask.bool()] - ours.mlm_logits(hidden)).abs().max() < 1e-5
            assert (out.seq_relationship_logits - ours.sop_logits(hidden, batch)).abs().max() < 1e-5


@pytest.mark.parametrize(
    "change", [{"layout": "bright"}, {"share": "attention"}, {"share": "ffn"}, {"share": "none"}]
)
def test_what_transformers_cannot_express_comes_back_the_same(change, tmp_path):
    torch.manual_seed(0)
    config = AlbertConfig(**{"vocab_size": 50, "max_position_embeddings": 96, **SHAPES[1], **change})
    model = PretrainingModel(config).eval()
    save_model(model, tmp_path)
    again, report = load_model(tmp_path)
    assert again.config == config and not report.new and not report.unused
    batch = pack([[1, 2, 3, 4], [5, 6]])
    with torch.no_grad():
        assert torch.equal(model.encoder(batch), again.eval().encoder(batch))
        assert model.mlm_logits(model.encoder(batch)).shape == (6, 50)


def test_a_missing_head_is_new_and_said(tmp_path):
    transformers.AlbertModel(theirs(SHAPES[1]).config).save_pretrained(tmp_path / "bare")
    tensors = load_file(tmp_path / "bare/model.safetensors")
    save_file(
        {f"albert.{name}": value for name, value in tensors.items()}, tmp_path / "bare/model.safetensors"
    )
    _, report = load_model(tmp_path / "bare")
    assert [line.split(":")[0] for line in report.notices()] == [
        "MLM head newly initialised",
        "SOP head newly initialised",
    ]


def damaged(tmp_path, change):
    theirs(SHAPES[1]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif change == "empty":
        path.write_bytes(b"")
    elif change == "long header":
        path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    elif change == "other tensors":
        save_file({"something.else": torch.ones(2)}, path)
    elif change == "nan":
        tensors = load_file(path)
        tensors["albert.pooler.bias"][0] = float("nan")
        save_file(tensors, path)
    elif change == "shape":
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 97}))
    else:
        path.unlink()


@pytest.mark.parametrize(
    "change, message",
    [
        ("truncated", "not a whole safetensors"),
        ("empty", "not a whole safetensors"),
        ("long header", "not a whole safetensors"),
        ("other tensors", "does not hold the encoder"),
        ("nan", "NaN or infinity"),
        ("shape", "do not belong together"),
        ("missing", "no model.safetensors"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, change, message):
    damaged(tmp_path, change)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "content, message",
    [
        ("not json", "is not JSON .line 1, column 1"),
        ('{"model_type": "gpt2"}', "model_type 'gpt2'"),
        ('{"model_type": "albert", "hidden_size": 100, "num_attention_heads": 12}', "not a multiple"),
        ('{"model_type": "albert", "hidden_size": "wide"}', "hidden_size='wide': it must be a valid integer"),
        ('{"model_type": "albert", "vocab_size": 10000000000000}', "no machine holds it"),
        ('{"model_type": "albert", "hidden_act": "swish"}', "it must be 'gelu'"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path)


def test_model_and_vocabulary_must_fit(tmp_path, tokenizer):
    model = PretrainingModel(AlbertConfig.preset("tiny", vocab_size=tokenizer.vocab_size - 1))
    save_model(model, tmp_path, tokenizer)
    with pytest.raises(InputError, match="do not belong together"):
        load_pretrained(tmp_path)


def test_an_unknown_start_is_named():
    with pytest.raises(InputError, match="no checkpoint folder and no preset"):
        new_model("enormous", 100, seed=0)
