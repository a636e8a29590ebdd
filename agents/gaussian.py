"""The tanh-squashed Gaussian of soft actor-critic (Haarnoja et al. 2018, App. C)."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

LOG_STD_MIN, LOG_STD_MAX = -5.0, 0.5


def sample(head: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Reparametrised action (..., N) in [-1, 1] and its log density (...), from head (..., N, 2)."""
    mean, log_std = head[..., 0], head[..., 1].clamp(LOG_STD_MIN, LOG_STD_MAX)
    noise = torch.randn(mean.shape, generator=generator)
    raw = mean + log_std.exp() * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # log(1 - tanh^2), stable
    return torch.tanh(raw), (log_normal - log_slope).sum(-1)
