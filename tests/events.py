"""What TensorBoard reads in a folder of event files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["events"]


def events(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Of every curve its steps and values; and texts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    tags = found.Tags()
    curves = {t: [(e.step, e.value) for e in found.Scalars(t)] for t in tags["scalars"]}
    texts = [found.Tensors(t)[0].tensor_proto.string_val[0].decode() for t in tags["tensors"]]
    return curves, texts
