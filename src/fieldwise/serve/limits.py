"""How much one request may ask for, and the error that refuses more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ..errors import FieldwiseError, SettingError

__all__ = ["Limits", "Refusal"]

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Limits of a request: sizes in bytes, time in seconds.

    Parameters
    ----------
    max_body : size of a body of JSON.
    max_rows : rows of JSON.
    max_text : letters of one value.
    max_batch_body : size of a body of Arrow or Parquet.
    max_batch_rows : rows of Arrow or Parquet.
    seconds : from a request's headers to the end of its answer.
    header_seconds : from a connection, or a request's first byte, to its headers.
    """

    max_body: int = 8 * MEGABYTE
    max_rows: int = 10_000
    max_text: int = 65_536
    max_batch_body: int = 128 * MEGABYTE
    max_batch_rows: int = 1_000_000
    seconds: float = 30.0
    header_seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise SettingError(f"{field.name}={value!r} must be more than 0")


class Refusal(FieldwiseError):
    """A request is refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
