"""Models as files that score without fieldwise: `export(model, path, to="onnx")`.

Every format is a module of this package with a function `write(model, path, **options)`, which
refuses a model that the format cannot carry and names the reason.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import SettingError, not_one_of
from ..model import FieldwiseModel

__all__ = ["FORMATS", "export"]

FORMATS = ("onnx", "sql", "python")


def export(
    model: FieldwiseModel | str | Path, path: str | Path, to: str = "onnx", **options: Any
) -> Path:
    """Write a model, or the one in a folder, as a file of another format; returns the path.

    The file is complete or left as it was. `options` are those of the format's `write`.
    """
    if to not in FORMATS:
        raise not_one_of(f"to={to!r}", to, FORMATS)
    write = import_module(f".{to}", __name__).write
    known = list(inspect.signature(write).parameters)[2:]
    for name in options:
        if name not in known:
            words = ", ".join(known) or "none"
            raise SettingError(f"{name!r} is not an option of {to}; it has {words}")
    if not isinstance(model, FieldwiseModel):
        model = FieldwiseModel.load(model)
    path = Path(path)
    write(model, path, **options)
    return path
