"""The engine's algorithms by name and their hyper-parameters; imports neither torch nor ray."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from steelyard.envs.errors import bad_value, unknown
from steelyard.envs.rewards import check_reward
from steelyard.envs.scenario import Scenario

SCOPES = ("own", "shared", "central")
"""Whose policy it is: every balancer's own; one that all balancers run; one agent that sees and sets all."""

_INPUTS = {
    (False, False): ("flat", "per_server"),
    (False, True): ("flat", "shared", "per_server"),
    (True, False): ("flat",),
    (True, True): ("shared",),
}  # by whether the policy is central and whether it is recurrent


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of every algorithm of the engine; `--set algo.NAME=VALUE` changes one."""

    policies: str = "own"
    """`own`: one policy per balancer; `shared`: one for all; `central`: one agent sees and sets all."""
    recurrent: bool = False
    """A GRU actor instead of a feed-forward one."""
    input: str = "flat"
    """`flat`: one network on everything; `per_server`: one for each server's row; `shared`: that and a learnt
    constant per server, recurrent only. A central policy is `flat`, or `shared` if recurrent."""
    discrete: bool = False
    """Weights {1, 1.5, 2} by one categorical head per server instead of continuous ones."""
    reward: str = "log_vbf"
    """Kind of reward; empty: the scenario's."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own; empty: the scenario's."""
    num_envs: int = 16
    """Episodes played side by side between two updates, over all env runners."""
    hidden: int = 32
    """Units of the actor's layers."""
    critic_hidden: int = 64
    """Units of the critic's layers."""
    gamma: float = 0.5
    """Discount per step."""
    shaping: float = 0.0
    """k of the potential-based shaping k (gamma r_t - r_{t-1}); 0 turns it off."""
    sequence: int = 20
    """Steps per sequence that a recurrent network learns from."""
    clip: float = 5.0
    """Normalised observations are limited to +-clip."""
    fit_episodes: int = 64
    """Episodes with random weights that fix the normalisation of observations and rewards beforehand."""
    average: float = 0.0
    """Memory of the averaged actor that is evaluated and exported, per round; 0: the last actor."""
    bias_rate: float = 10.0
    """How much faster constants (the head's bias, those of the servers) learn than the actor's other
    weights."""
    decay_episodes: float = 200.0
    """Episodes after which the actor's rates have halved: they fall as 1 / (1 + episodes / this)."""
    grad_clip: float = 1.0
    """Largest norm of a gradient."""

    def check(self, scenario: Scenario) -> None:
        """UserError for values that make no sense on this scenario."""
        for name in ("num_envs", "hidden", "critic_hidden", "fit_episodes"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("clip", "bias_rate", "decay_episodes", "grad_clip"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("gamma", "average"):
            require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        steps = episode_steps(scenario)
        require("sequence", self.sequence, 1 <= self.sequence <= steps, f"1 to {steps}, an episode's steps")
        require("policies", self.policies, self.policies in SCOPES, " or ".join(SCOPES))
        central = self.policies == "central"
        inputs = _INPUTS[central, self.recurrent]
        kind = f"a{' central' * central}{' recurrent' * self.recurrent} policy"
        require("input", self.input, self.input in inputs, f"{' or '.join(inputs)} for {kind}")
        check_reward(self.reward or scenario.reward.kind, self.measure or scenario.reward.measure)

    @property
    def sees_state(self) -> bool:
        """Whether critics see what all balancers see."""
        return False


@dataclass(frozen=True)
class Ippo(Settings):
    """Independent PPO (Schulman et al. 2017; de Witt et al. 2020): every agent learns from its own view."""

    lr: float = 1e-3
    """Learning rate (Adam) of actor and critic."""
    epochs: int = 8
    """Passes over the episodes of a round."""
    minibatch: int = 480
    """Steps per gradient step."""
    gae_lambda: float = 0.9
    """lambda of generalised advantage estimation."""
    clip_ratio: float = 0.2
    """PPO's clip."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the value loss."""

    def check(self, scenario: Scenario) -> None:
        """UserError for values that make no sense on this scenario."""
        super().check(scenario)
        for name in ("epochs", "minibatch"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "clip_ratio", "value_weight"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        require("gae_lambda", self.gae_lambda, 0 <= self.gae_lambda <= 1, "0 to 1")
        require("entropy", self.entropy, 0 <= self.entropy < math.inf, "a number from 0")
        steps = self.num_envs * episode_steps(scenario)
        require("minibatch", self.minibatch, self.minibatch <= steps, f"at most {steps}, a round's steps")


@dataclass(frozen=True)
class Mappo(Ippo):
    """MAPPO (Yu et al. 2022): PPO whose critics see what all balancers see; actors see their own."""

    def check(self, scenario: Scenario) -> None:
        """UserError for values that make no sense on this scenario."""
        super().check(scenario)
        require("policies", self.policies, self.policies != "central", "own or shared for mappo")

    @property
    def sees_state(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class Async(Settings):
    """What APPO and IMPALA have in common: actors that lag behind, corrected by V-trace."""

    lr: float = 1e-3
    """Learning rate (Adam) of actor and critic."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the value loss."""

    def check(self, scenario: Scenario) -> None:
        """UserError for values that make no sense on this scenario."""
        super().check(scenario)
        for name in ("lr", "value_weight"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        require("entropy", self.entropy, 0 <= self.entropy < math.inf, "a number from 0")


@dataclass(frozen=True)
class Appo(Async):
    """APPO (Luo et al. 2020): PPO's clip on V-trace advantages, for env runners that never wait."""

    clip_ratio: float = 0.2
    """PPO's clip."""


@dataclass(frozen=True)
class Impala(Async):
    """IMPALA (Espeholt et al. 2018): actor-critic with V-trace, for env runners that never wait."""


@dataclass(frozen=True)
class Sac(Settings):
    """Independent soft actor-critic (Haarnoja et al. 2018) with twin critics."""

    num_envs: int = 8
    """Episodes played side by side between two updates, over all env runners."""
    shaping: float = 1.2
    """k of the potential-based shaping k (gamma r_t - r_{t-1}); 0 turns it off."""
    actor_lr: float = 1e-4
    """Learning rate of the actor (Adam); its constants learn `bias_rate` times faster."""
    critic_lr: float = 1e-3
    """Learning rate of the critics (Adam)."""
    alpha_lr: float = 1e-3
    """Learning rate of log alpha (Adam)."""
    alpha: float = 0.001
    """First temperature, for rewards of unit variance."""
    target_entropy: float = -1.0
    """Entropy per server that the temperature is tuned to."""
    tau: float = 0.05
    """Share of the critics that moves into their targets at a gradient step."""
    updates_per_episode: float = 6.0
    """Gradient steps per agent for every episode played."""
    batch_size: int = 256
    """Steps per gradient step."""
    replay_episodes: int = 3000
    """Episodes kept per policy."""
    critic: str = "set"
    """`set`: one network shared by all servers, told which is which; `flat`: one on everything."""

    def check(self, scenario: Scenario) -> None:
        """UserError for values that make no sense on this scenario."""
        super().check(scenario)
        for name in ("actor_lr", "critic_lr", "alpha_lr", "alpha", "updates_per_episode"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("batch_size", "replay_episodes"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        require("tau", self.tau, 0 < self.tau < 1, "above 0 and below 1")
        critics = ("set",) if self.policies == "central" else ("flat", "set")
        require("critic", self.critic, self.critic in critics, f"{' or '.join(critics)} for these policies")
        require("discrete", self.discrete, not self.discrete, "false: sac here sets continuous weights")
        allowed = f"at least {self.sequence}, one sequence" if self.recurrent else ""
        require(
            "batch_size", self.batch_size, not self.recurrent or self.batch_size >= self.sequence, allowed
        )


@dataclass(frozen=True)
class Entry:
    """An algorithm of the engine: its hyper-parameters, which of RLlib's algorithms runs it, what it is."""

    settings: type[Settings]
    family: Literal["ppo", "async", "sac"]
    summary: str


ALGORITHMS = {
    "ippo": Entry(Ippo, "ppo", "independent PPO, one policy per balancer, shared, or central"),
    "mappo": Entry(Mappo, "ppo", "PPO whose critics see what all balancers see"),
    "sac": Entry(Sac, "sac", "independent SAC"),
    "appo": Entry(Appo, "async", "asynchronous PPO with V-trace"),
    "impala": Entry(Impala, "async", "asynchronous actor-critic with V-trace"),
}


def find_entry(name: str) -> Entry:
    """The algorithm of that name; UserError with the names there are."""
    if name not in ALGORITHMS:
        raise unknown("--algo of --engine rllib", name, ALGORITHMS)
    return ALGORITHMS[name]


def require(name: str, value: object, allowed: bool, text: str) -> None:
    """UserError naming the hyper-parameter unless `allowed`."""
    if not allowed:
        raise bad_value(f"algo.{name}", value, text)


def episode_steps(scenario: Scenario) -> int:
    """Steps of an episode."""
    return round(scenario.episode.horizon_s / scenario.control.step_s)
