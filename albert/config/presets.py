"""The published sizes, for models that begin with random weights.

ALBERT: Lan et al. 2020, table 1, and albert_zh's tiny and small; "-en" ones have the English vocabulary and
heads. BERT: Devlin et al. 2019, section 3; bert-xlarge is the ALBERT paper's, with a Chinese vocabulary;
bert-tiny has tiny's shape, so that an answer costs the same.
"""

from __future__ import annotations

from albert.config.shape import AlbertConfig, ConfigError

ENGLISH_VOCABULARY = 30_000  # ALBERT's SentencePiece model; the default is BERT's Chinese one


def _size(hidden: int, layers: int, heads: int, **more: object) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        **more,
    }


def _bert(hidden: int, layers: int, heads: int) -> dict[str, object]:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    unshared = {"embedding_size": hidden, "share": "none", "layout": "bert"}
    return _size(hidden, layers, heads, hidden_act="gelu", **unshared, **dropout)


_CHINESE: dict[str, dict[str, object]] = {
    "tiny": _size(312, 4, 12),
    "small": _size(384, 6, 12),
    "base": _size(768, 12, 12),
    "large": _size(1024, 24, 16),
    "xlarge": _size(2048, 24, 16),
    "xxlarge": _size(4096, 12, 16, hidden_act="relu"),
}
_ENGLISH = {
    f"{name}-en": {**shape, "vocab_size": ENGLISH_VOCABULARY, "hidden_act": "gelu_new"}
    for name, shape in {**_CHINESE, "xxlarge": _size(4096, 12, 64)}.items()
}
PRESETS: dict[str, dict[str, object]] = {
    **_CHINESE,
    **_ENGLISH,
    "bert-tiny": _bert(312, 4, 12),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "bert-xlarge": _bert(2048, 24, 16),
}


def preset(name: str, **changes: object) -> AlbertConfig:
    """A published size by name ("base-zh" is "base"); raises ConfigError naming those there are."""
    shape = PRESETS.get(name.removesuffix("-zh"))
    if shape is None:
        raise ConfigError(f"no preset {name!r}: there are {', '.join(PRESETS)}")
    return AlbertConfig(**{**shape, **changes})
