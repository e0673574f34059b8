"""Combinations of fields, and what their categories are known to say.

A *cross* is some fields taken together: user x item. Its *evidence* for a row is the shrunken mean
residual of the rows that share its crossed category, the row's own label never among them.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily
from .evidence import Evidence, draw_folds
from .search import find_crosses

if TYPE_CHECKING:
    from .vocabulary import CrossedVocabulary

__all__ = ["CrossedVocabulary", "Evidence", "draw_folds", "find_crosses"]

__getattr__ = lazily(__name__, {"CrossedVocabulary": ".vocabulary"})  # which needs polars
