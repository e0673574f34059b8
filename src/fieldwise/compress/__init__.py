"""Smaller models with the same predictions: fewer ranks, rows, fields and bits, as far as the loss
on a validation table allows, with a bound on the change of any score."""

from .._lazy import lazily

_WHERE = {"Compression": ".plan", "compress": ".plan"}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
