"""Where things lie in an observation of schema v1, and how a row per server is cut from it.

obs: (..., 11 N + 5 + N) = N x 11 features, server-major; 5 inter-arrival features; N previous actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FEATURES_PER_SERVER = 11
INTER_ARRIVAL_FEATURES = 5
ROW_DIM = 2 * (FEATURES_PER_SERVER + 1) + INTER_ARRIVAL_FEATURES
PREVIOUS_ACTION_COLUMNS = (FEATURES_PER_SERVER, ROW_DIM - 1)  # of a row: the server's own and the pool's mean

# Weights of the discrete action set {1, 1.5, 2}, as actions: a = log2(weight) / 2.
DISCRETE_ACTIONS = (0.0, 0.29248125, 0.5)


def observation_dim(num_servers: int) -> int:
    """Length of one agent's observation."""
    return (FEATURES_PER_SERVER + 1) * num_servers + INTER_ARRIVAL_FEATURES


def server_rows(obs: torch.Tensor, num_servers: int) -> torch.Tensor:
    """Rows that a network shared by all servers reads: (..., obs_dim) normalised -> (..., N, 29).

    Row j = [11 features of server j, its previous action, 5 inter-arrival features, mean over servers of the
    first 12]. The mean lets a row compare its server with the pool and keeps the map permutation equivariant
    (Zaheer et al., Deep Sets, 2017).
    """
    import torch

    split = FEATURES_PER_SERVER * num_servers
    features = obs[..., :split].unflatten(-1, (num_servers, FEATURES_PER_SERVER))
    arrival = obs[..., split : split + INTER_ARRIVAL_FEATURES]
    previous = obs[..., split + INTER_ARRIVAL_FEATURES :]
    own = torch.cat([features, previous.unsqueeze(-1)], dim=-1)
    pool = own.mean(dim=-2, keepdim=True).expand_as(own)
    arrival = arrival.unsqueeze(-2).expand(*own.shape[:-1], INTER_ARRIVAL_FEATURES)
    return torch.cat([own, arrival, pool], dim=-1)


def central_rows(obs: torch.Tensor, num_servers: int) -> torch.Tensor:
    """Rows that a central network shared by all servers reads: (..., M, obs_dim) -> (..., N, 29 + 12 M).

    Row j = [row j of the balancers' mean observation, then of each balancer its 11 features of server j and
    its previous action]: what the pool as a whole says of the server, and who sees what of it.
    """
    import torch

    own = server_rows(obs, num_servers)[..., : FEATURES_PER_SERVER + 1]
    each = own.transpose(-3, -2).flatten(-2)
    return torch.cat([server_rows(obs.mean(dim=-2), num_servers), each], dim=-1)


def central_row_dim(num_agents: int) -> int:
    """Length of a row of `central_rows`."""
    return ROW_DIM + num_agents * (FEATURES_PER_SERVER + 1)


def central_bytes_per_step(num_agents: int, num_servers: int) -> int:
    """Bytes that central control moves at every step: M observations up, M x N weights down, all float32."""
    return 4 * num_agents * (observation_dim(num_servers) + num_servers)
