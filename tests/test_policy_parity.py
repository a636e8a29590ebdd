"""PyTorch against native inference over whole episodes, and what encode_policy and Policy accept."""

import copy
import math

import numpy as np
import policy_specs
import pytest
import torch
from policy_specs import make, observations, policy_spec

from steelyard import native

torch.set_num_threads(1)
STEPS = 150  # an episode of 60 s has 120
TOLERANCE = 2e-6
SHAPES = [
    ("gru", 8, "flat", "tanh"),
    ("gru", 9, "flat", "discrete3"),
    ("gru", 8, "per_server", "tanh"),
    ("gru", 5, "per_server", "discrete3"),
    ("feedforward", 8, "flat", "tanh"),
    ("feedforward", 3, "per_server", "clip"),
    ("linear", 8, "flat", "clip"),
    ("linear", 1, "flat", "tanh"),
]


@pytest.mark.parametrize(("kind", "servers", "input_mode", "output"), SHAPES)
@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_torch_and_native_agree_over_an_episode(kind, servers, input_mode, output, gain):
    """|native - torch| <= 2e-6 max(1, |torch|) at every step, the state carried along."""
    twin = make(kind, servers, input_mode, output, gain=gain)
    policy = native.Policy(native.encode_policy(twin.spec()))
    for step, obs in enumerate(observations(servers, STEPS, seed=1)):
        found = policy.infer(0, obs)
        if output == "discrete3":
            logits = twin.logits(obs)
            best = logits.topk(2, dim=-1).values
            clear = (best[:, 0] - best[:, 1] > 1e-5).numpy()  # a nearer choice may fall either way
            expected = np.array([0.0, math.log2(1.5) / 2, 0.5], np.float32)[logits.argmax(-1).numpy()]
            np.testing.assert_array_equal(found[clear], expected[clear])
            continue
        expected = twin.action(obs)
        error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
        assert error.max() <= TOLERANCE, f"step {step}"
        assert np.abs(found).max() <= 1.0


def test_states_belong_to_agents_and_reset():
    twins = [make("gru", 4, "flat", "tanh", hidden=16, seed=seed) for seed in range(3)]
    policy = native.Policy(native.encode_policy(policy_spec(twins)))
    sequence = observations(4, 6, seed=2)
    first = [[policy.infer(agent, obs) for agent in (0, 1, 2)] for obs in sequence]
    for obs, actions in zip(sequence, first, strict=True):
        for twin, action in zip(twins, actions, strict=True):
            np.testing.assert_allclose(action, twin.action(obs), rtol=0, atol=TOLERANCE)
    policy.reset()
    assert not policy.state.any()
    again = [[policy.infer(agent, obs) for agent in (0, 1, 2)] for obs in sequence]
    np.testing.assert_array_equal(again, first)


def test_one_actor_serves_many_agents_apart():
    policy = native.Policy(native.encode_policy(make("gru", 2, "per_server", "tanh").spec()), num_agents=3)
    obs = observations(2, 2, seed=3)
    one = policy.infer(0, obs[0])
    np.testing.assert_array_equal(policy.infer(2, obs[0]), one)
    snapshot = copy.copy(policy)
    moved = policy.infer(0, obs[1])
    assert (moved != one).any()
    np.testing.assert_array_equal(snapshot.infer(0, obs[1]), moved)
    assert (policy.num_agents, policy.num_actors, policy.num_servers, policy.obs_size) == (3, 1, 2, 29)
    assert policy.schema_hash == native.observation_schema_hash(2)


def test_permuting_servers_permutes_a_row_policy():
    """Shared weights: the order of the servers is only a labelling (up to the order of one sum)."""
    policy = native.Policy(native.encode_policy(make("gru", 6, "per_server", "tanh").spec()))
    spec = native.decode_policy(native.encode_policy(make("gru", 6, "per_server", "tanh").spec()))
    for key in ("mean", "inv_std"):
        spec["actors"][0][key][:] = 1.0
    policy = native.Policy(native.encode_policy(spec))
    order = np.array([3, 0, 5, 1, 4, 2])
    obs = observations(6, 1, seed=4)[0]
    features, arrival, previous = obs[:66].reshape(6, 11), obs[66:71], obs[71:]
    permuted = np.concatenate([features[order].ravel(), arrival, previous[order]])
    action = policy.infer(0, obs)
    policy.reset()
    np.testing.assert_allclose(policy.infer(0, permuted), action[order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_observations_must_be_finite(bad):
    policy = native.Policy(native.encode_policy(make("gru", 2, "flat", "tanh", hidden=8).spec()))
    obs = observations(2, 1, seed=5)[0]
    policy.infer(0, obs)
    state = policy.state
    obs[17] = bad
    with pytest.raises(ValueError, match="not finite"):
        policy.infer(0, obs)
    np.testing.assert_array_equal(policy.state, state)


def test_observations_must_fit():
    policy = native.Policy(native.encode_policy(make("linear", 2, "flat", "tanh").spec()))
    with pytest.raises(ValueError, match=r"obs has shape \(28,\); expected \(29,\)"):
        policy.infer(0, np.zeros(28, np.float32))
    with pytest.raises(ValueError, match=r"obs has shape \(1, 29\); must have 1 dimension"):
        policy.infer(0, np.zeros((1, 29), np.float32))
    with pytest.raises(ValueError, match="obs has dtype float64; must be float32"):
        policy.infer(0, np.zeros(29))
    with pytest.raises(ValueError, match=r"agent is 1; must be in 0..0"):
        policy.infer(1, np.zeros(29, np.float32))
    with pytest.raises(ValueError, match="num_agents"):
        native.Policy(native.encode_policy(make("linear", 2, "flat", "tanh").spec()), num_agents=-1)


def test_encoding_is_undone_by_decoding():
    spec = policy_spec([make("gru", 3, "flat", "discrete3", hidden=10, seed=seed) for seed in (1, 2)])
    blob = native.encode_policy(spec)
    back = native.decode_policy(blob)
    assert native.encode_policy(back) == blob
    assert back["schema_hash"] == native.observation_schema_hash(3)
    for given, found in zip(spec["actors"], back["actors"], strict=True):
        np.testing.assert_array_equal(given["mean"].view(np.int32), found["mean"].view(np.int32))
        for layer, other in zip(given["layers"], found["layers"], strict=True):
            assert layer.keys() == other.keys()
            for key, value in layer.items():
                np.testing.assert_array_equal(value, other[key])


def test_views_in_any_order_are_stored_by_value():
    spec = make("linear", 1, "flat", "tanh").spec()
    weight = spec["actors"][0]["layers"][0]["weight"]
    blob = native.encode_policy(spec)
    spec["actors"][0]["layers"][0]["weight"] = np.asfortranarray(np.repeat(weight, 2, axis=1))[:, ::2]
    assert native.encode_policy(spec) == blob


def layer(index):
    return lambda spec: spec["actors"][0]["layers"][index]


BAD_SPECS = {
    "unknown key": (lambda s: s.update(colour="red"), "policy has the unknown key 'colour'"),
    "missing key": (lambda s: s.pop("clip"), "policy misses the key 'clip'"),
    "no servers": (lambda s: s.update(num_servers=0), "num_servers is 0; must be in 1..4096"),
    "negative servers": (
        lambda s: s.update(num_servers=-4),
        "policy.num_servers is -4; must be a number in range",
    ),
    "other pool": (lambda s: s.update(num_servers=3), r"mean has shape \(53,\); expected \(41,\)"),
    "input": (lambda s: s.update(input="rows"), "input is 'rows'; must be one of flat, per_server"),
    "output": (
        lambda s: s.update(output="softmax"),
        "output is 'softmax'; must be one of tanh, clip, discrete3",
    ),
    "clip": (lambda s: s.update(clip=0.0), "clip is 0; must be finite and > 0"),
    "schema": (lambda s: s.update(schema_hash=5), "observation schema is 0x0000000000000005; this build has"),
    "no actors": (lambda s: s.update(actors=[]), "num_actors is 0"),
    "no layers": (lambda s: s["actors"][0].update(layers=[]), "num_layers is 0"),
    "kind": (
        lambda s: layer(0)(s).update(kind="lstm"),
        r"layers\[0\].kind is 'lstm'; must be one of dense, gru",
    ),
    "activation": (
        lambda s: layer(0)(s).update(activation="gelu"),
        r"actors\[0\].layers\[0\].activation is 'gelu'; must be one of none, relu, tanh, sigmoid",
    ),
    "dtype": (
        lambda s: layer(0)(s).update(bias=np.zeros(6)),
        r"actors\[0\].layers\[0\].bias has dtype float64; must be float32",
    ),
    "bias": (
        lambda s: layer(0)(s).update(bias=np.zeros(5, np.float32)),
        r"actors\[0\].layers\[0\].bias has shape \(5,\); expected \(6,\)",
    ),
    "gru": (
        lambda s: layer(1)(s).update(weight_ih=np.zeros((12, 6), np.float32)),
        r"actors\[0\].layers\[1\].weight_ih has shape \(12, 6\); expected \(18, 6\)",
    ),
    "chain": (
        lambda s: layer(1)(s).update(weight_ih=np.zeros((18, 7), np.float32)),
        r"actors\[0\].layers\[1\] has 7 inputs; expected 6 \(the layer before\)",
    ),
    "observation": (
        lambda s: layer(0)(s).update(weight=np.zeros((6, 9), np.float32)),
        r"actors\[0\].layers\[0\] has 9 inputs; expected 53 \(the observation\)",
    ),
    "outputs": (
        lambda s: s.update(output="discrete3"),
        r"layers\[3\] has 4 outputs; the last layer must have 12",
    ),
    "nan weight": (
        lambda s: layer(2)(s)["weight"].__setitem__((1, 2), np.nan),
        r"actors\[0\].layers\[2\].weight\[8\] is -?nan; must be finite",
    ),
    "infinite mean": (
        lambda s: s["actors"][0]["mean"].__setitem__(3, np.inf),
        r"mean\[3\] is inf; must be finite",
    ),
    "negative scale": (
        lambda s: s["actors"][0]["inv_std"].__setitem__(0, -1.0),
        r"actors\[0\].inv_std\[0\] is -1; must be finite and > 0",
    ),
    "not an array": (lambda s: layer(3)(s).update(bias=[0.0] * 4), "bias must be a numpy float32 array"),
}


@pytest.mark.parametrize(("change", "message"), BAD_SPECS.values(), ids=BAD_SPECS.keys())
def test_bad_specs_are_refused_by_name(change, message):
    spec = policy_specs.make("gru", 4, "flat", "tanh", hidden=6).spec()
    change(spec)
    with pytest.raises(ValueError, match=message) as error:
        native.encode_policy(spec)
    assert "\n" not in str(error.value)


def test_actors_must_be_alike():
    actors = [make("gru", 2, "flat", "tanh", hidden=size) for size in (4, 5)]
    with pytest.raises(ValueError, match=r"actors\[1\] has other layers than actors\[0\]"):
        native.encode_policy(policy_spec(actors))
