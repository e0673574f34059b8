"""Which rows of a store are held out for validation: random ones, the latest, or whole
categories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .data.schema import slot_positions
from .data.store import Store
from .data.words import StoredWords
from .errors import SettingError

if TYPE_CHECKING:
    from .data.vocabulary import FieldVocabulary, Vocabulary

__all__ = ["default_share", "held_out_rows"]

MOST_HELD_OUT = 1_000_000
PIECE = 1 << 20  # rows drawn at a time


def held_out_rows(
    store: Store,
    words: Vocabulary | StoredWords,
    rule: str = "random",
    share: float = 0.1,
    seed: int = 0,
) -> np.ndarray:
    """(n_rows,) true for validation rows.

    random: random rows. time:FIELD: the latest values of a field. group:FIELD: whole categories of
    a field, at random.
    """
    if not 0 < share < 1:
        raise SettingError(f"validation={share} must lie between 0 and 1")
    how, _, name = rule.partition(":")
    if how == "random" and not name:
        bits = np.random.Philox(np.random.SeedSequence([seed, 202]))
        chosen = np.empty(store.n_rows, dtype=bool)
        for start in range(0, store.n_rows, PIECE):
            part = chosen[start : start + PIECE]
            part[:] = bits.random_raw(len(part)) < np.uint64(share * 2.0**64)
        return chosen
    if how not in ("time", "group") or not name:
        raise SettingError(f"split={rule!r} is not random, time:FIELD or group:FIELD")
    j = words.schema.names.index(words.schema[name].name)
    known = words.fields[j]
    if known.field.is_linear or known.field.is_list:
        raise SettingError(f"split={rule!r}: a linear field or a list cannot split; choose another")
    chosen = _latest(known, share) if how == "time" else _drawn(known, share, seed)
    slot = slot_positions(words.schema.slots)[j].start
    return np.asarray(chosen[store.array("codes")[:, slot]])


def _latest(words: FieldVocabulary, share: float) -> np.ndarray:
    """(size,) true for the codes of the latest values, as many as hold at most `share` of rows."""
    counts = words.counts()
    labels = words.labels()
    if words.field.is_binned:
        order = np.arange(words.size)
    elif words.field.dtype in ("integer", "float"):
        order = np.argsort([_number(v) for v in labels], kind="stable")
    else:
        order = np.argsort([v or "" if i else "" for i, v in enumerate(labels)], kind="stable")
    after = np.cumsum(counts[order][::-1])[::-1]
    chosen = np.zeros(words.size, dtype=bool)
    chosen[order[after <= share * counts.sum()]] = True
    chosen[0] = False  # the rare row mixes values of all times
    if not chosen.any():
        raise SettingError(
            f"time:{words.field.name}: its latest value alone is more than {share:.0%} of the rows"
        )
    return chosen


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return -np.inf


def _drawn(words: FieldVocabulary, share: float, seed: int) -> np.ndarray:
    """(size,) true for codes drawn at random, each with probability `share`."""
    bits = np.random.Philox(np.random.SeedSequence([seed, 203])).random_raw(words.size)
    return np.asarray(bits < np.uint64(share * 2.0**64))


def default_share(store: Store) -> float:
    """The default share to hold out: a tenth of the rows, at most a million of them."""
    return min(0.1, MOST_HELD_OUT / max(store.n_rows, 1))
