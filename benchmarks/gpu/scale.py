"""Amount and shapes of the work that `benchmarks.gpu` measures."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

VOCABULARY, TOKENS = 21128, 65536
# the kernels run on a CPU in Triton's interpreter only, and there claims alone need them
SMALL: dict[str, Any] = {"device": "cpu", "tokens": 128, "vocabulary": 500, "kernels": "auto"}


@dataclass(frozen=True)
class Scale:
    """Real sizes on a GPU, small ones to test the code."""

    device: str = "cuda"
    tokens: int = TOKENS
    vocabulary: int = VOCABULARY
    kernels: str = "triton"  # for `kernels.use`

    @classmethod
    def here(cls, **changes: Any) -> Scale:
        """The scale of a GPU, or the small one where there is none."""
        small = {} if torch.cuda.is_available() else SMALL
        return cls(**{**small, **changes})

    @property
    def is_small(self) -> bool:
        return self.device == "cpu"

    @property
    def checked(self) -> str:
        """The kernels that claims are about."""
        return "triton" if os.environ.get("TRITON_INTERPRET") == "1" else self.kernels

    @property
    def masked(self) -> int:
        return int(0.15 * self.tokens)

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32


def lengths_of(mix: str, longest: int, tokens: int) -> list[int]:
    """Draw lengths that fill a batch: all the longest ("full"), or "mixed" as in BERT's recipe.

    Nine in ten are within a tenth of the longest, the others anywhere (Devlin et al. 2019's
    create_pretraining_data, 10% short).
    """
    if mix == "full":
        return [longest] * (tokens // longest)
    rng, lengths = random.Random(0), []
    while sum(lengths) < tokens:
        short = rng.random() < 0.1
        lengths.append(rng.randint(5, longest) if short else rng.randint(longest * 9 // 10, longest))
    lengths[-1] -= sum(lengths) - tokens
    return lengths


def offsets(lengths: list[int], device: str) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
