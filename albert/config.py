"""Shape of the encoder, from ALBERT to BERT, and the published sizes.

Lan et al. 2020, table 1; Devlin et al. 2019, section 3. Chinese ALBERT's tiny and small are albert_zh's.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_args, get_origin

Activation = Literal["gelu", "gelu_new", "relu"]  # erf's, its tanh approximation, relu
Share = Literal["all", "attention", "ffn", "none"]
Layout = Literal["google", "bright", "bert"]
MAX_PARAMETERS = 20_000_000_000  # more than any machine this runs on holds; a config beyond it is a mistake


class ConfigError(ValueError):
    """A setting that cannot work, found before any work started."""


@dataclass(frozen=True, kw_only=True)
class AlbertConfig:
    """Shape of the encoder (Lan et al. 2020, table 1). A variant is `dataclasses.replace(config, ...)`."""

    vocab_size: int = 21128
    embedding_size: int = 128  # E, width of the word table
    hidden_size: int = 768  # H, width of the encoder
    num_hidden_layers: int = 12
    num_attention_heads: int = 12  # N
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu_new"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    share: Share = "all"  # which parameters the layers have in common (Lan et al. 2020, table 4)
    # google: LayerNorm at E, then E -> H; bright: E -> H, then LayerNorm at H (albert_zh); bert: E = H, no
    # projection
    layout: Layout = "google"
    hidden_dropout_prob: float = 0.0  # ALBERT trains better without (Lan et al. 2020, section 4.7)
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self):
        for field in fields(self):
            self._check_type(field.name, field.type)
        for name in (
            "vocab_size",
            "embedding_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at least 1")
        H, N = self.hidden_size, self.num_attention_heads
        if H % N:
            raise ConfigError(
                f"hidden_size={H} is not a multiple of num_attention_heads={N}; {max(H // N, 1) * N} would be"
            )
        if self.layout == "bert" and self.embedding_size != H:
            raise ConfigError(
                f"layout 'bert' has no projection: embedding_size={self.embedding_size} must be {H}"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be from 0 up to, not including, 1")
        if self.parameter_bound() > MAX_PARAMETERS:
            raise ConfigError(
                f"a model of about {self.parameter_bound():.1e} parameters (vocab_size={self.vocab_size}, "
                f"embedding_size={self.embedding_size}, hidden_size={H}, "
                f"intermediate_size={self.intermediate_size}): "
                "no machine holds it; check the config"
            )

    def _check_type(self, name: str, annotation: str) -> None:
        value = getattr(self, name)
        expected = _TYPES[name]
        if get_origin(expected) is Literal:
            if value not in get_args(expected):
                raise ConfigError(f"{name}={value!r}: known are {', '.join(map(repr, get_args(expected)))}")
        elif isinstance(value, bool) or not isinstance(
            value, (int, float) if expected is float else expected
        ):
            raise ConfigError(f"{name}={value!r} is {type(value).__name__}, not {annotation}")

    def parameter_bound(self) -> int:
        """Parameters, near enough to tell a model from a mistake."""
        E, H = self.embedding_size, self.hidden_size
        tables = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * E
        attention, feed_forward = (
            4 * H * H * self.attentions,
            2 * H * self.intermediate_size * self.feed_forwards,
        )
        return tables + E * H + attention + feed_forward

    @property
    def attentions(self) -> int:
        """How many attention blocks have parameters of their own."""
        return 1 if self.share in ("all", "attention") else self.num_hidden_layers

    @property
    def feed_forwards(self) -> int:
        """How many feed-forward blocks have parameters of their own."""
        return 1 if self.share in ("all", "ffn") else self.num_hidden_layers

    @property
    def file_format(self) -> Literal["albert", "bert", "jixu"]:
        """The transformers architecture that can express the model, or jixu's own format where none can."""
        if self.layout == "google" and self.share == "all":
            return "albert"
        return "bert" if self.layout == "bert" and self.share == "none" else "jixu"

    @classmethod
    def preset(cls, name: str, **changes: object) -> AlbertConfig:
        """A published size by name; raises ConfigError naming those there are."""
        if name not in PRESETS:
            raise ConfigError(f"no preset {name!r}: there are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    def to_file(self) -> dict[str, object]:
        """The content of config.json: what transformers reads where it can express the model."""
        own = asdict(self)
        if self.file_format == "jixu":
            return {"model_type": "jixu", **own}
        del own["share"], own["layout"]
        if self.file_format == "bert":
            del own["embedding_size"], own["classifier_dropout_prob"]
            own["classifier_dropout"] = self.classifier_dropout_prob
            return {"architectures": ["BertForPreTraining"], "model_type": "bert", **own}
        groups = {"num_hidden_groups": 1, "inner_group_num": 1}
        return {"architectures": ["AlbertForPreTraining"], "model_type": "albert", **own, **groups}

    @classmethod
    def from_file(cls, path: Path) -> AlbertConfig:
        """The config of a config.json. Raises ConfigError for what it cannot express."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}: {error.msg}"
            raise ConfigError(f"{path} is not JSON ({where})") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        kind = content.get("model_type") if isinstance(content, dict) else None
        if kind not in ("albert", "bert", "jixu"):
            raise ConfigError(f"{path} is of model_type {kind!r}: only 'albert' and 'bert' can be loaded")
        if kind == "albert":
            groups = (content.get("num_hidden_groups", 1), content.get("inner_group_num", 1))
            if groups != (1, 1):
                raise ConfigError(
                    f"{path} has num_hidden_groups, inner_group_num = {groups}: only 1, 1 can be loaded"
                )
        if kind == "bert":
            if content.get("position_embedding_type", "absolute") != "absolute" or content.get("is_decoder"):
                raise ConfigError(
                    f"{path} asks for relative positions or a decoder: only plain BERT can be loaded"
                )
            content = {**_BERT_DEFAULTS, **content}
            content |= {"embedding_size": content["hidden_size"], "layout": "bert", "share": "none"}
            content["classifier_dropout_prob"] = content.get("classifier_dropout") or 0.1
        # transformers leaves out what equals its own defaults, which are those of ALBERT-xxlarge and
        # BERT-base
        values = {**_ALBERT_DEFAULTS, **content}
        try:
            return cls(
                **{
                    field.name: values[field.name]
                    for field in fields(cls)
                    if values.get(field.name) is not None
                }
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


_TYPES: dict[str, object] = {
    field.name: {"int": int, "float": float}.get(field.type) for field in fields(AlbertConfig)
} | {"hidden_act": Activation, "share": Share, "layout": Layout}

_BERT_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}

_ALBERT_DEFAULTS = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


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


PRESETS: dict[str, dict[str, object]] = {
    "tiny": _size(312, 4, 12),
    "small": _size(384, 6, 12),
    "base": _size(768, 12, 12),
    "large": _size(1024, 24, 16),
    "xlarge": _size(2048, 24, 16),
    "xxlarge": _size(4096, 12, 16, hidden_act="relu"),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "bert-xlarge": _bert(2048, 24, 16),
}
