"""The same seed gives the same bits, whatever the number of threads, the process and its hashes; on
another kind of processor next to the same. `make bench-sameness` has every case and more rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from fieldwise.blas import one_blas_thread
from sameness import PLAIN_PROCESSOR, arrays_of, digest, elsewhere, epoch, files_of, threads

# One of each way to learn; the others are made of the same parts.
SOME = ["fast", "glass", "best of numbers", "weighted vote", "ensemble", "distinct", "bounded"]
NEXT_TO = 1e-5  # of scores, on another kind of processor


def test_a_seed_gives_the_same_bits_in_every_process() -> None:
    """One thread here, and three in a process of other hashes: more than some machines have."""
    here = {}
    for case in SOME:
        here |= {name: digest(array) for name, array in arrays_of(case, n_jobs=1).items()}
    assert len(here) > 5 * len(SOME)
    there = elsewhere(SOME, **threads(3, seed=7))
    assert {name for name in here if here[name] != there[name]} == set()


def test_blas_has_one_thread_until_the_last_has_left() -> None:
    def n_threads() -> set[int]:
        return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = n_threads()
        one, other = one_blas_thread(), one_blas_thread()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert n_threads() == {1}
        other.__exit__(None, None, None)
        assert n_threads() == before != {1}


def test_a_seed_gives_next_to_the_same_scores_on_another_processor(tmp_path: Path) -> None:
    """One without AVX and fused products, as far as a compiler can be told."""
    here = epoch()
    more = {"NUMBA_CACHE_DIR": str(tmp_path), **PLAIN_PROCESSOR}
    elsewhere(["epoch"], tmp_path / "there.npz", **more)
    assert any(tmp_path.rglob("*.nbc")), "it compiled nothing"
    there = np.load(tmp_path / "there.npz")
    assert set(there) == set(here)
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=0, atol=NEXT_TO)


def test_exports_and_compressed_models_are_the_same_bytes_twice() -> None:
    one, two = files_of("fast"), files_of("fast")
    for name in ("onnx", "sql", "python", "table.safetensors"):
        assert one[name] == two[name], name
