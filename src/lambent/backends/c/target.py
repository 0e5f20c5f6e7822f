"""The CPU that C text is rendered for: how wide its vectors are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """`vector_bytes`: 16 (SSE, NEON), 32 (AVX2) or 64 (AVX-512).

    Raises:
        ValueError: another width.
    """

    vector_bytes: int = 32

    def __post_init__(self) -> None:
        if self.vector_bytes not in (16, 32, 64):
            raise ValueError(f"vectors of {self.vector_bytes} bytes: must be 16, 32 or 64")

    @property
    def lanes(self) -> int:
        """Elements of every vector, whatever its dtype: a register of float32."""
        return self.vector_bytes // 4
