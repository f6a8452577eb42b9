"""Export of a graph to ONNX.

smelt's ops have the names, attributes and newest semantics of ONNX's, so most ops are exported by
ONNX's schemas. `_Exporter._apply` lists the exceptions.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import UnsupportedError
from smelt.ir import FreshNames, Graph
from smelt.ops import (
    Add,
    ConstantOfShape,
    ConvInteger,
    ConvSum,
    DequantizeLinear,
    Fused,
    FusedPair,
    MatMulInteger,
    QuantizeLinear,
    Reshape,
)
from smelt.types import DType, TensorType, is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx

    from smelt.ir import Node, Op, Value

_RENAMED: Final = {"trans_a": "transA", "trans_b": "transB"}
"""ONNX's names of attributes that differ from the names of the ops' fields."""
_SMELT_ONLY_FIELDS: Final = frozenset(("count_symbol",))
"""Fields that are dropped, since they only name symbols of output extents."""
_OLDEST_OPSET: Final = 21
"""Lowest operator set of an exported model."""
_BIAS: Final = 4
"""Index of the bias input of integer products, which ONNX's ops do not have."""


def model_from_graph(graph: Graph) -> onnx.ModelProto:
    """Return a graph as an ONNX model.

    Raises:
        UnsupportedError: nodes cannot be expressed in ONNX; all are listed with the reason.
    """
    return _Exporter(graph).run()


class _Exporter:
    """Converts one graph to an ONNX model."""

    def __init__(self, graph: Graph) -> None:
        # onnx is an optional dependency, which only the export of models needs.
        import onnx

        self.onnx: Any = onnx
        self.graph = graph
        self.names: dict[Value, str] = {}
        self.fresh = FreshNames(Graph(graph.name))
        self.initialisers: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.opset = _OLDEST_OPSET

    def run(self) -> onnx.ModelProto:
        """Return the model; raise UnsupportedError with all reasons if a node has no equivalent."""
        helper = self.onnx.helper
        inputs = [self._value_info(value) for value in self.graph.inputs]
        # Outputs are named first, so that they keep their names if other values share them.
        for value in self.graph.outputs:
            self._name(value)
        reasons: list[str] = []
        for node in self.graph.nodes:
            try:
                self._export(node)
            except UnsupportedError as error:
                reasons.append(f"{node}: {error}")
        if reasons:
            raise UnsupportedError(f"{self.graph.name} cannot be written as ONNX", reasons=reasons)
        outputs = [self._value_info(value) for value in self.graph.outputs]
        graph = helper.make_graph(self.nodes, self.graph.name, inputs, outputs, self.initialisers)
        opsets = [helper.make_opsetid("", self.opset)]
        version = helper.find_min_ir_version_for(opsets)
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        return model

    # ---- values

    def _name(self, value: Value) -> str:
        """Return a unique name of a value; on first use, add a constant as an initialiser."""
        if value in self.names:
            return self.names[value]
        name = self.names[value] = self.fresh.make(value.name or "value")
        if value.constant is not None:
            array = np.ascontiguousarray(value.constant.array)
            self.initialisers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def _value_info(self, value: Value) -> onnx.ValueInfoProto:
        if not isinstance(value.type, TensorType):
            raise UnsupportedError(
                f"{value.name} has type {value.type}; only tensors can be written as ONNX"
            )
        shape = [d if isinstance(d, int) else str(d) for d in value.type.shape]
        kind = self._element_type(value.type.dtype)
        make: Any = self.onnx.helper.make_tensor_value_info
        info: onnx.ValueInfoProto = make(self._name(value), kind, shape)
        return info

    def _element_type(self, dtype: DType) -> int:
        name = "FLOAT" if dtype is DType.FLOAT32 else dtype.value.upper()
        return int(self.onnx.TensorProto.DataType.Value("DOUBLE" if name == "FLOAT64" else name))

    # ---- nodes

    def _export(self, node: Node) -> None:
        inputs = ["" if v is None else self._name(v) for v in node.inputs]
        self._apply(node.op, inputs, [self._name(v) for v in node.outputs], node.name)

    def _apply(self, op: Op, inputs: list[str], outputs: list[str], name: str) -> None:
        """Add the ONNX nodes of an op; fused ops are expanded to their parts."""
        match op:
            case FusedPair():
                intermediate = (
                    outputs[1] if op.returns_intermediate else self.fresh.make(f"{name}/between")
                )
                count = op.first_inputs
                self._apply(op.first, inputs[:count], [intermediate], f"{name}/first")
                self._apply(op.second, [intermediate, *inputs[count:]], outputs[:1], name)
            case Fused():
                self._apply_fused(op, inputs, outputs, name)
            case ConvSum():
                parts = [self.fresh.make(f"{name}/{part}") for part in ("first", "second")]
                self._apply(op.first, [*inputs[:2], *inputs[4:]], parts[:1], parts[0])
                self._apply(op.second, inputs[2:4], parts[1:], parts[1])
                self._add(Add(), parts, outputs, name)
            case QuantizeLinear() | DequantizeLinear() if not inputs[1]:
                one = self.fresh.make(f"{name}/scale")  # ONNX requires a scale
                array = np.array(1, np.float32)
                self.initialisers.append(self.onnx.numpy_helper.from_array(array, one))
                self._add(op, [inputs[0], one, *inputs[2:]], outputs, name)
            case ConvInteger() | MatMulInteger() if len(inputs) > _BIAS and inputs[_BIAS]:
                self._apply_integer(op, inputs, outputs, name)
            case _:
                self._add(op, inputs, outputs, name)

    def _apply_fused(self, op: Fused, inputs: list[str], outputs: list[str], name: str) -> None:
        """Add a node for the root and for each stage of an epilogue."""
        results = [self.fresh.make(f"{name}/{i}") for i in range(len(op.stages))]
        results.append(outputs[0])
        self._apply(op.root, inputs[: op.root_inputs], results[:1], name)
        for number, stage in enumerate(op.stages, 1):
            reads = [inputs[a] if a >= 0 else results[-a - 1] for a in stage.arguments]
            self._apply(stage.op, reads, [results[number]], f"{name}/{stage.op.name}_{number}")

    def _apply_integer(
        self, op: ConvInteger | MatMulInteger, inputs: list[str], outputs: list[str], name: str
    ) -> None:
        """Add an integer product; its bias becomes an Add, because ONNX's op has no bias input."""
        sums, bias = self.fresh.make(f"{name}/sums"), inputs[_BIAS]
        self._add(op, inputs[:_BIAS], [sums], name)
        if isinstance(op, ConvInteger):
            channels, shape = self.fresh.make(f"{name}/channels"), self.fresh.make(f"{name}/shape")
            target_shape = np.array([-1, *(1 for _ in op.kernel_shape)], np.int64)
            self.initialisers.append(self.onnx.numpy_helper.from_array(target_shape, shape))
            self._add(Reshape(), [bias, shape], [channels], f"{name}/reshape")
            bias = channels
        self._add(Add(), [sums, bias], outputs, f"{name}/bias")

    def _add(self, op: Op, inputs: Sequence[str], outputs: Sequence[str], name: str) -> None:
        """Add the ONNX node of the same name as an op."""
        kind = type(op).__name__
        if op.regions:
            raise UnsupportedError(f"{kind} has subgraphs, whose export is not supported")
        schema = self._schema(kind, op)
        attributes = dict(self._attributes(op, set(schema.attributes)))
        self.opset = max(self.opset, int(schema.since_version))
        used = list(inputs)
        while used and not used[-1]:
            used.pop()
        self.nodes.append(self.onnx.helper.make_node(kind, used, outputs, name=name, **attributes))

    def _schema(self, kind: str, op: Op) -> Any:
        """Return the oldest schema that can express an op; engines support new ones late."""
        try:
            newest = self.onnx.defs.get_schema(kind)
        except self.onnx.defs.SchemaError as error:
            raise UnsupportedError(f"ONNX has no op {kind}") from error
        if newest.since_version <= _OLDEST_OPSET:
            return newest
        try:
            old = self.onnx.defs.get_schema(kind, max_inclusive_version=_OLDEST_OPSET)
            tuple(self._attributes(op, set(old.attributes)))
        except (self.onnx.defs.SchemaError, UnsupportedError):
            return newest
        return old

    def _attributes(self, op: Op, known: set[str]) -> Iterator[tuple[str, object]]:
        """Yield name and value of the ONNX attributes of an op.

        Args:
            op: the op.
            known: names of the attributes in the schema.

        Raises:
            UnsupportedError: a field that is not in the schema has another value than its default.
        """
        if isinstance(op, ConstantOfShape):
            array = np.array([op.value], op.dtype.numpy)
            yield "value", self.onnx.numpy_helper.from_array(array)
            return
        for field in dataclasses.fields(op):
            value = getattr(op, field.name)
            name = _RENAMED.get(field.name, field.name)
            if name in known:
                if value is not None and value != ():
                    yield name, self._attribute(value)
            elif field.name not in _SMELT_ONLY_FIELDS and value != field.default:
                raise UnsupportedError(
                    f"ONNX's {type(op).__name__} has no attribute for the field {field.name}="
                    f"{value!r}"
                )

    def _attribute(self, value: object) -> object:
        if isinstance(value, DType):
            return self._element_type(value)
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, np.ndarray):
            return self.onnx.numpy_helper.from_array(value)
        return list(value) if is_tuple(value) else value
