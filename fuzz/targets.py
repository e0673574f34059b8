"""All targets by name, what each is begun with, and how many inputs it has in a long run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # small models of every kind are there

__all__ = ["ALLOTTED", "CORPUS", "seeds", "target"]

CORPUS = Path(__file__).parent / "corpus"  # inputs that once failed, a folder a target
# Of every room the targets, with thousands of inputs each: whole tables and commands have few.
ROOMS = {
    "tables": {
        **{"text": 30, "gzip": 10, "zstd": 5, "archive": 50, "written": 10, "libffm": 10},
        **{"named": 30, "glob": 100, "binary": 2},
    },
    "coding": {"value": 40, "table": 1},
    "folders": {
        **{"header": 500, "schema": 60, "store": 15, "sealed-store": 10, "checkpoint": 20},
        **{"model": 5, "sealed-model": 5},
    },
    "requests": {"lookup": 40, "predict": 20, "rank": 5, "batch": 2},
    "commands": {"config": 150, "arguments": 1},
}
ALLOTTED = {name: given for room in ROOMS.values() for name, given in room.items()}


def target(name: str) -> Callable[[bytes], None]:
    return _room(name).TARGETS[name]


def seeds(name: str) -> list[bytes]:
    """What a target is begun with: usual inputs, and those that once failed."""
    kept = sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []
    usual = _room(name).SEEDS.get(name) or [bytes(range(k, 255, 7)) for k in range(8)]
    return [*usual, *(path.read_bytes() for path in kept)]


def _room(name: str):
    """The module of a target; the others are not imported."""
    room = next(room for room, names in ROOMS.items() if name in names)
    return importlib.import_module(f"{__package__}.{room}")
