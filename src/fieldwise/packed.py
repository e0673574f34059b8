"""A table of parameters in fewer bits: each row has a scale, and its entries are int8 or float16
times that scale; biases stay float32. `engines.cpu.score` reads it directly; `decoded` gives the
float32 table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["STORAGE", "Packed", "pack"]

STORAGE = {"int8": 127.0, "float16": 1.0}  # kind of entry: the largest magnitude in a row


@dataclass(frozen=True)
class Packed:
    """entries (n, R) int8, or uint16 that hold the bits of float16; scale (n,) and bias (n, K)
    float32. `about` says how it was made."""

    entries: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "int8" if self.entries.dtype == np.int8 else "float16"

    @property
    def shape(self) -> tuple[int, int]:
        """(n, R + K), the shape of the decoded table"""
        return len(self.entries), self.entries.shape[1] + self.bias.shape[1]

    def __len__(self) -> int:
        return len(self.entries)

    def decoded(self, rows: Any = slice(None)) -> np.ndarray:
        """The float32 table (n, R + K), or some of its rows"""
        entries = self.entries[rows]
        numbers = entries if self.kind == "int8" else entries.view(np.float16)
        scaled = numbers.astype(np.float32) * self.scale[rows][:, None]
        return np.concatenate([scaled, self.bias[rows]], axis=1)


def pack(table: np.ndarray, n_columns: int, kind: str) -> Packed:
    """Pack table (n, R + K), biases last, rounding every entry to the nearest"""
    numbers = np.asarray(table[:, :n_columns], np.float32)
    size = np.abs(numbers).max(axis=1, initial=0.0)
    scale = np.where(size > 0, size / np.float32(STORAGE[kind]), 1).astype(np.float32)
    parts = numbers / scale[:, None]
    if kind == "int8":
        entries = np.clip(np.rint(parts), -127, 127).astype(np.int8)
    else:
        entries = parts.astype(np.float16).view(np.uint16)
    return Packed(entries, scale, np.array(table[:, n_columns:], np.float32))
