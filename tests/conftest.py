"""Settings that hold for every test: one thread per process, no network, no display."""

import os
from collections.abc import Iterator

# Read once, when numpy and torch are first imported; the tests themselves run in parallel processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "disabled")

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for all runs in this process; it must survive them."""
    import ray

    from steelyard.trainers.rllib import cluster

    with cluster.connected(None, cpus=3):
        yield
        assert ray.is_initialized()
    assert not ray.is_initialized()
