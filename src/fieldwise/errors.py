"""Every error a user can cause, so that one `except FieldwiseError` catches them all.

    FieldwiseError
    |-- DataError      the input cannot be read, or holds what no field can take
    |   `-- NoRows     the input is a table, but without rows
    |-- SchemaError    columns, kinds or settings of fields that do not fit the table
    |-- StoreError     an encoded table that is cut short, altered, or of another schema
    |-- ModelError     a model folder with a missing or altered file, or of a newer format
    |-- TrainingError  the loss is no longer a number
    |-- SettingError   an argument out of its range
    `-- MissingExtra   an optional package that is not installed

Each names the thing, the value, the limit and the remedy. `DataError`, `SchemaError` and
`SettingError` are also `ValueError`, as scikit-learn's callers expect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

__all__ = [
    "DataError",
    "FieldwiseError",
    "MissingExtra",
    "ModelError",
    "NoRows",
    "SchemaError",
    "SettingError",
    "StoreError",
    "TrainingError",
    "not_one_of",
    "unknown_column",
]


class FieldwiseError(Exception):
    """The root of every error fieldwise raises on purpose."""


class DataError(FieldwiseError, ValueError):
    """The input cannot be read, or holds what no field can take."""


class NoRows(DataError):
    """The input is a table, but without rows."""


class SchemaError(FieldwiseError, ValueError):
    """Columns, kinds or settings of fields that do not fit the table."""


class StoreError(FieldwiseError):
    """An encoded table that is cut short, altered, or of another schema."""


class ModelError(FieldwiseError):
    """A model folder with a missing or altered file, or of a newer format."""


class TrainingError(FieldwiseError):
    """The loss is no longer a number."""


class SettingError(FieldwiseError, ValueError):
    """An argument out of its range."""


class MissingExtra(FieldwiseError, ImportError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed; run: pip install "fieldwise[{extra}]"')


def unknown_column(name: str, columns: Iterable[str], *, what: str = "column") -> SchemaError:
    """The error for a missing column; suggests the nearest existing one."""
    columns = list(columns)
    shown = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
    return SchemaError(
        f"{what} {name!r} is not in the table; it has {shown}.{_hint(name, columns)}"
    )


def not_one_of(
    what: str,
    value: object,
    choices: Iterable[str],
    *,
    known: Mapping[str, str] | None = None,
    error: type[FieldwiseError] = SettingError,
) -> FieldwiseError:
    """The error for a setting that must be one of `choices`; suggests the nearest. `known` maps
    other names to choices."""
    choices = list(choices)
    hint = _hint(str(value), choices, known)
    return error(f"{what} is not one of {', '.join(choices[:20])}" + (f".{hint}" if hint else ""))


def _hint(name: str, choices: Iterable[str], known: Mapping[str, str] | None = None) -> str:
    meant = {choice.lower(): choice for choice in choices} | (dict(known) if known else {})
    near = difflib.get_close_matches(name.lower(), meant, n=1)
    return f" Did you mean {meant[near[0]]!r}?" if near else ""
