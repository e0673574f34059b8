"""`FieldEncoder`: a table of strings, numbers and times to codes, under scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..errors import DataError, SchemaError
from .chunks import Chunk, Source
from .frames import to_frame
from .learn import Learner
from .profiling import infer_schema, profile
from .readers import is_source, open_source
from .schema import Schema, check_names
from .vocabulary import Vocabulary

__all__ = ["FieldEncoder"]


class FieldEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns each field's categories and encodes them as small whole numbers.

    Parameters
    ----------
    kinds : dict of column to "category", "numeric", "time", "quantile", "log2" or "linear"
        Overrides of the guesses (see `fieldwise.data.profiling`).
    drop : columns to leave out.
    min_count : categories seen less often share the field's rare row, code 0.
    unseen : "mean" (code -1), "rare" (code 0) or "error", for values never seen in training.
    n_bins : quantile bins of a numeric field, at most.
    fields : dict of field to settings of that field alone, such as {"age": {"edges": (18, 65)}}.
    schema : a whole `Schema` instead of all of the above.

    Attributes
    ----------
    vocabulary_ : Vocabulary, with `schema_`, its settled schema.

    Codes do not depend on the order of rows, the number of threads or the hash seed. A missing
    value is a category like any other. A linear field's column carries its value (scaled to mean 0
    and spread 1, NaN where missing) and makes the output float64; otherwise it is int32.
    """

    def __init__(
        self,
        *,
        kinds: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        min_count: int = 2,
        unseen: str = "mean",
        n_bins: int = 32,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self.kinds = kinds
        self.drop = drop
        self.min_count = min_count
        self.unseen = unseen
        self.n_bins = n_bins
        self.fields = fields
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> FieldEncoder:
        """Learn the fields of X: a frame, an array, a path or anything `open_source` takes."""
        self._columns: list[str] = []
        source = self._source(X, reset=True)
        if self.schema is not None:
            check_names(self.schema.columns, source.columns, "column")
        schema = self.schema or infer_schema(
            profile(source, columns=[c for c in source.columns if c not in set(self.drop)]),
            kinds=self.kinds,
            fields=self.fields,
            min_count=self.min_count,
            unseen=self.unseen,
            n_bins=self.n_bins,
        )
        self.vocabulary_ = _learn(source, schema, None)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> FieldEncoder:
        """Learn from more rows. New categories come after those that are there; a rare one that
        has now been seen often enough gets a row of its own. No code moves."""
        if not hasattr(self, "vocabulary_"):
            return self.fit(X, y)
        source = self._source(X, reset=False)
        self.vocabulary_ = _learn(source, self.schema_, self.vocabulary_)
        return self

    @property
    def schema_(self) -> Schema:
        return self.vocabulary_.schema

    def transform(self, X: Any) -> np.ndarray:
        """codes (n, m)"""
        check_is_fitted(self)
        parts = [self._encode(c) for c in self._source(X, reset=False).chunks()]
        return np.concatenate(parts)

    def _encode(self, chunk: Chunk) -> np.ndarray:
        codes, values = self.vocabulary_.encode(chunk)
        linear = self.schema_.linear
        if not linear:
            return codes
        out = codes.astype(np.float64)
        out[:, linear] = np.where(codes[:, linear] == 0, values, np.nan)
        return out

    def inverse_transform(self, X: Any) -> Any:
        """Codes back to values: a polars frame, or pandas after set_output(transform="pandas").

        Missing, rare and unseen give null, a bin its middle, a linear field its value.
        """
        check_is_fitted(self)
        try:
            array = np.asarray(to_frame(X).to_numpy() if hasattr(X, "columns") else X, np.float64)
        except ValueError as error:
            raise DataError(f"codes must be numbers: {error}") from error
        if array.ndim != 2 or array.shape[1] != len(self.schema_):
            raise DataError(f"codes of shape {array.shape}; expected (n, {len(self.schema_)})")
        linear = self.schema_.linear
        values = array[:, linear].astype(np.float32)
        codes = np.where(np.isnan(array), 1, array).astype(np.int32)
        codes[:, linear] = np.isnan(values)
        decoded = self.vocabulary_.decode(codes, values)
        config = getattr(self, "_sklearn_output_config", {})
        if config.get("transform") == "pandas":
            import pandas

            return pandas.DataFrame({c: decoded[c].to_list() for c in decoded.columns})
        return decoded

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        check_is_fitted(self)
        if input_features is not None:
            given = [str(n) for n in input_features]
            known = list(getattr(self, "feature_names_in_", self._columns))
            if given != known:
                raise SchemaError("input_features is not equal to feature_names_in_")
        return np.asarray(self.schema_.names, dtype=object)

    def _source(self, X: Any, *, reset: bool) -> Source:
        if isinstance(X, (str, Path)) or is_source(X):
            source = open_source(X)
            if reset:
                self.n_features_in_ = len(source.columns)
                self.feature_names_in_ = np.asarray(source.columns, dtype=object)
            else:
                check_names(self.schema_.columns, source.columns, "column")
        else:
            if isinstance(X, (pl.LazyFrame, Mapping)) and not hasattr(X, "toarray"):
                X = to_frame(X)
            shape: tuple[int, ...] = getattr(X, "shape", ())
            if len(shape) == 2 and 0 in shape:
                what = "sample(s)" if shape[0] == 0 else "feature(s)"
                raise DataError(
                    f"Found array with 0 {what} (shape={tuple(shape)}) "
                    "while a minimum of 1 is required."
                )
            frame = to_frame(X)  # before scikit-learn looks, for our own errors
            validate_data(self, X, reset=reset, skip_check_array=True)
            if not reset and not set(self._columns) & set(frame.columns):
                frame.columns = self._columns  # an array, after names were learned
            check_names(self.schema_.columns if not reset else [], frame.columns, "column")
            source = open_source(frame)
        if reset:
            self._columns = list(source.columns)
            check_names(self.drop, source.columns, "column in drop")
        return source

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _learn(source: Source, schema: Schema, start: Vocabulary | None) -> Vocabulary:
    learner = Learner(schema, start)
    for chunk in source.chunks():
        learner.add(chunk)
    return learner.finish()
