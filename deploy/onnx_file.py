"""Policies as ONNX graphs, for runtimes other than ours: the same layers in the operators of opset 17.

Load balancers: inputs obs (batch, D) and, of recurrent policies, state (batch, S); outputs action (batch, A)
and next_state. Racks: input inputs (batch, K), outputs migration and stealing (batch, N), the probabilities.
A policy of several actors has one more input, actor, a scalar int64 that selects whose weights are used. The
numbers agree with native inference to tolerance, not to the bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.deploy.policy_file import PolicyFile
from steelyard.deploy.rack_file import RackFile
from steelyard.envs.errors import UserError

NAME = "policy.onnx"
OPSET = 17
_IR_VERSION = 8  # of opset 17: read by every ONNX Runtime since 1.12
_FEATURES, _GLOBALS, _CHOICES = 11, 5, 3  # of native/core/schema.h and policy.h
_CHOICE_ACTIONS = (0.0, 0.29248123, 0.5)  # log2 of 1, 1.5, 2, halved
_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


def check_installed() -> None:
    """UserError unless the package onnx is there."""
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("--to onnx: needs the package onnx; pip install 'steelyard[onnx]'") from None


def write(policy: PolicyFile | RackFile, path: Path) -> None:
    """Write the graph of `policy` to `path`, checked."""
    import onnx

    graph = _Graph()
    if isinstance(policy, RackFile):
        _rack(graph, policy)
    else:
        _balancers(graph, policy)
    model = graph.model()
    model.producer_name = "steelyard"
    onnx.helper.set_model_props(model, {"policy_sha256": policy.sha256})
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def how_to(policy: PolicyFile | RackFile) -> list[str]:
    """Lines of the model card."""
    feeds = "inputs" if isinstance(policy, RackFile) else "obs"
    return [
        "```python",
        "import onnxruntime",
        f'session = onnxruntime.InferenceSession("{NAME}")',
        f'session.run(None, {{"{feeds}": {feeds}}})  # and state, actor: see session.get_inputs()',
        "```",
    ]


class _Graph:
    """A graph under construction: operators are added one by one and their output's name is the result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.selects = False
        self._count = 0

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = output or self._name(operator.lower())
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        from onnx import numpy_helper

        name = self._name("c")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values, dtype), name))
        return name

    def weights(self, actors: list[NDArray[np.float32]]) -> str:
        """An array of each actor; of several the one that the input `actor` selects."""
        if len(actors) == 1:
            return self.constant(actors[0])
        self.selects = True
        return self.add("Gather", self.constant(np.stack(actors)), "actor", axis=0)

    def split(self, value: str, sizes: list[int], axis: int = 1) -> list[str]:
        from onnx import helper

        names = [self._name("part") for _ in sizes]
        inputs = [value, self.constant(sizes, np.int64)]
        self.nodes.append(helper.make_node("Split", inputs, names, axis=axis))
        return names

    def reshape(self, value: str, shape: list[int]) -> str:
        return self.add("Reshape", value, self.constant(shape, np.int64))

    def input(self, name: str, width: int) -> str:
        self.inputs.append(_value(name, ["batch", width]))
        return name

    def output(self, value: str, name: str, width: int) -> None:
        self.add("Identity", value, output=name)
        self.outputs.append(_value(name, ["batch", width]))

    def model(self) -> Any:
        from onnx import TensorProto, helper

        if self.selects:
            self.inputs.append(helper.make_tensor_value_info("actor", TensorProto.INT64, []))
        graph = helper.make_graph(self.nodes, "policy", self.inputs, self.outputs, self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"


def _value(name: str, shape: list[Any]) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _balancers(graph: _Graph, policy: PolicyFile) -> None:
    spec = policy.spec
    actors, servers = spec["actors"], spec["num_servers"]
    size = actors[0]["mean"].size
    rows = servers if spec["input"] == "per_server" else 1
    obs = graph.input("obs", size)
    centred = graph.add("Sub", obs, graph.weights([actor["mean"] for actor in actors]))
    scaled = graph.add("Mul", centred, graph.weights([actor["inv_std"] for actor in actors]))
    clip = float(spec["clip"])
    value = graph.add("Clip", scaled, graph.constant(-clip), graph.constant(clip))
    if rows > 1 or spec["input"] == "per_server":
        value = _rows(graph, value, servers)
    value, states, width = _layers(graph, value, actors, rows)
    agents = int(spec.get("num_agents", 0)) or 1
    _action(graph, value, spec["output"], agents * servers)
    if states:
        joined = graph.add("Concat", *states, axis=1) if len(states) > 1 else states[0]
        graph.output(joined, "next_state", width)


def _rows(graph: _Graph, value: str, servers: int) -> str:
    """(batch, D) -> (batch N, 29): [own 12, globals 5, mean of all servers' 12] of each server."""
    own, shared, action = graph.split(value, [_FEATURES * servers, _GLOBALS, servers])
    features = graph.reshape(own, [-1, servers, _FEATURES])
    mine = graph.add("Concat", features, graph.reshape(action, [-1, servers, 1]), axis=2)
    mean = graph.add("ReduceMean", mine, axes=[1], keepdims=1)
    repeats = graph.constant([1, servers, 1], np.int64)
    parts = [
        mine,
        graph.add("Tile", graph.reshape(shared, [-1, 1, _GLOBALS]), repeats),
        graph.add("Tile", mean, repeats),
    ]
    return graph.reshape(graph.add("Concat", *parts, axis=2), [-1, 2 * (_FEATURES + 1) + _GLOBALS])


def _layers(graph: _Graph, value: str, actors: list[Any], rows: int) -> tuple[str, list[str], int]:
    """The last layer's output, the next states (batch, rows x out) of recurrent layers, and their width."""
    layers = actors[0]["layers"]
    widths = [rows * layer["weight_hh"].shape[1] for layer in layers if layer["kind"] == "gru"]
    before: list[str] = []
    if widths:
        state = graph.input("state", sum(widths))
        before = graph.split(state, widths) if len(widths) > 1 else [state]
    after: list[str] = []
    for number, layer in enumerate(layers):
        of_actors = [actor["layers"][number] for actor in actors]
        if layer["kind"] == "gru":
            hidden = layer["weight_hh"].shape[1]
            last = graph.reshape(before[len(after)], [-1, hidden])
            value = _gru(graph, value, last, of_actors, hidden)
            after.append(graph.reshape(value, [-1, rows * hidden]))
        else:
            value = _linear(graph, value, of_actors, "weight", "bias")
            if layer["activation"] != "none":
                value = graph.add(_ACTIVATIONS[layer["activation"]], value)
    return value, after, sum(widths)


def _linear(graph: _Graph, value: str, layers: list[Any], weight: str, bias: str) -> str:
    matrix = graph.weights([layer[weight].T for layer in layers])
    return graph.add(
        "Add", graph.add("MatMul", value, matrix), graph.weights([layer[bias] for layer in layers])
    )


def _gru(graph: _Graph, value: str, last: str, layers: list[Any], hidden: int) -> str:
    """torch.nn.GRU's cell: n = tanh(x_n + r h_n), h' = n + z (h - n)."""
    x = graph.split(_linear(graph, value, layers, "weight_ih", "bias_ih"), [hidden] * 3)
    h = graph.split(_linear(graph, last, layers, "weight_hh", "bias_hh"), [hidden] * 3)
    r, z = (graph.add("Sigmoid", graph.add("Add", x[gate], h[gate])) for gate in (0, 1))
    new = graph.add("Tanh", graph.add("Add", x[2], graph.add("Mul", r, h[2])))
    return graph.add("Add", new, graph.add("Mul", z, graph.add("Sub", last, new)))


def _action(graph: _Graph, value: str, kind: str, width: int) -> None:
    if kind == "tanh":
        value = graph.add("Tanh", value)
    elif kind == "clip":
        value = graph.add("Clip", value, graph.constant(-1.0), graph.constant(1.0))
    else:
        choice = graph.add("ArgMax", graph.reshape(value, [-1, width, _CHOICES]), axis=2, keepdims=0)
        value = graph.add("Gather", graph.constant(_CHOICE_ACTIONS), choice, axis=0)
    graph.output(graph.reshape(value, [-1, width]), "action", width)


def _rack(graph: _Graph, policy: RackFile) -> None:
    n, inputs = policy.spec["num_servers"], policy.spec["num_inputs"]
    value = graph.input("inputs", inputs)
    half = policy.spec["actors"].shape[1] // 2
    for name, matrices, start in zip(("migration", "stealing"), policy.matrices, (0, half), strict=True):
        biases = policy.spec["actors"][:, start + n * inputs : start + half]
        layers = [{"weight": weight, "bias": bias} for weight, bias in zip(matrices, biases, strict=True)]
        logits = _linear(graph, value, layers, "weight", "bias")
        graph.output(graph.add("Softmax", logits, axis=1), name, n)
