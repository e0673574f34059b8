"""Where results go, and what machine they come from."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fieldwise

RESULTS = Path(__file__).parent / "results"


def timed(work: Callable[[], Any], rounds: int = 1) -> float:
    """Seconds of some work, the median of so many rounds."""
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return median(found)


def machine() -> dict[str, Any]:
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def save(name: str, command: str, figures: dict[str, Any]) -> Path:
    """figures as benchmarks/results/NAME.json, with machine, date and command."""
    RESULTS.mkdir(exist_ok=True)
    body = {
        "command": command,
        "date": dt.date.today().isoformat(),
        "fieldwise": fieldwise.__version__,
        "machine": machine(),
        **figures,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path
