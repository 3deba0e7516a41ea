"""transformers' ALBERT in its usual settings, the rival of a training step on a CPU.

S = sequences, L = longest of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import product

import torch
import transformers
from torch import Tensor

from albert.model import AlbertConfig, Batch
from benchmarks.support.steps import training_step

WAYS = [" ".join(way) for way in product(("sdpa", "eager"), ("fp32", "bf16"))]  # bf16 by autocast


def their_config(config: AlbertConfig, attention: str = "sdpa") -> transformers.AlbertConfig:
    """Return transformers' config of the same model, whose settings have the same names."""
    theirs = transformers.AlbertConfig(attn_implementation=attention, classifier_dropout_prob=0.0)
    for name in asdict(config).keys() & theirs.to_dict().keys() - {"classifier_dropout_prob"}:
        setattr(theirs, name, getattr(config, name))
    return theirs


def padded(batch: Batch) -> dict[str, Tensor]:
    """Pad a packed batch to its longest sequence, as transformers takes it."""
    lengths = batch.cu_seqlens.diff()
    inside = torch.arange(batch.max_seqlen, device=lengths.device) < lengths[:, None]  # [S, L]

    def spread(values: Tensor, fill: int) -> Tensor:
        return torch.full(inside.shape, fill, device=lengths.device).masked_scatter(inside, values)

    labels = torch.full((batch.tokens,), -100, device=lengths.device)
    labels[batch.masked_index] = batch.masked_labels
    inputs = {
        "input_ids": spread(batch.input_ids, 0),
        "token_type_ids": spread(batch.token_type_ids, 0),
        "labels": spread(labels, -100),
        "sentence_order_label": batch.sop_labels,
    }
    # without padding transformers needs no mask, and is faster without one
    return inputs if bool(inside.all()) else {**inputs, "attention_mask": inside.long()}


def their_step(config: AlbertConfig, way: str) -> Callable[..., Tensor]:
    """Return a step of `AlbertForPreTraining` on padded inputs; the way is one of WAYS."""
    attention, dtype = way.split()
    torch.manual_seed(0)
    model = transformers.AlbertForPreTraining(their_config(config, attention)).train()
    return training_step(model, half=dtype == "bf16")


def loader(pairs: Sequence[tuple[str, str]], vocabulary: str, batch_size: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches of pairs forever as users make them.

    Pairs are tokenised beforehand; transformers' collator in a DataLoader shuffles, pads and masks them.
    """
    tokenizer = transformers.BertTokenizerFast(vocab=vocabulary)
    encoded = tokenizer(
        [a for a, _ in pairs],
        [b for _, b in pairs],
        truncation=True,
        max_length=128,
        return_special_tokens_mask=True,
    )
    rows = [
        {**{name: values[i] for name, values in encoded.items()}, "sentence_order_label": i % 2}
        for i in range(len(pairs))
    ]
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    batches = torch.utils.data.DataLoader(
        rows, batch_size=batch_size, shuffle=True, drop_last=True, collate_fn=collate
    )
    while True:
        for batch in batches:
            yield dict(batch)
