"""From an actor that BenchMARL trained to the policy file that native inference runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarl.models.mlp import Mlp
from torch import nn

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.torchrl_group_env import GROUP
from steelyard.trainers import results
from steelyard.trainers.benchmarl_task import CLIP, LoadBalanceTask, statistics

ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}


def export_benchmarl(experiment: Any, path: str | Path) -> bytes:
    """Write the actors of a benchmarl.experiment.Experiment on our task to `path`; the bytes written.

    The policy acts by the mean of its distribution, with the task's normalisation in it. One actor is written
    if the agents share parameters (it then serves any number of balancers), else one per agent. Every host
    runs the file, and `steelyard evaluate --policy FILE` and `steelyard export FILE` take it.

    UserError, and nothing written, for what a policy file cannot hold: another task, discrete actions (steps
    of the weights), another model than Mlp of dense layers, other activations than relu, tanh or sigmoid, a
    distribution without tanh, or weights that are NaN or infinite.
    """
    layers, servers = _layers(experiment), experiment.test_env.batch.num_servers
    mean, inverse = statistics(experiment.task.options).observation.vectors()
    spec = {
        "num_servers": servers,
        "input": "flat",
        "output": "tanh",
        "clip": CLIP,
        "actors": [{"mean": mean, "inv_std": inverse, "layers": each} for each in layers],
    }
    try:
        blob = bytes(native.encode_policy(spec))
    except ValueError as error:
        raise UserError(f"export: {error}") from error
    results.write_file("export", Path(path), blob)
    return blob


def _layers(experiment: Any) -> list[list[dict[str, Any]]]:
    """Layers of each actor, the last one limited to the means."""
    model = _model(experiment)
    params = model.mlp.params
    actors = [params] if model.share_params else [params[index] for index in range(model.n_agents)]
    found, activation = [], ACTIVATIONS[experiment.model_config.activation_class]
    for actor in actors:
        names = sorted({key[0] for key in actor.keys(True, True)}, key=int)
        layers = [_dense(actor[name, "weight"], actor[name, "bias"], activation) for name in names]
        servers = experiment.test_env.batch.num_servers
        means = {key: np.ascontiguousarray(layers[-1][key][:servers]) for key in ("weight", "bias")}
        found.append([*layers[:-1], layers[-1] | means | {"activation": "none"}])
    return found


def _dense(weight: torch.Tensor, bias: torch.Tensor, activation: str) -> dict[str, Any]:
    arrays = {"weight": weight, "bias": bias}
    copied = {name: value.detach().cpu().numpy().astype(np.float32) for name, value in arrays.items()}
    return {"kind": "dense", "activation": activation} | copied


def _model(experiment: Any) -> Mlp:
    """The actors' network; UserError if a policy file cannot hold it."""
    if not isinstance(experiment.task, LoadBalanceTask):
        raise UserError(f"export: the task is {experiment.task.name}; allowed: one of SteelyardTask")
    if not experiment.continuous_actions:
        raise UserError(
            f"export: {experiment.algorithm_name} was trained on discrete actions, which are steps of the "
            "weights; a policy file holds weights: train with continuous actions"
        )
    algorithm, config = experiment.algorithm, experiment.model_config
    policy = algorithm.get_policy_for_loss(GROUP)
    models = [module for module in policy.modules() if isinstance(module, Mlp)]
    if len(models) != 1 or config.layer_class is not nn.Linear or config.norm_class is not None:
        raise UserError("export: the actor is not one MlpConfig of torch.nn.Linear layers without norm_class")
    if config.activation_class not in ACTIVATIONS or config.activation_kwargs:
        name = config.activation_class.__name__
        raise UserError(f"export: activation_class is {name}; allowed: ReLU, Tanh or Sigmoid")
    for flag in ("use_tanh_normal", "use_tanh_mapping"):
        if not getattr(algorithm, flag, True):
            raise UserError(f"export: {flag} is False, so actions are not squashed by tanh; allowed: True")
    return models[0]
