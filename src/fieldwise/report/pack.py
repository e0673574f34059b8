"""Categories for the page, in few bytes: an index of all of them, and cards of the largest.

The index is two pieces of gzip in base64: the names as JSON, and five columns of unsigned 32-bit
numbers (field, count, bias, main effect, distance), each as four planes of bytes, so that planes of
zeros cost nothing. Counts are stored as differences to the next; the last three are quantised.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .text import plain

__all__ = ["fitting", "pack_cards", "pack_index", "packed"]

FINE, COARSE, UNKNOWN = 65534, 4095, 65535  # steps from the lowest number to the highest
MANY = 100_000  # categories; with more, quantisation is coarser to save bytes
NUMBERS = ("bias", "main", "distance")


def packed(body: bytes) -> str:
    return base64.b64encode(gzip.compress(body, 6, mtime=0)).decode()


def pack_index(categories: Mapping[str, Any], n: int) -> dict[str, Any]:
    """The n most frequent categories: names and columns, and what the page needs to read them."""
    count = np.asarray(categories["count"], np.int64)
    order = np.argsort(-count, kind="stable")[:n]
    names = [str(categories["name"][k]) for k in order]
    falling = count[order]
    columns = [np.asarray(categories["field"])[order], np.diff(falling[::-1], prepend=0)[::-1]]
    scales = []
    for key in NUMBERS:
        steps, low, step = _steps(np.asarray(categories[key], float)[order])
        columns.append(steps)
        scales.append([low, step])
    planes = np.stack(columns).astype("<u4").view(np.uint8).reshape(len(columns), -1, 4)
    return {
        "names": packed(json.dumps(names, ensure_ascii=False).encode("utf-8", "replace")),
        "columns": packed(planes.transpose(0, 2, 1).tobytes()),
        "scales": scales,
        "n": len(names),
    }


def _steps(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    step = (high - low) / (FINE if len(values) <= MANY else COARSE) or 1.0
    found = np.full(len(values), UNKNOWN)
    at = np.isfinite(values)
    found[at] = np.rint((values[at] - low) / step)
    return found, low, step


def pack_cards(cards: Sequence[Mapping[str, Any]], n: int) -> str:
    body = plain(cards[:n])
    return packed(json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode())


def fitting(pack: Callable[[int], Any], n: int, size: Callable[[Any], int], room: int) -> Any:
    """`pack` of as many of n things as fit into `room` bytes."""
    while True:
        body = pack(n)
        if n == 0 or size(body) <= room:
            return body
        n = min(n - 1, int(n * 0.97 * room / size(body)))
