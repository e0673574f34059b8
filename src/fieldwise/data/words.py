"""A store's vocabulary, loaded lazily: the number of categories and their counts need only NumPy,
the categories themselves are parsed on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SchemaError, StoreError
from .store import Store

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

__all__ = ["StoredWords"]


class StoredWords:
    """Stands in for the `Vocabulary` of a store."""

    evidence = None  # a store has no crosses

    def __init__(self, store: Store) -> None:
        self.schema = store.schema
        self._path = store.path
        self._content = store.vocabulary_bytes()
        self._counts = store.counts()

    @property
    def sizes(self) -> list[int]:
        """d_1 .. d_m"""
        return [len(c) for c in self._counts]

    def counts(self) -> np.ndarray:
        """(d,) how often each category of every field was seen"""
        return np.concatenate(self._counts)

    def to_bytes(self) -> bytes:
        return self._content

    @cached_property
    def opened(self) -> Vocabulary:
        from .vocabulary import Vocabulary

        try:
            found = Vocabulary.from_bytes(self.schema, self._content)
        except SchemaError as error:
            raise StoreError(f"{self._path}: {error}") from error
        if found.sizes != self.sizes:
            raise StoreError(
                f"{self._path} is damaged: its vocabulary has {found.sizes} categories by field, "
                f"its counts {self.sizes}; encode again"
            )
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copy and pickle
            raise AttributeError(name)
        return getattr(self.opened, name)

    def __getitem__(self, name: str) -> Any:
        return self.opened[name]
