"""Training: settings, the loop over epochs, the search for a learning rate. Names no engine.

A run is a function of its rows, settings and seed: the same bits for any number of threads, and
after any number of interruptions.
"""

from __future__ import annotations

from .search import train
from .settings import RATES, Fit, Running, TrainSettings, Watch
from .start import fitted_engine, grown, initialise, on_distinct_rows

__all__ = [
    "RATES",
    "Fit",
    "Running",
    "TrainSettings",
    "Watch",
    "fitted_engine",
    "grown",
    "initialise",
    "on_distinct_rows",
    "train",
]
