"""Modules, written with Tensor alone."""

from lambent.nn.attention import EncoderBlock, MultiHeadAttention
from lambent.nn.bert import Bert, SentenceEncoder
from lambent.nn.layers import (
    Conv1d,
    Conv2d,
    Conv3d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    RMSNorm,
)
from lambent.nn.module import Module, parameter, seed, skip_init

__all__ = [
    "Bert",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "EncoderBlock",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "RMSNorm",
    "SentenceEncoder",
    "parameter",
    "seed",
    "skip_init",
]
