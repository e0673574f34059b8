"""Metrics for Prometheus.

A single process counts in its own registry. Several workers count in shared files
(prometheus_client's multiprocess mode, which PROMETHEUS_MULTIPROC_DIR, set by `run_server`, turns
on), so that any of them answers for all: counts are summed, and a model counts as served while any
live worker serves it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from .live import LiveModel
from .scoring import Served

__all__ = ["SHARED", "Metrics"]

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SHARED = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    def __init__(self) -> None:
        self.folder = os.environ.get(SHARED)
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": None if self.folder else self._registry}
        self._requests = Counter(
            "fieldwise_requests", "Requests by path and status.", ["path", "status"], **own
        )
        self._seconds = Histogram(
            "fieldwise_request_seconds",
            "Seconds from a request's headers to the end of its answer.",
            ["path"],
            buckets=BUCKETS,
            **own,
        )
        rows = Counter("fieldwise_rows", "Rows scored, by path.", ["path"], **own)
        self._rows_of = {path: rows.labels(path) for path in ("/predict", "/predict/batch")}
        self._waiting = dict.fromkeys(self._rows_of, 0)  # rows not yet added there
        self._unseen = Counter(
            "fieldwise_unseen_values",
            "Rows in which a field has a value never seen in training.",
            ["field"],
            **own,
        )
        self._loads = Counter("fieldwise_model_loads", "Models that were loaded.", **own)
        self._refusals = Counter(
            "fieldwise_model_refusals", "Models that could not be loaded.", **own
        )
        self._info = Gauge(
            "fieldwise_model_info",
            "1 for the id of a model that is served.",
            ["model"],
            multiprocess_mode="livemax",
            **own,
        )
        self._n_loads = self._n_refusals = 0
        self._served: Served | None = None  # the model whose unseen values were counted last
        self._n_unseen: list[int] = []
        self._paths: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        if self.folder:
            self._bury(Path(self.folder))

    @staticmethod
    def _bury(folder: Path) -> None:
        """Mark workers that were killed as dead."""
        for file in folder.glob("gauge_live*.db"):
            pid = file.stem.rpartition("_")[2]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
                _dead(int(pid), str(folder))

    def request(self, path: str, status: int, seconds: float) -> None:
        key = path, status
        if key not in self._paths:
            children = self._requests.labels(path, str(status)), self._seconds.labels(path)
            self._paths[key] = children
        count, histogram = self._paths[key]
        count.inc()
        histogram.observe(seconds)

    def rows(self, path: str, n: int) -> None:
        self._waiting[path] += n

    def _count_rows(self) -> None:
        for path, n in self._waiting.items():
            if n:
                self._waiting[path] = 0
                self._rows_of[path].inc(n)

    def unseen(self, field: str, n: int) -> None:
        self._unseen.labels(field).inc(n)

    def follow(self, live: LiveModel) -> None:
        """Count a live model's loads, refusals and unseen values since the last call."""
        self._count_rows()
        self._loads.inc(live.n_loads - self._n_loads)
        self._refusals.inc(live.n_refusals - self._n_refusals)
        self._n_loads, self._n_refusals = live.n_loads, live.n_refusals
        if self._served is not None:
            self._count_unseen(self._served)
        if live.now is not None and live.now is not self._served:
            if self._served is not None:
                self._info.labels(self._served.id).set(0)
            self._served, self._n_unseen = live.now, [0] * len(live.now.fields)
            self._info.labels(live.now.id).set(1)
            self._count_unseen(live.now)

    def _count_unseen(self, served: Served) -> None:
        now = served.coder.n_unseen
        for field, n, before in zip(served.fields, now, self._n_unseen, strict=True):
            if n > before:
                self.unseen(field.name, n - before)
        self._n_unseen = now

    def text(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        self._count_rows()
        if not self.folder:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        collect: Any = MultiProcessCollector  # which has no types
        collect(registry, path=self.folder)
        return generate_latest(registry)

    def close(self) -> None:
        self._count_rows()
        if self.folder:
            _dead(os.getpid(), self.folder)


def _dead(pid: int, folder: str) -> None:
    """Drop the gauges of a dead worker."""
    forget: Any = mark_process_dead  # which has no types
    forget(pid, folder)
