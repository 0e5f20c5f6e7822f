"""Which kernels a library's routine computes: candidates of the search like any other."""

from __future__ import annotations

import os


def allowed() -> bool:
    """Whether libraries take part in searches: not if LAMBENT_LIBRARIES is 0."""
    return os.environ.get("LAMBENT_LIBRARIES", "1") != "0"
