"""Real packets in the place of the simulator: whoever can play a study live, found by entry point.

This room may not import the one that deploys; it asks the entry-point group `steelyard.live` for a module
with `play_study` and `learning_ground` (the one that comes with the project is deploy/testbed/live.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from steelyard.agents.rules import Contender
from steelyard.envs.errors import UserError
from steelyard.envs.live_world import Traffic
from steelyard.envs.scenario import Scenario
from steelyard.trainers.evaluation import OnProgress, Study
from steelyard.trainers.results import Row

GROUP = "steelyard.live"
LEARNERS = ("distr-lb",)
"""Algorithms that learn from what balancers measure alone."""
DEFAULTS = {"num_envs": 1, "measure": "durations", "updates_per_episode": 20.0}
"""Hyper-parameters that differ live: one world, and a reward that balancers can measure."""


class Ground(Traffic, Protocol):
    """A place to learn: balancers that wait for agents, and flows on demand."""

    @property
    def pools(self) -> Sequence[Path]:
        """The shared-memory file of each balancer."""


class Host(Protocol):
    """What a module of the group offers."""

    play_study: Callable[
        [Sequence[Scenario], Sequence[Contender], range, str, str, str | None, OnProgress],
        Sequence[dict[str, Any]],
    ]
    learning_ground: Callable[[Scenario, str, str], AbstractContextManager[Ground]]


def host() -> Host:
    """The first of the group; UserError without one."""
    for entry in metadata.entry_points(group=GROUP):
        return entry.load()
    raise UserError(f"--live: nothing is installed that can play live (entry points {GROUP!r})")


def run(
    study: Study, testbed: str, dataplane: str, profile: str | None, on_progress: OnProgress
) -> Sequence[Row]:
    """One row per member and seed of a study, with the keys of simulated ones; on the testbed of that name.

    profile: what its servers serve; None: what those of the one that is up do. UserError for racks.
    """
    clusters = [scenario for scenario in study.scenarios if isinstance(scenario, Scenario)]
    if len(clusters) != len(study.scenarios):
        raise UserError(f"--live: {study.scenarios[0].name!r} is a rack; only clusters can be played live")
    return host().play_study(
        clusters, study.contenders, study.seeds, testbed, dataplane, profile, on_progress
    )


def check_learner(algorithm: str, hyper: dict[str, Any]) -> None:
    """UserError for what cannot learn live."""
    if algorithm not in LEARNERS:
        raise UserError(f"--live: {algorithm} cannot learn live; allowed: {', '.join(LEARNERS)}")
    if hyper["num_envs"] != 1:
        raise UserError(f"algo.num_envs = {hyper['num_envs']}: must be 1 with --live, which has one world")


@contextmanager
def learning(trainer: Any, scenario: Scenario, config: Any, testbed: str, dataplane: str) -> Iterator[None]:
    """Within the block the trainer plays on the testbed of that name. UserError or LiveError."""
    from steelyard.envs.live_v0 import LiveBatch

    with host().learning_ground(scenario, testbed, dataplane) as ground:
        batch = LiveBatch(
            scenario,
            ground.pools,
            traffic=ground,
            reward=config.reward or None,
            measure=config.measure or None,
            discrete=config.discrete,
            autoreset=False,
        )
        trainer.make_batch = lambda scenario, worlds, config: batch
        try:
            yield
        finally:
            batch.world.close()


def hyper_of(run: Path, algorithm: str) -> dict[str, Any]:
    """Hyper-parameters of a run, but for those that differ live. UserError for a run of another algorithm."""
    try:
        config = json.loads((run / "config.json").read_text("utf-8"))
        found, hyper = config["algorithm"], dict(config["hyper"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"--from: {run} is no run directory of `steelyard train` ({error})") from None
    if found != algorithm:
        raise UserError(f"--from: {run} is a run of {found}, not of {algorithm}")
    return {name: value for name, value in hyper.items() if name not in DEFAULTS}


def begin_from(trainer: Any, run: Path) -> None:
    """Give every agent what it learnt in another run: networks, normaliser, temperature, optimisers.

    Replay and scale of the reward stay behind, since they belong to the other game. UserError if it does not
    fit.
    """
    from steelyard.trainers import checkpoint

    state = checkpoint.load(run / "checkpoint")
    try:
        for agent, theirs in zip(trainer.agents, state["trainer"]["agents"], strict=True):
            own = agent.state()
            agent.load({**theirs, "replay": own["replay"], "scale": own["scale"]})
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"--from: {run} was trained on another pool or with other networks ({error})"
        ) from None
