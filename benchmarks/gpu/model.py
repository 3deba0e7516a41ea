"""Whole training steps: jixu on its kernels and on torch, and transformers' ALBERT, on the same sequences."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch

import kernels
from albert.model import AlbertConfig
from benchmarks.gpu.scale import Scale, lengths_of, offsets
from benchmarks.gpu.timing import Case, Run, attempt

# so that a step takes tens of milliseconds, and the activations of "large" fit
TOKENS = {"tiny": 65536, "base": 32768, "large": 16384, "bert-large": 16384}
THEIRS = ("transformers", "transformers compiled")
# settings that transformers' config has under the same name
SHARED = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)


def training_flops(config, lengths: list[int], masked: int, rows: int | None = None) -> float:
    """FLOPs of a step: three forward passes' worth; real tokens, and the decoder on masked positions only.

    With `rows`, the last layer's part behind its attention counts for so many tokens only: no more is needed.
    """
    T, H, E = sum(lengths), config.hidden_size, config.embedding_size
    layer = T * (8 * H * H + 4 * H * config.intermediate_size) + sum(4 * n * n * H for n in lengths)
    spared = 0 if rows is None else (T - rows) * (2 * H * H + 4 * H * config.intermediate_size)
    head = masked * (2 * H * E + 2 * E * config.vocab_size)
    projection = 0 if E == H else 2 * T * E * H
    return 3 * (config.num_hidden_layers * layer - spared + head + projection)


def model_cases(scale: Scale) -> Iterator[Case]:
    small = scale.device == "cpu"
    for name in ("tiny",) if small else ("tiny", "base", "large", "bert-large"):
        for longest, mix in ((128, "full"), (128, "mixed"), (512, "full"), (512, "mixed")):
            if name == "bert-large" and (longest, mix) != (128, "full"):
                continue
            tokens = min(TOKENS[name], scale.tokens)
            # every model without dropout: transformers' ALBERT and jixu's then do the same work
            config = AlbertConfig.preset(
                name, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, vocab_size=scale.vocabulary
            )
            lengths, masked = lengths_of(mix, longest, tokens), int(0.15 * tokens)
            yield Case(
                f"step {name} T={longest} {mix}",
                lambda a=(name, config, lengths, longest): _steps(scale, *a),
                flops=training_flops(config, lengths, masked, masked + len(lengths)),
                tokens=tokens,
            )


def _steps(scale: Scale, name: str, config, lengths: list[int], longest: int) -> dict[str, Run | str]:
    from albert.model import Batch, PretrainingModel

    device, T, n = scale.device, sum(lengths), int(0.15 * sum(lengths))
    torch.manual_seed(0)
    cu_seqlens = offsets(lengths, device)
    places = torch.cat([torch.arange(length) for length in lengths]).to(device)
    ids = torch.randint(5, scale.vocabulary, (T,), device=device)
    masked = torch.randperm(T, device=device)[:n].sort().values
    batch = Batch(
        ids, ids % 2, places, cu_seqlens, longest, masked, ids[masked],
        torch.randint(2, (len(lengths),), device=device),
    )  # fmt: skip
    with torch.device(device):
        model = PretrainingModel(config)
    step = _step(model, lambda: model(batch).loss, device)

    def on_torch() -> None:
        kernels.use("torch")
        try:
            step()
        finally:
            kernels.use(scale.kernels)

    runners: dict[str, Run | str] = {"jixu": step, "jixu on torch": on_torch}
    if config.layout == "bert":
        return runners | dict.fromkeys(THEIRS, "measured for ALBERT only")
    if importlib.util.find_spec("transformers") is None:
        return runners | dict.fromkeys(THEIRS, "not installed")
    eager = attempt(_transformers, scale, config, batch, lengths, longest, False)
    compiled: Run | str = "compiled on a GPU, for tiny and base at T=128 full only"
    if device == "cuda" and name in ("tiny", "base") and set(lengths) == {128}:
        compiled = attempt(_transformers, scale, config, batch, lengths, longest, True)
    return runners | dict(zip(THEIRS, (eager, compiled), strict=True))


def _step(model: torch.nn.Module, loss, device: str) -> Run:
    """Make a step: forward and backward in bf16 autocast, and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")

    def run() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def _transformers(scale: Scale, config, batch, lengths: list[int], longest: int, compile_it: bool) -> Run:
    """Make a step of transformers' ALBERT on the same sequences, padded."""
    import transformers

    theirs = transformers.AlbertConfig(
        **{
            k: getattr(config, k)
            for k in SHARED
        },
        classifier_dropout_prob=0.0,
        attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device(scale.device):
        model = transformers.AlbertForPreTraining(theirs).train()
    S = len(lengths)
    inside = torch.arange(longest, device=scale.device) < batch.cu_seqlens.diff()[:, None]
    ids, kinds = (torch.zeros(S, longest, dtype=torch.int64, device=scale.device) for _ in range(2))
    labels = torch.full((S, longest), -100, device=scale.device)
    ids[inside], kinds[inside] = batch.input_ids, batch.token_type_ids
    flat = torch.full((batch.tokens,), -100, device=scale.device)
    flat[batch.masked_index] = batch.masked_labels
    labels[inside] = flat
    inputs = {
        "input_ids": ids,
        "token_type_ids": kinds,
        "labels": labels,
        "sentence_order_label": batch.sop_labels,
        "attention_mask": None if bool(inside.all()) else inside.long(),
    }
    forward = torch.compile(model) if compile_it else model
    return _step(model, lambda: forward(**inputs).loss, scale.device)
