"""The CPU that C text is rendered for: how wide its vectors are and how many registers it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """`vector_bytes`: 16 (SSE, NEON), 32 (AVX2) or 64 (AVX-512); `registers` of that width."""

    vector_bytes: int = 32
    registers: int = 16

    @property
    def lanes(self) -> int:
        """Elements of every vector, whatever its dtype: a register of float32."""
        return self.vector_bytes // 4


def for_cpu(arch: str, vector_bytes: int) -> Target:
    """The target of an architecture (x86_64 or aarch64) with vectors of that many bytes.

    Raises:
        ValueError: a width other than 16, 32 or 64.
    """
    if vector_bytes not in (16, 32, 64):
        raise ValueError(f"vectors of {vector_bytes} bytes: must be 16, 32 or 64")
    return Target(vector_bytes, 32 if arch == "aarch64" or vector_bytes == 64 else 16)
