"""A training run on RLlib: Ray, the trainer, and the session that all engines share."""

from __future__ import annotations

from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import session
from steelyard.trainers.rllib import cluster
from steelyard.trainers.rllib.settings import Settings

MAX_ENV_RUNNERS = 1024


def check(env_runners: int, address: str | None) -> None:
    """UserError for a number of env runners that cannot be, or a cluster that does not answer."""
    if not 0 <= env_runners <= MAX_ENV_RUNNERS:
        raise UserError(f"--env-runners: {env_runners}; allowed: 0 to {MAX_ENV_RUNNERS}")
    cluster.check_address(address)


def train(
    plan: session.Plan, settings: Settings, resume: bool, env_runners: int, address: str | None
) -> tuple[int, int]:
    """Train to the end or to Ctrl-C; the exit status, and how many episodes there are now.

    Nothing is written before Ray answers and the algorithm is built.
    """
    assert isinstance(plan.scenario, Scenario)
    session.check_run(plan, resume)
    with cluster.connected(address, cpus=env_runners + 1):
        from steelyard.trainers.rllib.trainer import RllibTrainer

        trainer = RllibTrainer(settings, plan.scenario, plan.seed, env_runners)
        try:
            saved = session.open_run(plan, resume)
            status = session.Session(plan, trainer, saved).run()
        finally:
            trainer.stop()
    return status, trainer.episodes
