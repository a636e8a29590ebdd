"""The scenario reader makes of anything a Scenario that the simulator accepts, or a one-line UserError."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario, scenario_keys
from steelyard.envs.toml_text import write_toml

NAMES = sorted({part.rstrip("[]") for row in scenario_keys() for part in row[0].split(".")})
WORDS = (
    "poisson",
    "mmpp",
    "diurnal",
    "trace",
    "exponential",
    "bimodal",
    "cpu",
    "io",
    "fifo",
    "ps",
    "speed",
    "web",
    "vbf",
)
BASE = "cluster-capacity-drop-train"


def leaves(node: object, prefix: str = "") -> list[str]:
    """Dotted keys of all values in a tree."""
    if not isinstance(node, (dict, list)):
        return [prefix[1:]]
    items = node.items() if isinstance(node, dict) else enumerate(node)
    return [leaf for key, value in items for leaf in leaves(value, f"{prefix}.{key}")]


PRESENT = leaves(Scenario.load(BASE).to_dict())
ANY = [row[0].replace("[]", ".0") for row in scenario_keys()]

numbers = st.one_of(
    st.integers(-3, 9),
    st.integers(),
    st.floats(0, 10),
    st.floats(),
    st.sampled_from([0, 1, 0.5, 60, 1e-9, 1e300, 2**63, 2**64, -0.0]),
)
scalars = st.one_of(numbers, st.booleans(), st.text(max_size=8), st.sampled_from(WORDS))
keys = st.one_of(st.sampled_from(NAMES), st.text(max_size=5))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
    max_leaves=25,
)
plausible = st.one_of(
    st.floats(0.01, 5),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(WORDS),
    st.lists(st.floats(0.01, 5), min_size=1, max_size=8),
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
)
dotted_keys = st.sampled_from(PRESENT) | st.sampled_from(ANY)
documents = st.dictionaries(keys, trees, max_size=5)


def read(make) -> Scenario | None:
    """The scenario, or None after checking that the error is one line."""
    try:
        return make()
    except UserError as error:
        text = str(error)
    assert text
    assert "\n" not in text
    return None


def accepted(scenario: Scenario | None) -> None:
    """What the reader accepts can be written, read again, weighed and simulated."""
    if scenario is None:
        return
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    if scenario.workload.arrival.kind == "trace":
        return
    scenario.offered_load()
    scenario.to_native()


@given(st.binary(max_size=200))
def test_bytes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(data)
    accepted(read(lambda: Scenario.load(path)))


@given(st.text(alphabet=st.sampled_from("[]{}=.,\"\n'#01ax_- "), max_size=60))
def test_text(text):
    accepted(read(lambda: Scenario.from_toml(text)))


@given(documents)
def test_trees(tree):
    accepted(read(lambda: Scenario.from_dict(tree)))


@given(documents)
def test_written_trees(tree):
    accepted(read(lambda: Scenario.from_toml(write_toml(tree))))


@given(st.lists(st.tuples(dotted_keys, plausible | trees), min_size=1, max_size=2))
@settings(max_examples=300)
def test_one_value_of_a_good_scenario(changes):
    tree = Scenario.load(BASE).to_dict()
    for dotted, value in changes:
        node = tree
        *path, last = dotted.split(".")
        for part in path:
            if isinstance(node, dict):
                node = node.setdefault(part, {})
            elif isinstance(node, list):
                node = node[int(part)]
        if isinstance(node, dict):
            node[last] = value
        elif isinstance(node, list):
            node[int(last) % len(node) :] = [value]
    accepted(read(lambda: Scenario.from_dict(tree)))


@given(st.lists(st.tuples(st.sampled_from(PRESENT), st.floats(0.3, 3)), min_size=1, max_size=3))
def test_numbers_near_those_of_a_good_scenario(changes):
    tree = Scenario.load(BASE).to_dict()
    for dotted, factor in changes:
        *path, last = dotted.split(".")
        node = tree
        for part in path:
            node = node[int(part) if isinstance(node, list) else part]
        place = int(last) if isinstance(node, list) else last
        if isinstance(node[place], (int, float)):
            node[place] = type(node[place])(node[place] * factor)
    accepted(read(lambda: Scenario.from_dict(tree)))


@given(
    st.lists(st.text(max_size=30) | st.builds("{}={}".format, dotted_keys, plausible | scalars), max_size=3)
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_overrides(overrides):
    accepted(read(lambda: Scenario.load(BASE, overrides)))


def test_reader_survives_what_the_strategies_cannot_reach():
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UserError):
        Scenario.from_dict({"pool": deep})
    with pytest.raises(UserError):
        Scenario.from_dict({"pool": {"balancers": 10**5000}})
    with pytest.raises(UserError):
        Scenario.from_dict({1: 2})
