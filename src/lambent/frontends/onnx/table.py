"""The operator table: (domain, name) → row. What is not here and has no body of its own is refused.

Operators that ONNX itself defines as functions of others need no row: their bodies are imported.
"""

from __future__ import annotations

from lambent.frontends.onnx import (
    control,
    elementwise,
    indexing,
    quantised,
    reducing,
    sampling,
    shaping,
    spatial,
    spectral,
)
from lambent.frontends.onnx.node import Row

_PARTS = (
    control, elementwise, indexing, quantised, reducing, sampling, shaping, spatial, spectral,
)  # fmt: skip

TABLE: dict[tuple[str, str], Row] = {
    ("", name): row for part in _PARTS for name, row in sorted(part.ROWS.items())
}

ADVICE: dict[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
         "RandomUniformLike"),
        "it draws random numbers; give them as an input",
    ),
    **dict.fromkeys(
        ("NonMaxSuppression", "Unique"),
        "the size of its result depends on data; lambent.compile_onnx runs it on the host",
    ),
    **dict.fromkeys(
        ("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
         "TfIdfVectorizer"),
        "it works on text or files; do it before the model",
    ),
}  # fmt: skip
"""The way out, for operators that are refused."""
