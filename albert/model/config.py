"""Shape of the encoder, from ALBERT to BERT, and the published sizes by name.

Lan et al. 2020, table 1; Devlin et al. 2019, section 3. Chinese ALBERT's tiny and small are albert_zh's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from data.errors import ConfigError

ENGLISH_VOCABULARY = 30_000  # ALBERT's SentencePiece model; the default is BERT's Chinese one


def _size(hidden: int, layers: int, heads: int, **more: object) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        **more,
    }


def _bert(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    unshared = {"embedding_size": hidden, "share": "none", "layout": "bert"}
    return _size(hidden, layers, heads, hidden_act="gelu", **unshared, **dropout)


_CHINESE: dict[str, dict[str, Any]] = {
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
PRESETS: dict[str, dict[str, Any]] = {
    **_CHINESE,
    **_ENGLISH,
    "bert-tiny": _bert(312, 4, 12),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "bert-xlarge": _bert(2048, 24, 16),
}


Activation = Literal["gelu", "gelu_new", "relu"]  # erf's, its tanh approximation, relu
Share = Literal["all", "attention", "ffn", "none"]
Norm = Literal["post", "pre"]
Layout = Literal["google", "bright", "bert"]
FileFormat = Literal["albert", "bert", "jixu"]

# with the least value, and the bound that every value is below: a larger one is a mistake
Size = Annotated[int, 1, 10**8]
Count = Annotated[int, 1, 1000]  # of layers and groups
Dropout = Annotated[float, 0, 1]


@dataclass(frozen=True, kw_only=True)
class AlbertConfig:
    """Shape of the encoder (Lan et al. 2020, table 1). A variant is `dataclasses.replace(config, ...)`.

    Checked here and not by pydantic: a model needs torch alone.
    """

    vocab_size: Size = 21128
    embedding_size: Size = 128  # E, width of the word table
    hidden_size: Size = 768  # H, width of the encoder
    num_hidden_layers: Count = 12
    num_attention_heads: Size = 12  # N
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu_new"
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    share: Share = "all"  # which parameters the layers of a group share (Lan et al. 2020, table 4)
    num_hidden_groups: Count = 1  # groups of layers; parameters are shared within a group
    inner_group_num: Count = 1  # layers with their own parameters in one step through a group
    norm: Norm = "post"  # LayerNorm of each sum, or (pre) of the input of each block
    # google: LayerNorm at E, then E -> H; bright: E -> H, then LayerNorm at H (albert_zh); bert: E = H, no
    # projection
    layout: Layout = "google"
    hidden_dropout_prob: Dropout = 0.0  # ALBERT trains better without (Lan et al. 2020, section 4.8)
    attention_probs_dropout_prob: Dropout = 0.0
    classifier_dropout_prob: Dropout = 0.1
    tie_word_embeddings: bool = True  # the MLM decoder is the word table
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self):
        self._check_values()
        H, N = self.hidden_size, self.num_attention_heads
        if H % N:
            raise ConfigError(
                f"hidden_size={H} is not a multiple of num_attention_heads={N}; {max(H // N, 1) * N} would be"
            )
        if self.layout == "bert" and self.embedding_size != H:
            raise ConfigError(
                f"layout 'bert' has no projection: embedding_size={self.embedding_size} must be {H}"
            )
        layers, groups = self.num_hidden_layers, self.num_hidden_groups
        if self.share == "none" and groups > 1:
            raise ConfigError(f"num_hidden_groups={groups}: with share='none' there is nothing to group")
        if groups > layers:
            raise ConfigError(f"num_hidden_groups={groups}: there are only {layers} layers to group")

    def _check_values(self) -> None:
        faults = []
        for name, hint in get_type_hints(AlbertConfig, include_extras=True).items():
            value = getattr(self, name)
            if expected := _expected(hint, value):
                faults.append(f"{name}={value!r}: it must be {expected}")
            elif type(value) is int and hint in (float, Dropout):
                object.__setattr__(self, name, float(value))
        if faults:
            raise ConfigError("; ".join(faults))

    @property
    def depth(self) -> int:
        """The number of layers that a token passes through."""
        return self.num_hidden_layers * self.inner_group_num

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """For each layer, the number of its set of shared parameters, as transformers counts them."""
        inner = self.inner_group_num
        # the very expression of transformers' AlbertTransformer: its rounding decides which checkpoint fits
        steps = self.num_hidden_layers / self.num_hidden_groups
        return tuple(int(n / steps) * inner + i for n in range(self.num_hidden_layers) for i in range(inner))

    @property
    def blocks_of_layer(self) -> tuple[tuple[int, int], ...]:
        """For each layer, the numbers of the attention and of the feed-forward block it applies."""
        shared, own = self.group_of_layer, range(self.depth)
        attention = shared if self.share in ("all", "attention") else own
        feed_forward = shared if self.share in ("all", "ffn") else own
        return tuple(zip(attention, feed_forward, strict=True))

    def blocks(self, part: Literal["attention", "ffn"]) -> int:
        """How many blocks of a kind have parameters of their own."""
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
    def preset(cls, name: str, **changes: Any) -> AlbertConfig:
        """A published size by name ("base-zh" is "base"). Raises ConfigError with the known names."""
        shape = PRESETS.get(name.removesuffix("-zh"))
        if shape is None:
            raise ConfigError(f"no preset {name!r}: there are {', '.join(PRESETS)}")
        return cls(**{**shape, **changes})


def _expected(hint: Any, value: Any) -> str | None:
    """What the value of a field must be; None if it is."""
    if get_origin(hint) is Literal:
        *others, last = map(repr, get_args(hint))
        return None if value in get_args(hint) else f"{', '.join(others)} or {last}"
    kind, least, bound = get_args(hint) or (hint, -math.inf, math.inf)
    if type(value) is not kind and not (kind is float and type(value) is int):
        return {int: "a valid integer", float: "a valid number", bool: "a valid boolean"}[kind]
    if not value >= least:
        return f"greater than or equal to {least}"
    return None if value < bound else f"less than {bound}"
