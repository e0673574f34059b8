"""Smaller models that predict the same: fewer ranks, rows, fields and bits, as far as a table to
judge by allows, with a bound on what any score can change by."""

from .._lazy import lazily

_WHERE = {"Compression": ".plan", "compress": ".plan"}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
