"""Checkpoints: a training run on disk, which continues after a kill as if nothing had happened.

    checkpoint/
      checkpoint.json     where the run stands, and the files below with their checksums
      table-7.bin         and state-7.bin, best-7.bin: raw float32

Needs NumPy and nothing else.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import StoreError
from .files import checksum, disk_errors, read_sealed, sealed, sync_folder, write_atomically

__all__ = ["agree", "checked", "keep_only", "load", "save", "write_array"]

FORMAT = 1
NAME = "checkpoint.json"
PIECE = 4096  # rows of an array written at a time


def save(folder: Path, progress: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint atomically; the previous one is removed once the new one is complete."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        old = _generation(folder)
        described: dict[str, Any] = {}
        for name, array in arrays.items():
            described[name] = write_array(folder / f"{name}-{old + 1}.bin", array)
        sync_folder(folder)
        body = {"format": FORMAT, "generation": old + 1, "arrays": described, **progress}
        write_atomically(folder / NAME, sealed(body))
    keep_only(folder, (d["file"] for d in described.values()))


def write_array(file: Path, array: np.ndarray) -> dict[str, Any]:
    """Write an array and sync it; returns the description by which `checked` verifies it."""
    total = 0
    with file.open("wb") as out:
        for start in range(0, len(array), PIECE):
            piece = np.ascontiguousarray(array[start : start + PIECE])
            total = zlib.crc32(piece.reshape(-1).view(np.uint8).data, total)
            out.write(piece.reshape(-1).view(np.uint8).data)
        out.flush()
        os.fsync(out.fileno())
    return {
        "file": file.name,
        "checksum": total,
        "shape": list(array.shape),
        "dtype": array.dtype.str,
    }


def checked(folder: Path, said: Mapping[str, Any]) -> np.ndarray:
    """Map an array that `write_array` wrote; raises, naming the file, unless it is intact."""
    file = folder / said["file"]
    dtype = np.dtype(said["dtype"])
    if file.parent != folder or dtype.kind not in "biuf":
        raise StoreError(f"{folder / NAME} is damaged: {said} does not describe one of its arrays")
    count = math.prod(said["shape"])
    is_whole = file.is_file() and file.stat().st_size == count * dtype.itemsize
    if is_whole and checksum(file) == said["checksum"]:
        flat = np.memmap(file, dtype, "r") if count else np.zeros(0, dtype)
        return flat.reshape(said["shape"])
    raise StoreError(f"{file} is missing or was altered; start the training again")


def keep_only(folder: Path, names: Iterable[str]) -> None:
    """Remove all files of the folder but the checkpoint's header and `names`."""
    kept = {NAME, *names}
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink()


def agree(is_due: bool) -> bool:
    """Whether a checkpoint is due. With several workers the first decides for all; here is one."""
    return is_due


def _generation(folder: Path) -> int:
    numbers = [p.stem.rsplit("-", 1)[-1] for p in folder.glob("*-*.bin")]
    return max((int(n) for n in numbers if n.isdigit()), default=0)


def load(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """The progress and the arrays that were saved; None if there is no checkpoint."""
    if not (folder / NAME).exists():
        return None
    body = read_sealed(folder / NAME, newest=FORMAT, what="checkpoint")
    if "shards" in body:
        raise StoreError(
            f"{folder} is the checkpoint of a run of several workers; continue with any number of "
            "workers, even one: torchrun --nproc-per-node 1 -m fieldwise train"
        )
    try:
        return body, {name: checked(folder, said) for name, said in body.pop("arrays").items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{folder / NAME} is damaged: {error!r}") from error
