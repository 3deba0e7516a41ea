"""Shape of the encoder, from ALBERT to BERT.

Lan et al. 2020, table 1; Devlin et al. 2019, section 3. Chinese ALBERT's tiny and small are albert_zh's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args, get_origin

Activation = Literal["gelu", "gelu_new", "relu"]  # erf's, its tanh approximation, relu
Share = Literal["all", "attention", "ffn", "none"]
Norm = Literal["post", "pre"]
Layout = Literal["google", "bright", "bert"]
FileFormat = Literal["albert", "bert", "jixu"]
MAX_PARAMETERS = 20_000_000_000  # more than any machine this runs on holds; a config beyond it is a mistake
MAX_LAYERS = 1000

_SIZES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_hidden_groups",
    "inner_group_num",
)
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")


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
    share: Share = "all"  # which parameters the layers of a group have in common (Lan et al. 2020, table 4)
    num_hidden_groups: int = 1  # the layers are cut into so many groups; parameters are shared within one
    inner_group_num: int = 1  # layers of their own parameters that one step through a group applies
    norm: Norm = "post"  # LayerNorm of each sum, or (pre) of what goes into each block
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
        problems = [problem for field in fields(self) if (problem := self._problem(field.name, field.type))]
        if problems:
            raise ConfigError("; ".join(problems))
        H, N = self.hidden_size, self.num_attention_heads
        if H % N:
            raise ConfigError(
                f"hidden_size={H} is not a multiple of num_attention_heads={N}; {max(H // N, 1) * N} would be"
            )
        if self.layout == "bert" and self.embedding_size != H:
            raise ConfigError(
                f"layout 'bert' has no projection: embedding_size={self.embedding_size} must be {H}"
            )
        if self.parameter_bound() > MAX_PARAMETERS:
            raise ConfigError(
                f"a model of about {self.parameter_bound():.1e} parameters (vocab_size={self.vocab_size}, "
                f"embedding_size={self.embedding_size}, hidden_size={H}, "
                f"intermediate_size={self.intermediate_size}): no machine holds it; check the config"
            )
        self._check_groups()

    def _problem(self, name: str, annotation: str) -> str | None:
        """What is wrong with a field by itself."""
        value, expected = getattr(self, name), _TYPES[name]
        if get_origin(expected) is Literal:
            known = get_args(expected)
            return None if value in known else f"{name}={value!r}: known are {', '.join(map(repr, known))}"
        numbers = (int, float) if expected is float else int
        if isinstance(value, bool) or not isinstance(value, numbers):
            return f"{name}={value!r} is {type(value).__name__}, not {annotation}"
        if name in _SIZES and value < 1:
            return f"{name}={value}: it must be at least 1"
        if name in _DROPOUTS and not 0 <= value < 1:
            return f"{name}={value}: it must be from 0 up to, not including, 1"
        return None

    def _check_groups(self) -> None:
        layers, groups = self.num_hidden_layers, self.num_hidden_groups
        if self.depth > MAX_LAYERS:
            raise ConfigError(f"{self.depth} layers: no model has more than {MAX_LAYERS}; check the config")
        if self.share == "none" and groups > 1:
            raise ConfigError(f"num_hidden_groups={groups}: with share='none' there is nothing to group")
        if groups > layers:
            raise ConfigError(f"num_hidden_groups={groups}: there are only {layers} layers to group")

    def parameter_bound(self) -> int:
        """Parameters, near enough to tell a model from a mistake."""
        E, H = self.embedding_size, self.hidden_size
        tables = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * E
        attention = 4 * H * H * self.attentions
        feed_forward = 2 * H * self.intermediate_size * self.feed_forwards
        return tables + E * H + attention + feed_forward

    @property
    def depth(self) -> int:
        """How many layers a token passes."""
        return self.num_hidden_layers * self.inner_group_num

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """For each layer, the number of its set of shared parameters, as transformers counts them."""
        inner = self.inner_group_num
        # the very expression of transformers' AlbertTransformer: its rounding decides which checkpoint fits
        steps = self.num_hidden_layers / self.num_hidden_groups
        return tuple(int(n / steps) * inner + i for n in range(self.num_hidden_layers) for i in range(inner))

    @property
    def attention_of_layer(self) -> tuple[int, ...]:
        """For each layer, the number of the attention block it applies."""
        return self.group_of_layer if self.share in ("all", "attention") else tuple(range(self.depth))

    @property
    def feed_forward_of_layer(self) -> tuple[int, ...]:
        """For each layer, the number of the feed-forward block it applies."""
        return self.group_of_layer if self.share in ("all", "ffn") else tuple(range(self.depth))

    @property
    def attentions(self) -> int:
        """How many attention blocks have parameters of their own."""
        return self._blocks("attention")

    @property
    def feed_forwards(self) -> int:
        """How many feed-forward blocks have parameters of their own."""
        return self._blocks("ffn")

    def _blocks(self, part: str) -> int:
        shared = self.share in ("all", part)
        return (self.num_hidden_groups if shared else self.num_hidden_layers) * self.inner_group_num

    @property
    def file_format(self) -> FileFormat:
        """The transformers architecture that can express the model, or jixu's own format where none can."""
        if self.norm == "post" and self.layout == "google" and self.share in ("all", "none"):
            return "albert"
        is_bert = self.layout == "bert" and self.share == "none" and self.inner_group_num == 1
        return "bert" if is_bert and self.norm == "post" else "jixu"

    @classmethod
    def preset(cls, name: str, **changes: object) -> AlbertConfig:
        """A published size by name; raises ConfigError naming those there are."""
        from albert.config.presets import preset

        return preset(name, **changes)

    def to_file(self) -> dict[str, object]:
        """The content of config.json: what transformers reads where it can express the model."""
        from albert.config.files import to_file

        return to_file(self)

    @classmethod
    def from_file(cls, path: Path) -> AlbertConfig:
        """The config of a config.json. Raises ConfigError for what it cannot express."""
        from albert.config.files import read_config

        return read_config(path)


_TYPES: dict[str, object] = {
    field.name: {"int": int, "float": float}.get(field.type) for field in fields(AlbertConfig)
} | {"hidden_act": Activation, "share": Share, "layout": Layout, "norm": Norm}
