"""Operators of the encoder: Triton kernels on CUDA, each beside the torch reference that runs elsewhere."""

from kernels.attention import Schedule, attention, attention_schedule
from kernels.bias_gelu import bias_gelu, linear_gelu
from kernels.dispatch import KernelError, use
from kernels.dropout import dropout
from kernels.embedding import embed
from kernels.head_projections import merge_heads, split_heads
from kernels.layer_norm import add_layer_norm, linear_add_layer_norm
from kernels.linear import copied_once, linear, linear_and_residual
from kernels.mlm_loss import mlm_loss
from kernels.shapes import fill, filler

__all__ = [
    "KernelError",
    "Schedule",
    "add_layer_norm",
    "attention",
    "attention_schedule",
    "bias_gelu",
    "copied_once",
    "dropout",
    "embed",
    "fill",
    "filler",
    "linear",
    "linear_add_layer_norm",
    "linear_and_residual",
    "linear_gelu",
    "merge_heads",
    "mlm_loss",
    "split_heads",
    "use",
]
