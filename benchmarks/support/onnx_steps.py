"""ONNX networks as lists of steps, for libraries that do not read ONNX themselves.

A step is an operation of an array library, not a node: batch normalisation is folded into the
convolution before it, and where exporters wrote Gelu and attention out in small nodes they are one
step again, as whoever writes the network for that library has them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[Any]

_EPSILON: Final = 1e-5
_VIEWS: Final = frozenset({"Identity", "Reshape", "Flatten", "Transpose", "Concat"})
_POINTWISE: Final = frozenset({"Add", "Clip", "Div", "Erf", "Gelu", "Mul", "Relu"})


@dataclass(slots=True)
class Step:
    """One operation."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def output(self) -> str:
        """The only output."""
        (name,) = self.outputs
        return name


@dataclass(slots=True)
class Network:
    """A network whose shapes are known."""

    steps: list[Step]
    constants: dict[str, Array]
    inputs: list[str]
    outputs: list[str]

    def run(
        self,
        table: Mapping[str, Callable[..., Any]],
        constants: Mapping[str, Any],
        inputs: Sequence[Any],
    ) -> list[Any]:
        """Compute the outputs with a library's operations, by the names of steps."""
        values = dict(constants) | dict(zip(self.inputs, inputs, strict=True))
        for step in self.steps:
            operands = [values[name] if name else None for name in step.inputs]
            values[step.output] = table[step.op](*operands, **step.attributes)
        return [values[name] for name in self.outputs]


def read_network(file: Path) -> Network:
    """Read a network.

    Raises:
        KeyError: it has an operation without a counterpart here.
    """
    onnx: Any = importlib.import_module("onnx")
    model = onnx.load(str(file))
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    steps: list[Step] = []
    for node in model.graph.node:
        found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = onnx.numpy_helper.to_array(found["value"])
            continue
        attributes, inputs = _read_attributes(node.op_type, found, list(node.input), constants)
        steps.append(Step(node.op_type, inputs, [name for name in node.output if name], attributes))
    network = Network(
        steps,
        constants,
        [v.name for v in model.graph.input if v.name not in constants],
        [v.name for v in model.graph.output],
    )
    _fold_normalizations(network)
    _find_gelu(network)
    _find_attention(network)
    used = {name for step in network.steps for name in step.inputs}
    network.constants = {k: v for k, v in network.constants.items() if k in used}
    return network


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _read_attributes(
    op: str, found: dict[str, Any], inputs: list[str], constants: Mapping[str, Array]
) -> tuple[dict[str, Any], list[str]]:
    """What a step is given beside arrays, and which arrays."""
    match op:
        case "Conv":
            spatial = constants[inputs[1]].ndim - 2
            return {
                "strides": _ints(found.get("strides", [1] * spatial)),
                "pads": _ints(found.get("pads", [0] * 2 * spatial)),
                "dilations": _ints(found.get("dilations", [1] * spatial)),
                "group": int(found.get("group", 1)),
            }, inputs
        case "MaxPool":
            size = _ints(found["kernel_shape"])
            return {
                "size": size,
                "strides": _ints(found.get("strides", size)),
                "pads": _ints(found.get("pads", [0] * 2 * len(size))),
                "ceil_mode": bool(found.get("ceil_mode", 0)),
            }, inputs
        case "Clip":
            low, high = (constants[name].item() for name in inputs[1:3])
            return {"low": low, "high": high}, inputs[:1]
        case "Reshape":
            return {"shape": _ints(constants[inputs[1]])}, inputs[:1]
        case "Transpose":
            return {"axes": _ints(found["perm"])}, inputs
        case "Gemm":
            return {"is_transposed": bool(found.get("transB", 0))}, inputs
        case "Concat" | "Softmax" | "Gather" | "Flatten":
            default = {"Softmax": -1, "Gather": 0, "Flatten": 1}.get(op, 0)
            return {"axis": int(found.get("axis", default))}, inputs
        case "LayerNormalization" | "BatchNormalization":
            return {"epsilon": float(found.get("epsilon", _EPSILON))}, inputs
        case _:
            return {}, inputs


# ---- small nodes as the operations that they came from


def _producers(network: Network) -> dict[str, Step]:
    return {step.output: step for step in network.steps}


def _uses(network: Network, name: str) -> int:
    return sum(step.inputs.count(name) for step in network.steps) + network.outputs.count(name)


def _remove(network: Network, steps: Iterable[Step]) -> None:
    gone = list(map(id, steps))
    network.steps = [step for step in network.steps if id(step) not in gone]


def _fold_normalizations(network: Network) -> None:
    """Scale filters and biases where a convolution is followed by a batch normalisation."""
    made = _producers(network)
    for norm in [step for step in network.steps if step.op == "BatchNormalization"]:
        conv = made[norm.inputs[0]]
        scale, shift, mean, variance = (network.constants[name] for name in norm.inputs[1:5])
        factor = scale / np.sqrt(variance + norm.attributes["epsilon"])
        weights = network.constants[conv.inputs[1]]
        bias = network.constants[conv.inputs[2]] if len(conv.inputs) > 2 else np.zeros_like(mean)
        names = [f"{norm.output}.weight", f"{norm.output}.bias"]
        shape = (-1,) + (1,) * (weights.ndim - 1)
        network.constants[names[0]] = weights * factor.reshape(shape)
        network.constants[names[1]] = (bias - mean) * factor + shift
        conv.inputs = [conv.inputs[0], *names]
        conv.outputs = norm.outputs
        _remove(network, [norm])


def _find_gelu(network: Network) -> None:
    """``x / sqrt(2)``, erf, ``+ 1``, ``* x``, ``* 0.5`` (the last two in any order)."""
    made = _producers(network)
    for erf in [step for step in network.steps if step.op == "Erf"]:
        divided = made[erf.inputs[0]]
        x = divided.inputs[0]
        chain, last = [divided, erf], erf
        for _ in range(3):
            users = [step for step in network.steps if last.output in step.inputs]
            if len(users) != 1 or users[0].op not in {"Add", "Mul"}:
                break
            last = users[0]
            chain.append(last)
            halved = made.get(next((n for n in last.inputs if n != chain[-2].output), ""))
            if halved is not None and halved.op == "Mul" and x in halved.inputs:
                chain.append(halved)  # x * 0.5 was written first
                break
        last.op, last.inputs, last.attributes = "Gelu", [x], {}
        _remove(network, [step for step in chain if step is not last])


def _find_attention(network: Network) -> None:
    """``softmax(q @ k * scale) @ v``, the keys transposed already."""
    made = _producers(network)
    for softmax in [step for step in network.steps if step.op == "Softmax"]:
        scaled = made[softmax.inputs[0]]
        if scaled.op not in {"Mul", "Div"} or scaled.inputs[1] not in network.constants:
            continue
        number = network.constants[scaled.inputs[1]].item()
        product = made[scaled.inputs[0]]
        (last,) = (step for step in network.steps if softmax.output in step.inputs)
        if product.op == last.op == "MatMul":
            last.op = "Attention"
            last.inputs = [*product.inputs, last.inputs[1]]
            last.attributes = {"scale": number if scaled.op == "Mul" else 1 / number}
            _remove(network, [softmax, scaled, product])


# ---- the least time that a GPU could take


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device does in a second at best."""

    flops: float
    bytes: float


def roofline_ms(
    network: Network, shapes: Mapping[str, Sequence[int]], item_bytes: int, most: Ceilings
) -> float:
    """Return the milliseconds that no device of these ceilings can go below, layer by layer.

    A layer is a product, window or reduction with the elementwise steps behind it; it takes as long
    as its arithmetic or as its operands, results and weights moved once, whichever is longer. What
    only looks differently at memory costs nothing.
    """
    groups = _layers(network)
    total = 0.0
    for group in groups:
        inside = {step.output for step in group}
        read = dict.fromkeys(n for step in group for n in _read(step) if n and n not in inside)
        out = [n for n in inside if _is_read_outside(network, n, group)]
        moved = sum(_count(name, network, shapes) for name in (*read, *out))
        flops = sum(_flops(step, network, shapes) for step in group)
        total += max(flops / most.flops, moved * item_bytes / most.bytes)
    return total * 1e3


def _layers(network: Network) -> list[list[Step]]:
    home: dict[str, list[Step]] = {}
    groups: list[list[Step]] = []
    for step in network.steps:
        if step.op in _VIEWS:
            _look_through(step, network, home)
            continue
        places = [home[n] for n in step.inputs if n in home and _uses(network, n) == 1]
        if step.op in _POINTWISE and places:
            places[-1].append(step)
            home[step.output] = places[-1]
        else:
            groups.append([step])
            home[step.output] = groups[-1]
    return groups


def _look_through(view: Step, network: Network, home: dict[str, list[Step]]) -> None:
    """Let a view of one result belong to the result's layer, if nothing else reads that."""
    names = [name for name in view.inputs if name in home]
    if len(names) == len(view.inputs) == 1 and _uses(network, names[0]) == 1:
        home[names[0]].append(view)
        home[view.output] = home[names[0]]


def _read(step: Step) -> Sequence[str]:
    """What a step reads whole; of a table it reads as many rows as it writes."""
    return (step.inputs[1], step.output) if step.op == "Gather" else step.inputs


def _is_read_outside(network: Network, name: str, group: Sequence[Step]) -> bool:
    inside = sum(step.inputs.count(name) for step in group)
    return _uses(network, name) > inside


def _shape(name: str, network: Network, shapes: Mapping[str, Sequence[int]]) -> Sequence[int]:
    return network.constants[name].shape if name in network.constants else shapes[name]


def _count(name: str, network: Network, shapes: Mapping[str, Sequence[int]]) -> float:
    return float(np.prod([int(extent) for extent in _shape(name, network, shapes)] or [1]))


def _flops(step: Step, network: Network, shapes: Mapping[str, Sequence[int]]) -> float:
    out = float(np.prod(shapes[step.output]))
    match step.op:
        case "Conv":
            return 2 * out * float(np.prod(network.constants[step.inputs[1]].shape[1:]))
        case "MatMul" | "Gemm":
            return 2 * out * _shape(step.inputs[0], network, shapes)[-1]
        case "Attention":
            queries = _shape(step.inputs[0], network, shapes)
            return 4 * float(np.prod(queries)) * _shape(step.inputs[1], network, shapes)[-1]
        case _:
            return 0.0
