"""From our settings to RLlib's configuration of an algorithm (new API stack)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from steelyard.agents.normaliser import Normaliser
from steelyard.envs.rllib import LOAD_BALANCE, register_envs
from steelyard.trainers.rllib import learners, modules, sac
from steelyard.trainers.rllib.env_runner import GAME, BatchEnvRunner
from steelyard.trainers.rllib.game import Game
from steelyard.trainers.rllib.settings import Appo, Async, Impala, Ippo, Sac, Settings

_DECAY_POINTS = 40  # corners of the line that stands for 1 / (1 + x)
_DECAY_SPAN = 20.0  # multiples of decay_episodes that it covers


def algorithm_config(game: Game, normaliser: Normaliser, env_runners: int) -> AlgorithmConfig:
    """The configuration whose `build_algo()` trains the game."""
    settings = game.settings
    register_envs()
    runners = max(1, env_runners)
    worlds = -(-settings.num_envs // runners)
    config = _family(game, worlds * runners)
    config.environment(LOAD_BALANCE, env_config={GAME: game, **_replay(game)}, disable_env_checking=True)
    config.env_runners(
        env_runner_cls=BatchEnvRunner,
        num_env_runners=env_runners,
        num_envs_per_env_runner=worlds,
        num_cpus_per_env_runner=1,
        rollout_fragment_length=game.steps,
        batch_mode="complete_episodes" if not isinstance(settings, Async) else "truncate_episodes",
        sample_timeout_s=600,
    )
    config.learners(num_learners=0)
    config.multi_agent(policies=set(game.policies), policy_mapping_fn=_Mapping(game))
    spec = RLModuleSpec(
        module_class=_module(settings),
        observation_space=game.observation_space,
        action_space=game.action_space,
        model_config=_model(game, normaliser),
    )
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=dict.fromkeys(game.policies, spec)))
    config.training(gamma=settings.gamma, grad_clip=settings.grad_clip, grad_clip_by="global_norm")
    config.reporting(
        min_time_s_per_iteration=0,
        min_sample_timesteps_per_iteration=0,
        min_train_timesteps_per_iteration=0,
    )
    return config.framework("torch").debugging(seed=game.seed % 2**31, log_level="ERROR")


def _family(game: Game, round_episodes: int) -> AlgorithmConfig:
    settings = game.settings
    if isinstance(settings, Sac):
        return _sac(settings, game)
    steps = round_episodes * game.steps
    common: dict[str, Any] = {
        "lr": _falling(settings.lr, settings, game) if isinstance(settings, Ippo | Async) else None,
        "entropy_coeff": settings.entropy if isinstance(settings, Ippo | Async) else 0.0,
        "vf_loss_coeff": settings.value_weight if isinstance(settings, Ippo | Async) else 0.0,
        "train_batch_size_per_learner": steps,
    }
    if isinstance(settings, Ippo):
        return PPOConfig().training(
            **common,
            lambda_=settings.gae_lambda,
            clip_param=settings.clip_ratio,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            num_epochs=settings.epochs,
            minibatch_size=settings.minibatch,
            shuffle_batch_per_epoch=not settings.recurrent,
            learner_class=learners.PpoLearner,
        )
    if isinstance(settings, Appo):
        config = APPOConfig().training(
            **common, clip_param=settings.clip_ratio, learner_class=learners.AppoLearner
        )
        return config.training(circular_buffer_iterations_per_batch=1)
    assert isinstance(settings, Impala)
    return IMPALAConfig().training(**common, learner_class=learners.ImpalaLearner)


def _sac(settings: Sac, game: Game) -> AlgorithmConfig:
    return SACConfig(algo_class=sac.SteelyardSac).training(
        lr=None,
        actor_lr=_falling(settings.actor_lr, settings, game),
        critic_lr=settings.critic_lr,
        alpha_lr=settings.alpha_lr,
        initial_alpha=settings.alpha,
        target_entropy=settings.target_entropy * game.action_space.shape[0],  # type: ignore[index]
        tau=settings.tau,
        twin_q=True,
        n_step=1,
        train_batch_size_per_learner=settings.batch_size,
        num_steps_sampled_before_learning_starts=0,
        learner_class=sac.SacLearner,
    )


def _replay(game: Game) -> dict[str, Any]:
    settings = game.settings
    if not isinstance(settings, Sac):
        return {}
    agents = len(game.agents) if settings.policies == "shared" else 1  # that fill one replay
    updates = max(1, round(settings.updates_per_episode * settings.num_envs))
    return {
        "replay": {
            "updates": updates,
            "batch_size": settings.batch_size,
            "episodes": settings.replay_episodes * agents,
            "sequence": settings.sequence if settings.recurrent else 1,
            "seed": game.seed,
        }
    }


def _module(settings: Settings) -> type:
    if isinstance(settings, Sac):
        return sac.SacModule
    return modules.LaggingModule if isinstance(settings, Appo) else modules.ActorCriticModule


def _model(game: Game, normaliser: Normaliser) -> dict[str, Any]:
    """What a module is made of, in plain numbers."""
    settings = game.settings
    mean, inverse = normaliser.vectors()
    names = ("policies", "recurrent", "input", "discrete", "hidden", "critic_hidden", "clip", "bias_rate")
    return {
        **{name: value for name, value in dataclasses.asdict(settings).items() if name in names},
        "critic": getattr(settings, "critic", "flat"),
        "sees_state": settings.sees_state,
        "num_servers": game.scenario.num_servers,
        "num_agents": game.scenario.num_agents,
        "max_seq_len": settings.sequence,
        "mean": mean.tolist(),
        "inverse": inverse.tolist(),
    }


def _falling(rate: float, settings: Settings, game: Game) -> list[list[float]]:
    """rate / (1 + episodes / decay_episodes) as RLlib's schedule, a broken line over environment steps."""
    ends = [(_DECAY_SPAN + 1) ** (index / _DECAY_POINTS) - 1 for index in range(_DECAY_POINTS + 1)]
    unit = settings.decay_episodes * game.steps
    return [[round(x * unit), rate / (1 + x)] for x in ends]


class _Mapping:
    """RLlib's function from agents to policies; a class, so that it travels and is compared by value."""

    def __init__(self, game: Game) -> None:
        self.policies = {agent: game.policy_of(agent) for agent in game.agents}

    def __call__(self, agent_id: str, episode: Any = None, **kwargs: Any) -> str:
        return self.policies[agent_id]
