"""The parameters of a model, and its cost for each token in floating-point operations.

A multiplication and an addition are two operations. Only matrix products are counted: the rest is negligible.
T = sequence length, H = hidden size, E = embedding size, F = feed-forward size, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from albert.model.config import PRESETS, AlbertConfig

LENGTHS = (128, 512)  # of sequences, in the table
MASKED_SHARE = 0.15  # of the tokens go through the MLM head


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parameters by part. The encoder is the layers and the pooler, tables and projection are embeddings."""

    embeddings: int
    encoder: int
    heads: int  # MLM (whose decoder is the word table, unless untied) and SOP

    @property
    def total(self) -> int:
        return self.embeddings + self.encoder + self.heads


def measure_sizes(config: AlbertConfig) -> Sizes:
    """Parameters of a config's model, by arithmetic: nothing is allocated."""
    E, H, F, V = config.embedding_size, config.hidden_size, config.intermediate_size, config.vocab_size
    W = H if config.layout == "bright" else E  # where types, positions and LayerNorm are
    projection = {"google": E * H + H, "bright": E * H, "bert": 0}[config.layout]
    embeddings = V * E + (config.max_position_embeddings + config.type_vocab_size + 2) * W + projection
    attention = 4 * (H * H + H) + 2 * H
    feed_forward = 2 * H * F + F + H + 2 * H
    layers = attention * config.blocks("attention") + feed_forward * config.blocks("ffn")
    transform = H if config.layout == "bright" else E
    heads = H * transform + 3 * transform + V + 2 * H + 2 + (0 if config.tie_word_embeddings else V * E)
    return Sizes(embeddings, layers + H * H + H, heads)


def encoder_operations(config: AlbertConfig, T: float) -> float:
    """Operations of the encoder for each token of sequences of length T.

    Sharing parameters saves memory, not operations.
    """
    E, H, F = config.embedding_size, config.hidden_size, config.intermediate_size
    layer = 2 * (4 * H * H + 2 * H * F) + 4 * T * H  # projections, feed-forward; scores and their mixing
    projection = 0 if config.layout == "bert" else 2 * E * H
    return config.depth * layer + projection


def forward_operations(config: AlbertConfig, T: int) -> float:
    """Operations of a forward pass for each token of sequences of length T; 15% go through the MLM head."""
    E, H, V = config.embedding_size, config.hidden_size, config.vocab_size
    transform = H * H + H * E if config.layout == "bright" else H * E
    head = MASKED_SHARE * 2 * (transform + V * E)
    return encoder_operations(config, T) + head


def sizes_table(*presets: str) -> list[str]:
    """Lines of a table of the sizes and costs of presets.

    Args:
        presets: Names of presets; by default all of them.
    """
    large = measure_sizes(AlbertConfig.preset("bert-large")).total
    lines = [
        f"{'':<12}{'':>7}{'':>6}{'':>6}{'':>8}{'':>7}  {'parameters':^62}  {'MFLOP a token':^18}",
        f"{'preset':<12}{'V':>7}{'E':>6}{'H':>6}{'layers':>8}{'heads':>7}  {'embeddings':>13}{'encoder':>15}"
        f"{'MLM, SOP':>11}{'all':>15}{'':>8}  " + "".join(f"{f'T={T}':>9}" for T in LENGTHS),
    ]
    for name in presets or PRESETS:
        config = AlbertConfig.preset(name)
        sizes = measure_sizes(config)
        operations = "".join(f"{forward_operations(config, T) / 1e6:>9,.1f}" for T in LENGTHS)
        lines.append(
            f"{name:<12}{config.vocab_size:>7}{config.embedding_size:>6}{config.hidden_size:>6}"
            f"{config.num_hidden_layers:>8}{config.num_attention_heads:>7}  {sizes.embeddings:>13,}"
            f"{sizes.encoder:>15,}{sizes.heads:>11,}{sizes.total:>15,}{sizes.total / large:>8.3f}  "
            f"{operations}"
        )
    lines += [
        "",
        "The column after the sum is the ratio to bert-large. MFLOP: of a forward pass, the MLM head on 15%",
        "of the tokens; sharing parameters saves none.",
    ]
    return lines
