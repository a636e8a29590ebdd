"""Soft actor-critic on RLlib: module, learner, replay of sequences, and the loop that joins them.

RLlib's SAC has no recurrence, and its replay of multi-agent episodes costs about 100 ms a sample. Here replay
hands out exact-length sequences as plain arrays, with the recurrent state that the actor had at their start
(so nothing is padded, which SAC's loss would not mask), and the module runs its actor through them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.sac import SAC
from ray.rllib.algorithms.sac.sac_learner import QF_PREDS, QF_TWIN_PREDS
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import QNetAPI, TargetNetworkAPI
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    TD_ERROR_KEY,
)

from steelyard.agents import gaussian
from steelyard.trainers.rllib import nets
from steelyard.trainers.rllib.learners import Rates, actor_groups
from steelyard.trainers.rllib.modules import STATE, ActorModule

_CRITICS = ("qf", "qf_twin")


class SacModule(ActorModule, TargetNetworkAPI, QNetAPI):
    """The actor with twin critics on its observation; sequences (B, T, ..) in training."""

    def setup(self) -> None:
        """Makes the networks."""
        super().setup()
        self.qf, self.qf_twin = nets.make_twin(self.model_config)

    def get_non_inference_attributes(self) -> list[str]:
        """What only learning needs."""
        return [*_CRITICS, *(f"target_{name}" for name in _CRITICS)]

    def make_target_networks(self) -> None:
        """Copies of the critics that follow them slowly."""
        self.target_qf, self.target_qf_twin = (make_target_network(getattr(self, n)) for n in _CRITICS)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """What follows what."""
        return [(getattr(self, name), getattr(self, f"target_{name}")) for name in _CRITICS]

    def compute_q_values(self, batch: dict[str, Any]) -> torch.Tensor:
        """The smaller of the two critics."""
        seen, action = self.own(batch[Columns.OBS]), batch[Columns.ACTIONS]
        return torch.minimum(self.qf(seen, action), self.qf_twin(seen, action))

    def forward_target(self, batch: dict[str, Any]) -> torch.Tensor:
        """The smaller of the two followers."""
        seen, action = self.own(batch[Columns.OBS]), batch[Columns.ACTIONS]
        return torch.minimum(self.target_qf(seen, action), self.target_qf_twin(seen, action))

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """What SAC's loss asks for. ACTIONS are before the squash, as drawn; OBS (B, T+1, D)."""
        head, _ = self.head(batch)
        now = {Columns.OBS: batch[Columns.OBS][:, :-1]}
        then = {Columns.OBS: batch[Columns.OBS][:, 1:]}
        fresh, density = gaussian.sample(head, torch.default_generator)
        done = torch.tanh(batch[Columns.ACTIONS])
        seen = self.own(now[Columns.OBS])
        out = {QF_PREDS: self.qf(seen, done), QF_TWIN_PREDS: self.qf_twin(seen, done)}
        with _frozen(self.qf, self.qf_twin):
            out["q_curr"] = self.compute_q_values(now | {Columns.ACTIONS: fresh[:, :-1]})
        with torch.no_grad():
            out["q_target_next"] = self.forward_target(then | {Columns.ACTIONS: fresh[:, 1:]})
        out["logp_resampled"] = density[:, :-1]
        out["logp_next_resampled"] = density[:, 1:].detach()
        return out


@contextlib.contextmanager
def _frozen(*nets_: torch.nn.Module) -> Iterator[None]:
    """Gradients pass through these networks, but none reaches their parameters."""
    parameters = [parameter for net in nets_ for parameter in net.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(False)
    yield
    for parameter in parameters:
        parameter.requires_grad_(True)


class SacLearner(Rates, SACTorchLearner):
    """SAC's loss of RLlib, with this module's parameters."""

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """One optimiser each for both critics, the actor and the temperature."""
        module = self._module[module_id]
        temperature = self.curr_log_alpha[module_id]
        plans = {
            "qf": ([{"params": list(module.qf.parameters())}], config.critic_lr),
            "qf_twin": ([{"params": list(module.qf_twin.parameters())}], config.critic_lr),
            "policy": (actor_groups(module), config.actor_lr),
            "alpha": ([{"params": [temperature]}], config.alpha_lr),
        }
        for name, (groups, rate) in plans.items():
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=torch.optim.Adam(groups),
                params=[parameter for group in groups for parameter in group["params"]],
                lr_or_lr_schedule=rate,
            )


class SequenceReplay:
    """The last episodes of every policy, whole, and sequences drawn from them uniformly."""

    def __init__(self, episodes: int, sequence: int, seed: int) -> None:
        self.episodes, self.sequence = episodes, sequence
        self.draw = np.random.default_rng(seed)
        self.kept: dict[str, list[dict[str, NDArray[Any]]]] = {}

    def add(self, episodes: list[MultiAgentEpisode]) -> None:
        """Keep the agents' episodes under their policies."""
        for whole in episodes:
            for agent in sorted(whole.agent_episodes):
                one = whole.agent_episodes[agent]
                kept = self.kept.setdefault(one.module_id, [])
                kept.append(_arrays(one))
                del kept[: -self.episodes]

    def sample(self, steps: int) -> MultiAgentBatch:
        """`steps` steps of every policy, in sequences (B, T, ..) with OBS one longer."""
        count, length = max(1, steps // self.sequence), self.sequence
        batches = {}
        for policy in sorted(self.kept):
            kept = self.kept[policy]
            chosen = self.draw.integers(len(kept), size=count)
            starts = self.draw.integers(len(kept[0][Columns.REWARDS]) - length + 1, size=count)
            batches[policy] = self._cut([kept[i] for i in chosen], starts)
        return MultiAgentBatch(batches, env_steps=count * length)

    def _cut(self, episodes: list[dict[str, NDArray[Any]]], starts: NDArray[np.int64]) -> SampleBatch:
        def cut(name: str, more: int = 0) -> torch.Tensor:
            length = self.sequence + more
            parts = [each[name][at : at + length] for each, at in zip(episodes, starts, strict=True)]
            return torch.from_numpy(np.stack(parts))

        names = (Columns.ACTIONS, Columns.REWARDS)
        batch: dict[str, Any] = {name: cut(name) for name in names} | {Columns.OBS: cut(Columns.OBS, 1)}
        over = torch.zeros_like(batch[Columns.REWARDS])
        # An episode only ever is truncated, so the tail after its last step counts.
        batch |= {Columns.TERMINATEDS: over.bool(), "weights": over + 1, "n_step": over + 1}
        if STATE in episodes[0]:
            states = [each[STATE][at] for each, at in zip(episodes, starts, strict=True)]
            batch[Columns.STATE_IN] = {STATE: torch.from_numpy(np.stack(states))}
        return SampleBatch(batch)

    def state(self) -> dict[str, Any]:
        """A tree for a checkpoint."""
        return {
            policy: {name: np.stack([each[name] for each in kept]) for name in kept[0]}
            for policy, kept in self.kept.items()
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.kept = {}
        for policy, columns in state.items():
            arrays = {name: np.asarray(values) for name, values in columns.items()}
            count = len(arrays[Columns.REWARDS])
            self.kept[policy] = [{name: a[i] for name, a in arrays.items()} for i in range(count)]


def _arrays(episode: Any) -> dict[str, NDArray[Any]]:
    """Of a whole episode of T steps: OBS (T+1, D), ACTIONS, REWARDS, and the state before each step."""
    found = {
        Columns.OBS: episode.observations.data,
        Columns.ACTIONS: episode.actions.data,
        Columns.REWARDS: episode.rewards.data,
    }
    if Columns.STATE_OUT in episode.extra_model_outputs:
        after = episode.extra_model_outputs[Columns.STATE_OUT].data[STATE]
        found[STATE] = np.concatenate([np.zeros_like(after[:1]), after[:-1]])
    return found


class SteelyardSac(SAC):
    """RLlib's SAC, a round at a time: episodes of all env runners into replay, then gradient steps."""

    def setup(self, config: Any) -> None:
        """As RLlib's, with our replay."""
        super().setup(config)
        plan = config.env_config["replay"]
        self.updates, self.batch_size = plan["updates"], plan["batch_size"]
        self.local_replay_buffer = None
        self.replay = SequenceReplay(plan["episodes"], plan["sequence"], plan["seed"])

    def training_step(self) -> None:
        """One round."""
        episodes, found = synchronous_parallel_sample(
            worker_set=self.env_runner_group,
            sample_timeout_s=self.config.sample_timeout_s,
            _uses_new_env_runners=True,
            _return_metrics=True,
        )
        self.metrics.aggregate(found, key=ENV_RUNNER_RESULTS)
        self.replay.add(episodes)
        key = NUM_ENV_STEPS_SAMPLED_LIFETIME
        timesteps = {key: self.metrics.peek((ENV_RUNNER_RESULTS, key))}
        policies: set[str] = set()
        for _ in range(self.updates):
            learnt = self.learner_group.update(batch=self.replay.sample(self.batch_size), timesteps=timesteps)
            for result in learnt:
                policies |= result.keys() - {ALL_MODULES}
                for of_policy in result.values():
                    of_policy.pop(TD_ERROR_KEY, None)
            self.metrics.aggregate(learnt, key=LEARNER_RESULTS)
        self.env_runner_group.sync_weights(
            from_worker_or_learner_group=self.learner_group, policies=policies, inference_only=True
        )
