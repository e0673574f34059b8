"""Public names imported on first use, so that `import fieldwise` is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that live in other modules of the package."""

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(where[name], package), name)

    return get
