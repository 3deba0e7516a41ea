"""Operators of the encoder: Triton kernels on CUDA, each beside the torch reference that runs elsewhere."""

from kernels.attention import Schedule as Schedule
from kernels.attention import attention as attention
from kernels.attention import attention_schedule as attention_schedule
from kernels.bias_gelu import bias_gelu as bias_gelu
from kernels.bias_gelu import linear_gelu as linear_gelu
from kernels.dispatch import KernelError as KernelError
from kernels.dispatch import use as use
from kernels.dropout import dropout as dropout
from kernels.embedding import embed as embed
from kernels.head_projections import merge_heads as merge_heads
from kernels.head_projections import split_heads as split_heads
from kernels.layer_norm import add_layer_norm as add_layer_norm
from kernels.layer_norm import linear_add_layer_norm as linear_add_layer_norm
from kernels.linear import copied_once as copied_once
from kernels.linear import linear as linear
from kernels.linear import linear_and_residual as linear_and_residual
from kernels.mlm_loss import mlm_loss as mlm_loss
from kernels.shapes import fill as fill
from kernels.shapes import filler as filler
