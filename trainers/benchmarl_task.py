"""The load-balancing game as a task of BenchMARL, so that its algorithms play it.

    from steelyard.trainers.benchmarl_task import SteelyardTask

    task = SteelyardTask.LOAD_BALANCE.get_task({"scenario": "cluster-a-cpu"})

BenchMARL (Bettini, Prorok, Moens, "BenchMARL: Benchmarking Multi-Agent Reinforcement Learning", JMLR 2024)
is installed apart (see docs/benchmarl.md); importing this file needs it. All balancers are one group,
`agents`; whether they share parameters is the experiment's `share_policy_params`.

Observations are normalised and limited to +-CLIP, rewards scaled to mean 0 and variance 1, both by fixed
statistics of EPISODES episodes under equal weights: BenchMARL normalises nothing by itself, and statistics
that stay as they are can be written into the exported policy (benchmarl_export.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from benchmarl.environments import Task, TaskClass
from torchrl.data import Composite
from torchrl.envs import ClipTransform, EnvBase, ObservationNorm, RewardScaling, Transform

from steelyard import native
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.batch import LoadBalanceBatch, load_scenario
from steelyard.envs.errors import bad_value, unknown_key
from steelyard.envs.rewards import check_reward
from steelyard.envs.torchrl_group_env import GROUP, STATES, LoadBalanceGroupEnv
from steelyard.trainers.rounds import RewardScale

CLIP = 5.0
EPISODES = 16
_STATISTICS_RUN = 0x5EED_BEC4_0000  # run seed of the episodes behind the statistics


@dataclass(frozen=True)
class LoadBalanceConfig:
    """Options of the task; the keys of `get_task(config={...})`."""

    scenario: str = "cluster-a-cpu"
    """A named scenario or a TOML file."""
    overrides: Sequence[str] = ()
    """Changes of the scenario, KEY=VALUE each."""
    reward: str = "log_vbf"
    """Kind of reward."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own."""
    discrete: bool = False
    """Offer discrete actions alone; otherwise an algorithm takes what it prefers of both."""
    state: str = "true"
    """What central critics and mixers see: `true`, observations and remaining times, or `obs` alone."""
    threads: int = 1
    """Threads that simulate."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> LoadBalanceConfig:
        """Checked options; UserError names the first that is not allowed."""
        allowed = {each.name: each.default for each in dataclasses.fields(cls)}
        for key, value in config.items():
            if key not in allowed:
                raise unknown_key("task.", key, allowed)
            if key != "overrides" and type(value) is not type(allowed[key]):
                raise bad_value(f"task.{key}", value, f"a {type(allowed[key]).__name__}")
        found = cls(**config)
        if found.state not in STATES:
            raise bad_value("task.state", found.state, " or ".join(STATES))
        load_scenario(found.scenario, found.overrides)
        check_reward(found.reward, found.measure)
        return dataclasses.replace(found, overrides=tuple(found.overrides))


@dataclass(frozen=True)
class Statistics:
    """What the game looks like under equal weights."""

    observation: Normaliser
    reward: RewardScale
    remaining: RewardScale  # of log(1 + remaining time)


@cache
def statistics(config: LoadBalanceConfig) -> Statistics:
    """Statistics of EPISODES episodes; the same for the same options."""
    batch = LoadBalanceBatch(
        config.scenario,
        EPISODES,
        overrides=config.overrides,
        reward=config.reward,
        measure=config.measure,
        autoreset=False,
    )
    found = Statistics(Normaliser(batch.num_servers), RewardScale(), RewardScale())
    still = np.zeros((EPISODES, batch.num_agents, batch.num_servers), dtype=np.float32)
    batch.reset(seeds=[native.train_seed(_STATISTICS_RUN, index) for index in range(EPISODES)])
    over = False
    while not over:
        seen, reward, truncated = batch.step(still)
        found.observation.update(seen)
        found.reward.update(torch.from_numpy(reward))
        found.remaining.update(torch.from_numpy(batch.remaining_time()).log1p())
        over = bool(truncated.all())
    return found


class LoadBalanceTask(TaskClass):
    """The game of LoadBalanceGroupEnv; options in LoadBalanceConfig."""

    def __init__(self, name: str, config: dict[str, Any] | None):
        checked = LoadBalanceConfig.of(config or {})
        super().__init__(name, dataclasses.asdict(checked))

    @property
    def options(self) -> LoadBalanceConfig:
        """The configuration, checked (BenchMARL may have put another in its place)."""
        return LoadBalanceConfig.of(self.config)

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Makes the environments of training and of BenchMARL's own evaluation."""
        options = self.options
        return lambda: LoadBalanceGroupEnv(
            options.scenario,
            num_envs,
            overrides=options.overrides,
            threads=options.threads,
            reward=options.reward,
            measure=options.measure,
            discrete=not continuous_actions,
            state=options.state,
            seed=seed,
            device=device,
        )

    def get_env_transforms(self, env: EnvBase) -> list[Transform]:
        """Normalisation by `statistics`, as the exported policy does it."""
        known, agents = statistics(self.options), len(env.agents)
        mean, inverse = (torch.from_numpy(vector) for vector in known.observation.vectors())
        both: list[tuple[Any, torch.Tensor, torch.Tensor]] = [((GROUP, "observation"), mean, 1 / inverse)]
        if self.options.state == "true":
            servers = env.batch.num_servers
            times = torch.full((servers,), known.remaining.mean)
            spread = torch.full((servers,), known.remaining.variance**0.5)
            parts = torch.cat([mean.repeat(agents), times]), torch.cat([(1 / inverse).repeat(agents), spread])
            both.append(("state", *parts))
        found: list[Transform] = []
        for key, loc, scale in both:
            found.append(ObservationNorm(loc.float(), scale.float(), in_keys=[key], standard_normal=True))
            found.append(ClipTransform(in_keys=[key], low=-CLIP, high=CLIP))
        scale = known.reward.variance**-0.5
        return [*found, RewardScaling(-known.reward.mean * scale, scale, in_keys=[(GROUP, "reward")])]

    def supports_continuous_actions(self) -> bool:
        """Weights by themselves, unless `discrete`."""
        return not self.options.discrete

    def supports_discrete_actions(self) -> bool:
        """Steps of the weights: see LoadBalanceGroupEnv."""
        return True

    def max_steps(self, env: EnvBase) -> int:
        """Steps of an episode."""
        return round(env.scenario.episode.horizon_s / env.scenario.control.step_s)

    def has_render(self, env: EnvBase) -> bool:
        """No pictures."""
        return False

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        """All balancers in one group."""
        return {GROUP: list(env.agents)}

    def observation_spec(self, env: EnvBase) -> Composite:
        """("agents", "observation"): (M, 12 N + 5)."""
        spec = env.full_observation_spec_unbatched.clone()
        return Composite({GROUP: spec[GROUP]})

    def info_spec(self, env: EnvBase) -> Composite | None:
        """None."""
        return None

    def state_spec(self, env: EnvBase) -> Composite | None:
        """ "state": (M (12 N + 5) + N,), or None, when central critics read all observations."""
        if self.options.state == "obs":
            return None
        return Composite({"state": env.full_observation_spec_unbatched["state"].clone()})

    def action_spec(self, env: EnvBase) -> Composite:
        """("agents", "action"): (M, N) in [-1, 1], or (M,) of 2 N + 1 choices."""
        return env.full_action_spec_unbatched

    def action_mask_spec(self, env: EnvBase) -> Composite | None:
        """None."""
        return None

    @staticmethod
    def env_name() -> str:
        """As BenchMARL's files and tables name the environment."""
        return "steelyard"


class SteelyardTask(Task):
    """Tasks of this project for BenchMARL; `SteelyardTask.LOAD_BALANCE.get_task({...})` makes one."""

    LOAD_BALANCE = None

    @staticmethod
    def associated_class() -> type[TaskClass]:
        """The class of all tasks here."""
        return LoadBalanceTask

    def get_task(self, config: dict[str, Any] | None = None) -> TaskClass:
        """The task with these options (LoadBalanceConfig) in place of the defaults; UserError."""
        return LoadBalanceTask(self.name, config)
