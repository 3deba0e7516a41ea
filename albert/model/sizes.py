"""The cost of a model for each token: floating-point operations and activation memory.

A multiplication and an addition are two operations. Only matrix products are counted: the rest is negligible.
T = sequence length, H = hidden size, E = embedding size, F = feed-forward size, N = heads,
V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from albert.model.config import AlbertConfig, measure_sizes

LENGTHS = (128, 512)  # of sequences, in the table
MASKED_SHARE = 0.15  # of the tokens go through the MLM head


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


def activation_bytes(config: AlbertConfig, T: int) -> float:
    """Bytes that the layers keep for the backward pass, for each token of full sequences of length T.

    Under bf16 autocast without dropout on a CPU, each layer keeps: q, k, v, the mixed heads, both blocks'
    bf16 inputs, and the fp32 sums that LayerNorm normalises; the activation's input (or its slope there) and,
    unless it is relu, its output (bf16 each); the attention probabilities in bf16; four fp32 statistics of
    LayerNorm.
    """
    H, F, N = config.hidden_size, config.intermediate_size, config.num_attention_heads
    inner = 2 * F if config.hidden_act == "relu" else 4 * F
    return config.depth * (16 * H + inner + 2 * N * T + 16)


def sizes_table(names: Sequence[str]) -> list[str]:
    """Lines of a table of the sizes and costs of presets."""
    large = measure_sizes(AlbertConfig.preset("bert-large")).total
    lines = [
        f"{'':<12}{'':>7}{'':>6}{'':>6}{'':>8}{'':>7}  {'parameters':^62}  {'MFLOP a token':^18}  "
        f"{'kept, KiB a token':^18}",
        f"{'preset':<12}{'V':>7}{'E':>6}{'H':>6}{'layers':>8}{'heads':>7}  {'embeddings':>13}{'encoder':>15}"
        f"{'MLM, SOP':>11}{'all':>15}{'':>8}  "
        + "  ".join("".join(f"{f'T={T}':>9}" for T in LENGTHS) for _ in range(2)),
    ]
    for name in names:
        config = AlbertConfig.preset(name)
        sizes = measure_sizes(config)
        operations = "".join(f"{forward_operations(config, T) / 1e6:>9,.1f}" for T in LENGTHS)
        kept = "".join(f"{activation_bytes(config, T) / 1024:>9,.0f}" for T in LENGTHS)
        lines.append(
            f"{name:<12}{config.vocab_size:>7}{config.embedding_size:>6}{config.hidden_size:>6}"
            f"{config.num_hidden_layers:>8}{config.num_attention_heads:>7}  {sizes.embeddings:>13,}"
            f"{sizes.encoder:>15,}{sizes.heads:>11,}{sizes.total:>15,}{sizes.total / large:>8.3f}  "
            f"{operations}  {kept}"
        )
    lines += [
        "",
        "The column after the sum is the ratio to bert-large. MFLOP: of a forward pass, the MLM head on 15%",
        "of the tokens; sharing parameters saves none. Kept: by the layers for the backward pass, in",
        "training under bf16 with the reference attention; with activation checkpointing it is "
        "2 H bytes a layer instead.",
    ]
    return lines
