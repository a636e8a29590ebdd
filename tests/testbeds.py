"""A testbed for tests: under a name of this process, so that test runs beside each other do not meet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from steelyard.deploy.testbed import ground, site
from steelyard.envs import live_v0
from steelyard.envs.scenario import Scenario

PREFIX = "slt"
NAME = f"{PREFIX}{os.getpid()}"


def require_root() -> None:
    """Fails, rather than skips: without these tests nobody knows whether real packets arrive."""
    assert os.geteuid() == 0, "tests of the testbed need root, which makes network namespaces and cgroups"


@contextmanager
def cleaned() -> Iterator[str]:
    """The name; nothing is left under it afterwards, nor of test runs that were killed."""
    require_root()
    _remove_orphans()
    try:
        yield NAME
    finally:
        site.take_down(NAME)
        (site.HOME / f"{NAME}.lock").unlink(missing_ok=True)


def _remove_orphans() -> None:
    namespaces = Path("/run/netns")
    names = {path.name.partition("-")[0] for path in namespaces.iterdir()} if namespaces.is_dir() else set()
    for name in names:
        match = re.fullmatch(PREFIX + "([0-9]+)", name)
        if match and not Path(f"/proc/{match[1]}").exists():
            site.take_down(name)


def agents_see_and_steer(name: str, scenario: Scenario, dataplane: str) -> None:
    """Two agents play an episode on the live game by that dataplane; nothing is left of its testbed."""
    try:
        with ground.ground(scenario, name, dataplane) as made:
            env = live_v0.parallel_env(scenario=scenario, pools=made.pools, traffic=made)
            env.reset(seed=1)
            actions = {"lb_0": np.array([1, 0, 0, -1], np.float32), "lb_1": np.zeros(4, np.float32)}
            while env.agents:
                observations, _, _, truncated, infos = env.step(actions)
            np.testing.assert_allclose(observations["lb_0"][-4:], actions["lb_0"], atol=1e-6)
            assert all(truncated.values())
            assert infos["lb_0"]["flows"] > 0
            env.close()
    finally:
        site.take_down(name)
        (site.HOME / f"{name}.lock").unlink(missing_ok=True)
    assert site.traces(name) == []
