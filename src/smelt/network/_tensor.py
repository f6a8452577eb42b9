"""``Tensor`` and ``Layer``: handles to the contents of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.errors import GraphError
from smelt.network._caller_location import located

if TYPE_CHECKING:
    from smelt.ir import Node, Op, Value
    from smelt.network._definition import NetworkBase
    from smelt.types import Shape


class Tensor:
    """An input of a network or a result of one of its layers; tensors compare by identity."""

    __slots__ = ("_network", "value")

    def __init__(self, network: NetworkBase, value: Value) -> None:
        self._network = network
        self.value = value

    @property
    def network(self) -> NetworkBase:
        """The network to which the tensor belongs."""
        return self._network

    @property
    def name(self) -> str:
        """The name of the tensor, which is also the name of an engine's binding."""
        return self.value.name

    @name.setter
    @located
    def name(self, name: str) -> None:
        self.network.rename(self.value, name)

    @property
    def dtype(self) -> str:
        """The element type as a numpy name, for example ``float32``."""
        return self.value.tensor.dtype.value

    @property
    def shape(self) -> Shape:
        """The extents; an implicit batch is omitted.

        Only the shape of an input can be set. Setting it infers the shapes of all other tensors
        again.
        """
        return self.network.shape_of(self.value)

    @shape.setter
    @located
    def shape(self, shape: Sequence[int | str]) -> None:
        self.network.reshape_input(self.value, shape)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}{list(self.shape)})"


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer of a network: one op, or a few ops that implement one layer of the API."""

    name: str
    kind: str
    """The kind of layer (``convolution``, ``scale`` …), or the name of its op."""
    inputs: tuple[Tensor, ...]
    """The tensors that the layer reads, without its weights."""
    outputs: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    location: str
    """File and line of the call that added the layer; empty for a layer of an imported model."""
    _network: NetworkBase

    @property
    def op(self) -> Op:
        """The op of the layer; if it consists of several, the one with the layer's parameters."""
        return self._main.op

    @located
    def update(self, **attributes: object) -> None:
        """Change attributes of the layer's op and infer all shapes again.

        Raises:
            GraphError: the op has no such attribute.
            ShapeError: the network does not accept the change; the layer then stays as it was.
        """
        try:
            op = dataclasses.replace(self.op, **attributes)
        except TypeError as error:
            reason = wrong_attributes(self.op.name, type(self.op), attributes, error)
            raise GraphError(reason, node=self.name) from error
        self._network.replace_op(self._main, op)

    @property
    def _main(self) -> Node:
        auxiliary = ("flatten", "reshape", "identity")
        return next((node for node in self.nodes if node.op.name not in auxiliary), self.nodes[-1])


def wrong_attributes(
    name: str, cls: type[Op], attributes: Mapping[str, object], error: TypeError
) -> str:
    """Return why an op cannot be made with attributes; ``error`` is what its class raised."""
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = ", ".join(key for key in attributes if key not in known)
    if not unknown:
        return f"{name}: {error}"
    return f"{name} has no attribute {unknown}; its attributes are: {', '.join(known) or 'none'}"
