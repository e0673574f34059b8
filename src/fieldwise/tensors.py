"""Arrays on disk in the safetensors format, written by hand (a table may be trained where that
package is not installed), and mapped rather than read."""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ModelError

__all__ = ["mapped", "write_tensors"]

WRITE_ROWS = 1 << 14
MOST_HEADER = 1 << 20  # ours have a few hundred bytes


# What safetensors calls them.
KINDS = {"float32": "F32", "float64": "F64", "float16": "F16", "int8": "I8"}


def write_tensors(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors to a file: the length of a JSON header, the header, then their data."""
    said, end = {}, 0
    for name, rows in tensors.items():
        first, end = end, end + rows.dtype.itemsize * rows.size
        about = {"dtype": KINDS[rows.dtype.name], "shape": list(rows.shape)}
        said[name] = {**about, "data_offsets": [first, end]}
    header = json.dumps(said).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as content:
        content.write(struct.pack("<Q", len(header)) + header)
        for rows in tensors.values():
            kind = rows.dtype.newbyteorder("<")
            for low in range(0, len(rows), WRITE_ROWS):
                content.write(np.ascontiguousarray(rows[low : low + WRITE_ROWS], kind).data)


def mapped(file: Path, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Map a tensor of a safetensors file; pages are read when touched."""
    kind, size = KINDS[np.dtype(dtype).name], file.stat().st_size
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
            said = json.loads(content.read(min(length, MOST_HEADER)))[name]
        if said["dtype"] != kind or tuple(said["shape"]) != shape:
            held = f"{said['shape']} {said['dtype']}"
            raise ModelError(f"{file} holds {held}, expected {shape} {kind}")
        first, end = map(operator.index, said["data_offsets"])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{file} is damaged: {error!r}") from error
    first, end = first + 8 + length, end + 8 + length
    item = np.dtype(dtype).itemsize
    if first < 8 + length or first % item or end > size or end - first != math.prod(shape) * item:
        raise ModelError(f"{file} is damaged: {name} is at {first} to {end} of {size} bytes")
    if 0 in shape:  # an empty map is an error
        return np.zeros(shape, dtype)
    # Copy on write: the kernels see a plain writable array, and nothing is written back.
    return np.memmap(file, dtype, "c", first, shape).view(np.ndarray)
