"""How the property tests draw: the same cases in every `make test`, new ones in `make test-all`.
Where there is no GPU its kernels are interpreted."""

import os
from pathlib import Path

import pytest

try:
    from hypothesis import settings
except ImportError:  # where only the GPU engine is tested
    settings = None

if not Path("/proc/driver/nvidia").exists():
    os.environ["TRITON_INTERPRET"] = "1"
if settings is not None:
    settings.register_profile("same", derandomize=True, max_examples=60, deadline=None)
    settings.register_profile("search", max_examples=1000, deadline=None)
    settings.load_profile("same")


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """The folders of small models of every kind; see `serving`."""
    from serving import KINDS, fitted

    folder = tmp_path_factory.mktemp("models")
    return {kind: fitted(kind).save(folder / kind) for kind in KINDS}


@pytest.fixture(scope="module")
def browser():
    from browser import Browser

    with Browser() as started:
        yield started


@pytest.fixture
def one_thread():
    """torch on one thread: tests run side by side, and their matrices are small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
