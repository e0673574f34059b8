"""A training run on disk, so that it goes on after a kill as if nothing had happened.

    checkpoint/
      checkpoint.json     where the run stands, and the files below with their checksums
      table-7.bin         and state-7.bin, best-7.bin: raw float32

Needs NumPy and nothing else.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import StoreError
from .files import disk_errors, read_sealed, sealed, sync_folder, write_atomically

__all__ = ["load", "save"]

FORMAT = 1
NAME = "checkpoint.json"


def save(folder: Path, progress: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """All of it or nothing; the one before is removed once the new one counts."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        old = _generation(folder)
        described: dict[str, Any] = {}
        for name, array in arrays.items():
            file = folder / f"{name}-{old + 1}.bin"
            checksum = 0
            with file.open("wb") as out:
                for start in range(0, len(array), 4096):
                    piece = np.ascontiguousarray(array[start : start + 4096])
                    checksum = zlib.crc32(piece.reshape(-1).view(np.uint8).data, checksum)
                    out.write(piece.reshape(-1).view(np.uint8).data)
                out.flush()
                os.fsync(out.fileno())
            described[name] = {
                "file": file.name,
                "checksum": checksum,
                "shape": list(array.shape),
                "dtype": array.dtype.str,
            }
        sync_folder(folder)
        body = {"format": FORMAT, "generation": old + 1, "arrays": described, **progress}
        write_atomically(folder / NAME, sealed(body))
    kept = {NAME, *(d["file"] for d in described.values())}
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink()


def _generation(folder: Path) -> int:
    numbers = [p.stem.rsplit("-", 1)[-1] for p in folder.glob("*-*.bin")]
    return max((int(n) for n in numbers if n.isdigit()), default=0)


def load(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Where the run stood and its arrays; None where there is no checkpoint."""
    if not (folder / NAME).exists():
        return None
    body = read_sealed(folder / NAME, newest=FORMAT, what="checkpoint")
    arrays = {}
    for name, said in body.pop("arrays").items():
        file = folder / said["file"]
        content = file.read_bytes() if file.exists() else b""
        if zlib.crc32(content) != said["checksum"]:
            raise StoreError(f"{file} is missing or was altered; start the training again")
        arrays[name] = np.frombuffer(content, dtype=said["dtype"]).reshape(said["shape"])
    return body, arrays
