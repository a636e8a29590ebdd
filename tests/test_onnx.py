"""ONNX exports: ONNX Runtime gives the numbers of native inference to tolerance, step by step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_specs import make, observations, policy_spec
from test_rack_export import SERVERS, learned

from steelyard import native
from steelyard.deploy import policy_file
from steelyard.deploy.export import export

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

POLICIES = {
    "gru of two actors": ("gru", 8, "flat", "tanh", 2),
    "gru over rows": ("gru", 5, "per_server", "discrete3", 1),
    "feedforward": ("feedforward", 3, "flat", "discrete3", 1),
    "feedforward over rows": ("feedforward", 4, "per_server", "tanh", 1),
    "linear of three actors": ("linear", 9, "flat", "clip", 3),
}


def session(folder: Path) -> Any:
    """ONNX Runtime on one thread."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return runtime.InferenceSession(str(folder / "policy.onnx"), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", POLICIES)
def test_onnx_agrees_with_native_inference(tmp_path: Path, name: str) -> None:
    """150 steps of every actor, the state going round. Both are float32 with sums in another order, so
    actions agree to 1e-5; a choice of three where the two best logits are further apart than that."""
    kind, servers, reads, output, actors = POLICIES[name]
    twins = [make(kind, servers, reads, output, hidden=20, seed=seed) for seed in range(actors)]
    (tmp_path / "policy.bin").write_bytes(native.encode_policy(policy_spec(twins)))
    export(tmp_path / "policy.bin", tmp_path / "out", "onnx")
    run, policy = session(tmp_path / "out"), native.Policy(tmp_path / "policy.bin")
    inputs = {value.name: value.shape for value in run.get_inputs()}
    assert ("state" in inputs) == (kind == "gru")
    assert ("actor" in inputs) == (actors > 1)
    wrong = 0
    for actor in range(actors):
        state = np.zeros((1, inputs["state"][1]), np.float32) if "state" in inputs else None
        for obs in observations(servers, 150, seed=actor):
            feeds = {"obs": obs[None]} | ({"actor": np.array(actor)} if actors > 1 else {})
            if state is not None:
                action, state = run.run(["action", "next_state"], feeds | {"state": state})
            else:
                (action,) = run.run(["action"], feeds)
            expected = policy.infer(actor, obs)
            if output == "discrete3":
                wrong += int((np.abs(action[0] - expected) > 1e-6).sum())
            else:
                np.testing.assert_allclose(action[0], expected, atol=1e-5)
    assert wrong <= 2


def test_a_batch_is_its_rows(tmp_path: Path) -> None:
    twin = make("gru", 5, "per_server", "tanh", hidden=12)
    (tmp_path / "policy.bin").write_bytes(native.encode_policy(policy_spec([twin])))
    export(tmp_path / "policy.bin", tmp_path / "out", "onnx")
    run, obs = session(tmp_path / "out"), observations(5, 6, seed=1)
    width = {value.name: value.shape for value in run.get_inputs()}["state"][1]
    state = np.random.default_rng(0).normal(0, 1, (6, width)).astype(np.float32)
    together = run.run(None, {"obs": obs, "state": state})
    for row in range(6):
        alone = run.run(None, {"obs": obs[row : row + 1], "state": state[row : row + 1]})
        for whole, part in zip(together, alone, strict=True):
            np.testing.assert_allclose(whole[row : row + 1], part, atol=1e-6)


def test_a_central_policy(tmp_path: Path) -> None:
    blob = Path(__file__).parent.parent / "native" / "tests" / "corpus" / "policy_blob" / "central.bin"
    export(blob, tmp_path / "out", "onnx")
    run, policy = session(tmp_path / "out"), native.Policy(blob)
    draw = np.random.default_rng(3)
    shapes = {value.name: value.shape for value in run.get_inputs()}
    feeds = {name: np.zeros((1, shape[1]), np.float32) for name, shape in shapes.items()}
    feeds["obs"] = draw.exponential(1.0, (1, policy.obs_size)).astype(np.float32)
    np.testing.assert_allclose(run.run(["action"], feeds)[0][0], policy.infer(0, feeds["obs"][0]), atol=1e-5)


def test_a_racks_probabilities(tmp_path: Path) -> None:
    """Of every server, at inputs as the server knows them."""
    run = learned(tmp_path / "run", "code")
    export(run, tmp_path / "out", "onnx")
    session_, spec = session(tmp_path / "out"), policy_file.read(run).spec
    draw = np.random.default_rng(5)
    for server in (0, 4, SERVERS - 1):
        twin = native.MalcolmServer(spec["config"], SERVERS, server, 3)
        parameters = twin.parameters
        parameters[: spec["actors"].shape[1]] = spec["actors"][server]
        twin.parameters, twin.frozen = parameters, True
        for other in range(SERVERS):
            twin.on_load_message(other, float(draw.exponential(5e-3)))
        twin.on_window()
        found = session_.run(None, {"inputs": twin.inputs[None], "actor": np.array(server)})
        for actor, values in zip(("migration", "stealing"), found, strict=True):
            np.testing.assert_allclose(values[0], twin.probabilities(actor), atol=2e-6)


def test_the_folder_holds_what_the_card_says(tmp_path: Path) -> None:
    (tmp_path / "policy.bin").write_bytes(
        native.encode_policy(policy_spec([make("linear", 3, "flat", "tanh")]))
    )
    done = export(tmp_path / "policy.bin", tmp_path / "out", "onnx")
    assert [path.name for path in done.files] == ["policy.onnx", "policy.bin", "MODEL_CARD.md"]
    model = onnx.load(tmp_path / "out" / "policy.onnx")
    properties = {entry.key: entry.value for entry in model.metadata_props}
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert properties["policy_sha256"] in card
    assert "policy.onnx" in card
