"""Combinations of fields, and what their categories say about the target.

A *cross* is several fields taken together: user x item. Its *evidence* for a row is the shrunken
mean residual of the rows with the same crossed category, never including the row's own label.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily
from .evidence import Evidence, draw_folds
from .search import find_crosses

if TYPE_CHECKING:
    from .vocabulary import CrossedVocabulary

__all__ = ["CrossedVocabulary", "Evidence", "draw_folds", "find_crosses"]

__getattr__ = lazily(__name__, {"CrossedVocabulary": ".vocabulary"})  # needs polars
