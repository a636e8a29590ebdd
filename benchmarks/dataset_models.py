"""Models that tell the load of servers and the kind of traffic from what a balancer sees, as examples.

What they are told is one balancer's features alone; scikit-learn has the models without memory, PyTorch MLB's
recurrent one (seed 004, ch. 5: two GRU layers of 20, after Aquarius' table 3.7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.benchmarks.dataset import FEATURES, Columns
from steelyard.envs.errors import UserError

Array = NDArray[np.float64]
WINDOW = 32
"""Steps that a recurrent model sees (Aquarius, sec. 3.3.2)."""
AHEAD = 8
"""Steps ahead of the later target (the same section)."""
STRIDE = 8
"""Of the windows to train the recurrent model on."""
HIDDEN, LAYERS = 20, 2
EPOCHS, BATCH, RATE = 6, 128, 3e-3
INSTALL = "pip install 'steelyard[datasets]'"


@dataclass(frozen=True)
class Series:
    """A dataset as S series (one for each episode, balancer and server) of T steps."""

    features: NDArray[np.float32]
    """(S, T, F), in the order of FEATURES."""
    load: Array
    """(S, T) requests in the server."""
    seed: NDArray[np.int64]
    """(S,)."""
    balancers: int


@dataclass(frozen=True)
class Flat:
    """What a balancer sees of all servers together, (n,) moments."""

    features: Array
    """(n, F): mean over servers of each feature."""
    traffic: NDArray[Any]
    """(n,) names."""
    seed: NDArray[np.int64]
    """(n,)."""


class Regressor(Protocol):
    """A model of the load. Windows: (S, T, F); predictions (S, K, 2) at steps WINDOW - 1 ... T - AHEAD - 1:
    now, and AHEAD steps later.
    """

    def fit(self, windows: NDArray[np.float32], load: Array) -> None:
        """Learn from series."""

    def predict(self, windows: NDArray[np.float32]) -> Array:
        """What it says of others."""


def series(data: Columns) -> Series:
    """The columns of a dataset as series. UserError if episodes are too short or of unequal length."""
    order = np.lexsort((data["step"], data["server"], data["balancer"], data["episode"]))
    steps = int(data["step"].max()) + 1
    if len(order) % steps or not (data["step"][order].reshape(-1, steps) == np.arange(steps)).all():
        raise UserError("dataset: every episode must have as many steps")
    if steps < WINDOW + AHEAD:
        raise UserError(f"dataset: {steps} steps in an episode; allowed: {WINDOW + AHEAD} or more")
    features = np.stack([data[name][order].reshape(-1, steps) for name in FEATURES], axis=-1)
    load, seed = (data[name][order].reshape(-1, steps) for name in ("in_server", "seed"))
    return Series(features.astype(np.float32), load, seed[:, 0], int(data["balancer"].max()) + 1)


def flat(data: Columns) -> Flat:
    """What a balancer sees at every step but the first ones, whose reservoirs are empty."""
    order = np.lexsort((data["server"], data["step"], data["balancer"], data["episode"]))
    servers = int(data["server"].max()) + 1
    late = data["step"][order].reshape(-1, servers)[:, 0] >= AHEAD
    parts = [data[name][order].reshape(-1, servers).mean(1)[late] for name in FEATURES]
    traffic, seed = (data[name][order].reshape(-1, servers)[late, 0] for name in ("traffic", "seed"))
    return Flat(np.stack(parts, axis=1).astype(float), traffic.astype(str), seed)


def targets(load: Array) -> Array:
    """(S, K, 2) load now and AHEAD steps later, at the steps that models are asked about."""
    return np.stack([load[:, WINDOW - 1 : -AHEAD], load[:, WINDOW - 1 + AHEAD :]], axis=-1)


def asked(windows: NDArray[Any]) -> NDArray[Any]:
    """(S, K, F) features at those steps."""
    return windows[:, WINDOW - 1 : -AHEAD]


class Mean:
    """Baseline: the mean of the training data."""

    def fit(self, windows: NDArray[np.float32], load: Array) -> None:
        """Learn it."""
        self._mean = targets(load).mean((0, 1))

    def predict(self, windows: NDArray[np.float32]) -> Array:
        """It, everywhere."""
        return np.broadcast_to(self._mean, (*asked(windows).shape[:2], 2)).astype(float)


class Counted:
    """Baseline without learning: the balancer's own open flows, times the number of balancers."""

    def __init__(self, balancers: int):
        self._factor = balancers

    def fit(self, windows: NDArray[np.float32], load: Array) -> None:
        """Nothing."""

    def predict(self, windows: NDArray[np.float32]) -> Array:
        """The same now and later."""
        counted = self._factor * asked(windows)[..., FEATURES.index("n_flow_on")].astype(float)
        return np.stack([counted, counted], axis=-1)


class Rows:
    """A scikit-learn regressor of the features at one moment, one for each target."""

    def __init__(self, make: Callable[[], Any]):
        self._models = [make(), make()]

    def fit(self, windows: NDArray[np.float32], load: Array) -> None:
        """Fit both."""
        rows = asked(windows).reshape(-1, len(FEATURES))
        for index, model in enumerate(self._models):
            model.fit(rows, targets(load)[..., index].reshape(-1))

    def predict(self, windows: NDArray[np.float32]) -> Array:
        """Both."""
        there = asked(windows)
        said = [model.predict(there.reshape(-1, len(FEATURES))) for model in self._models]
        return np.stack(said, axis=-1).reshape(*there.shape[:2], 2)


class Recurrent:
    """MLB's regressor: a GRU over the last WINDOW steps, both targets from its last state."""

    def __init__(self, seed: int):
        self._seed = seed

    def fit(self, windows: NDArray[np.float32], load: Array) -> None:
        """Adam on the squared error of standardised targets."""
        import torch

        flat_features = windows.reshape(-1, windows.shape[-1])
        self._center, self._scale = flat_features.mean(0), flat_features.std(0) + 1e-6
        wanted = targets(load)
        self._mean, self._spread = wanted.mean((0, 1)), wanted.std((0, 1)) + 1e-6
        inputs = self._cut(windows)[:, ::STRIDE].reshape(-1, WINDOW, windows.shape[-1])
        scaled = torch.as_tensor((wanted - self._mean) / self._spread, dtype=torch.float32)
        outputs = scaled[:, ::STRIDE].reshape(-1, 2)
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            self._net = _net(windows.shape[-1])
            optimizer = torch.optim.Adam(self._net.parameters(), lr=RATE)
            for _ in range(EPOCHS):
                for batch in torch.randperm(len(inputs)).split(BATCH):
                    error = (_said(self._net, inputs[batch]) - outputs[batch]).square().mean()
                    optimizer.zero_grad()
                    error.backward()
                    optimizer.step()

    def predict(self, windows: NDArray[np.float32]) -> Array:
        """Both targets."""
        import torch

        said = []
        with torch.no_grad():
            for each in self._cut(windows):
                said.append(_said(self._net, each).numpy())
        return np.stack(said).astype(float) * self._spread + self._mean

    def _cut(self, windows: NDArray[np.float32]) -> Any:
        """(S, K, WINDOW, F), a view: the last WINDOW steps at every step that is asked about."""
        import torch

        scaled = torch.as_tensor((windows - self._center) / self._scale, dtype=torch.float32)
        return scaled[:, : scaled.shape[1] - AHEAD].unfold(1, WINDOW, 1).transpose(2, 3)


def _net(inputs: int) -> Any:
    import torch

    gru = torch.nn.GRU(inputs, HIDDEN, LAYERS, batch_first=True)
    return torch.nn.ModuleDict({"gru": gru, "head": torch.nn.Linear(HIDDEN, 2)})


def _said(net: Any, inputs: Any) -> Any:
    states, _ = net["gru"](inputs)
    return net["head"](states[:, -1])


def regressors(balancers: int, seed: int) -> dict[str, Regressor]:
    """Baselines and models by name. UserError without scikit-learn or PyTorch."""
    need_sklearn()
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "mean": Mean(),
        "counted": Counted(balancers),
        "ridge": Rows(lambda: make_pipeline(StandardScaler(), Ridge())),
        "boosting": Rows(lambda: HistGradientBoostingRegressor(random_state=seed)),
        "gru": Recurrent(seed),
    }


def classifiers(seed: int) -> dict[str, Any]:
    """Classifiers of traffic by name, the baseline first."""
    need_sklearn()
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "most frequent": DummyClassifier(),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "forest": RandomForestClassifier(40, max_depth=12, random_state=seed, n_jobs=1),
    }


def clusters(features: Array, kinds: int, seed: int) -> NDArray[np.int64]:
    """Traffic told apart without labels (Aquarius, table 3.4): a Gaussian mixture of that many parts."""
    need_sklearn()
    from sklearn.mixture import GaussianMixture
    from sklearn.preprocessing import StandardScaler

    scaled = StandardScaler().fit_transform(features)
    return GaussianMixture(kinds, random_state=seed, reg_covar=1e-4).fit_predict(scaled)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread within the block: models as small as these lose more by waiting than they gain."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def need_sklearn() -> None:
    """UserError if scikit-learn is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise UserError(f"scikit-learn is missing; install it: {INSTALL}") from None
