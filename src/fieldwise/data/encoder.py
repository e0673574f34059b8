"""`FieldEncoder`: a table of strings, numbers and times to codes, under scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..errors import DataError, SchemaError
from .chunks import Source
from .frames import to_frame
from .inferring import infer_schema
from .learn import Learner
from .profiling import profile
from .readers import is_paths, is_source, open_source
from .schema import Schema, check_names, slot_positions
from .shuffle import wide_values

__all__ = ["FieldEncoder"]

EMPTY_CODE = -2  # of a list that is shorter than others, in what `transform` gives


class FieldEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns each field's categories and encodes them as small whole numbers.

    Parameters
    ----------
    kinds : what a column is, where the guess is wrong: a dict of column to "category", "numeric",
        "time", "quantile", "log2", "linear", or for text with several values "list:" and what is
        between them.
    drop : columns to leave out.
    min_count : categories seen less often share the field's rare row, code 0.
    unseen : "mean" (code -1), "rare" (code 0) or "error", for values never seen in training.
    n_bins : quantile bins of a numeric field, at most.
    fields : dict of field to settings of that field alone, such as {"age": {"edges": (18, 65)}}.
    resolutions : numbers in bins are fields of finer bins too, and whole ones that repeat of their
        values.
    schema : a whole `Schema` instead of all of the above.

    Attributes
    ----------
    vocabulary_ : Vocabulary, with `schema_`, its settled schema.

    Codes do not depend on the order of rows, the number of threads or the hash seed. A missing
    value is a category like any other. A linear field's column carries its value (scaled to mean 0
    and spread 1, NaN where missing) and makes the output float64; otherwise it is int32. A list has
    as many columns as the longest one seen has values; -2 where a row has fewer.
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
        resolutions: bool = False,
        schema: Schema | None = None,
    ) -> None:
        self.kinds = kinds
        self.drop = drop
        self.min_count = min_count
        self.unseen = unseen
        self.n_bins = n_bins
        self.fields = fields
        self.resolutions = resolutions
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> FieldEncoder:
        """Learn the fields of X: a frame, an array, a path or anything `open_source` takes."""
        for _ in self._learn(X):
            pass
        return self

    def fit_transform(self, X: Any, y: Any = None, **_: Any) -> np.ndarray:
        """fit and transform, without looking everything up a second time."""
        return self._output(*self.fit_codes(X))

    def fit_codes(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """fit, and codes (n, S) and values (n, valued slots) as a store has them."""
        codes, values = map(np.concatenate, zip(*self._learn(X), strict=True))
        return codes, values

    def codes(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """codes (n, S) and values (n, valued slots) as a store has them."""
        check_is_fitted(self)
        parts = [self.vocabulary_.encode(c) for c in self._source(X, reset=False).chunks()]
        codes, values = map(np.concatenate, zip(*parts, strict=True))
        return codes, values

    def _learn(self, X: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Learns, then gives the rows' codes and values, a chunk at a time."""
        self._columns: list[str] = []
        source = self._source(X, reset=True)
        schema = self._chosen_schema(source)
        learner = Learner(schema)
        seen = [learner.add(chunk) for chunk in source.chunks()]
        self.vocabulary_ = learner.finish()
        return (learner.settle(rows, self.vocabulary_) for rows in seen)

    def _chosen_schema(self, source: Source) -> Schema:
        if self.schema is None:
            left_out = {*self.drop, source.target}
            return infer_schema(
                profile(
                    source,
                    columns=[c for c in source.columns if c not in left_out],
                    kinds=self.kinds,
                ),
                kinds=self.kinds,
                fields=self.fields,
                min_count=self.min_count,
                unseen=self.unseen,
                n_bins=self.n_bins,
                resolutions=self.resolutions,
            )
        plain = FieldEncoder()
        for name in ("kinds", "drop", "min_count", "unseen", "n_bins", "fields", "resolutions"):
            if getattr(self, name) != getattr(plain, name):
                raise SchemaError(f"{name}={getattr(self, name)!r} has no say beside a schema")
        check_names(self.schema.columns, source.columns, "column")
        return self.schema

    def partial_fit(self, X: Any, y: Any = None) -> FieldEncoder:
        """Learn from more rows. New categories come after those that are there; a rare one that
        has now been seen often enough gets a row of its own. No code moves."""
        if not hasattr(self, "vocabulary_"):
            return self.fit(X, y)
        learner = Learner(self.schema_, self.vocabulary_)
        for chunk in self._source(X, reset=False).chunks():
            learner.add(chunk)
        self.vocabulary_ = learner.finish()
        return self

    @property
    def schema_(self) -> Schema:
        return self.vocabulary_.schema

    def transform(self, X: Any) -> np.ndarray:
        """codes (n, m), and more columns where there are lists"""
        return self._output(*self.codes(X))

    def _output(self, codes: np.ndarray, values: np.ndarray) -> np.ndarray:
        wide = wide_values(codes, values, self.schema_.valued)
        if wide is None:
            return codes
        linear, lists = self._slots("linear"), self._slots("list")
        codes[:, lists] = np.where(wide[:, lists] == 0, EMPTY_CODE, codes[:, lists])
        if not linear:
            return codes
        out = codes.astype(np.float64)
        out[:, linear] = np.where(codes[:, linear] == 0, wide[:, linear], np.nan)
        return out

    def _slots(self, kind: str) -> list[int]:
        """Positions of the slots of linear fields or lists."""
        places = slot_positions(self.schema_.slots)
        pairs = zip(self.schema_.fields, places, strict=True)
        return [s for f, place in pairs if kind in (f.kind, f.binning) for s in place]

    def inverse_transform(self, X: Any) -> Any:
        """Codes back to values: a polars frame, or pandas after set_output(transform="pandas").

        Missing, rare and unseen give null, a bin its middle, a linear field its value, a list's
        columns a list.
        """
        check_is_fitted(self)
        try:
            array = np.array(to_frame(X).to_numpy() if hasattr(X, "columns") else X, np.float64)
        except ValueError as error:
            raise DataError(f"codes must be numbers: {error}") from error
        width = sum(self.schema_.slots)
        if array.ndim != 2 or array.shape[1] != width:
            raise DataError(f"codes of shape {array.shape}; expected (n, {width})")
        linear, lists = self._slots("linear"), self._slots("list")
        wide = np.ones(array.shape, np.float32)
        wide[:, linear] = array[:, linear]
        wide[:, lists] = array[:, lists] != EMPTY_CODE
        array[:, linear] = np.isnan(wide[:, linear])
        if not np.array_equal(array, np.round(array)):
            raise DataError("codes must be whole numbers, but for linear fields")
        codes = array.astype(np.int32)
        decoded = self.vocabulary_.decode(codes, wide[:, self.schema_.valued])
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
        names = [
            name if i == 0 else f"{name}.{i + 1}"
            for name, n_slots in zip(self.schema_.names, self.schema_.slots, strict=True)
            for i in range(n_slots)
        ]
        return np.asarray(names, dtype=object)

    def _source(self, X: Any, *, reset: bool) -> Source:
        schema = None if reset else self.schema_
        if isinstance(X, (str, Path)) or is_source(X) or is_paths(X):
            source = open_source(X, schema=schema)
            if reset:
                self.n_features_in_ = len(source.columns)
                self.feature_names_in_ = np.asarray(source.columns, dtype=object)
        else:
            source = open_source(self._frame(X, reset=reset))
        if schema is not None:
            check_names(schema.columns, source.columns, "column")
        if reset:
            self._columns = list(source.columns)
            check_names(self.drop, source.columns, "column in drop")
        return source

    def _frame(self, X: Any, *, reset: bool) -> pl.DataFrame:
        """The frame, after scikit-learn's checks of names and shape."""
        if _is_named(X):  # in a way that scikit-learn does not know
            X = to_frame(X)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if len(shape) == 2 and 0 in shape:
            what = "sample(s)" if shape[0] == 0 else "feature(s)"
            raise DataError(
                f"Found array with 0 {what} (shape={tuple(shape)}) while a minimum of 1 "
                "is required."
            )
        frame = to_frame(X)  # before scikit-learn looks, for our own errors
        validate_data(self, X, reset=reset, skip_check_array=True)
        if not reset and not hasattr(X, "columns") and not hasattr(X, "__arrow_c_stream__"):
            # Columns without names are those of the same place.
            frame = frame.rename(dict(zip(frame.columns, self._columns, strict=True)))
        return frame

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _is_named(X: Any) -> bool:
    """Whether it has names of columns and is no frame: a dict, a query, a structured array, a
    series, a stream."""
    if isinstance(X, (pl.LazyFrame, Mapping)):
        return not hasattr(X, "toarray")
    is_stream = hasattr(X, "__arrow_c_stream__") and len(getattr(X, "shape", ())) != 2
    return (
        is_stream
        or hasattr(X, "to_frame")
        or getattr(getattr(X, "dtype", 0), "names", None) is not None
    )
