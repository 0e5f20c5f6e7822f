"""Optimisers as graph, written with Tensor alone: forward, backward and step are one program."""

from lambent.optim.optimizer import Optimizer, clip_by_global_norm
from lambent.optim.rules import SGD, Adam, AdamW, Lion, Muon, Rule
from lambent.optim.schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    linear,
    stairs,
    warmup,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "Rule",
    "Schedule",
    "clip_by_global_norm",
    "constant",
    "cosine",
    "exponential",
    "linear",
    "stairs",
    "warmup",
]
