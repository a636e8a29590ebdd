"""A policy file for tests that need one and do not care what it does."""

import numpy as np

from steelyard import native


def policy_blob(servers: int, actors: int = 1) -> bytes:
    """A linear policy that always answers 0."""
    dim = native.observation_size(servers)
    layer = {
        "kind": "dense",
        "weight": np.zeros((servers, dim), np.float32),
        "bias": np.zeros(servers, np.float32),
        "activation": "none",
    }
    actor = {"mean": np.zeros(dim, np.float32), "inv_std": np.ones(dim, np.float32), "layers": [layer]}
    spec = {
        "num_servers": servers,
        "input": "flat",
        "output": "tanh",
        "clip": 10.0,
        "actors": [actor] * actors,
    }
    return native.encode_policy(spec)
