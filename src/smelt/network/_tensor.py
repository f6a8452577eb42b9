"""``Tensor`` and ``Layer``: handles to the contents of a network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from smelt.errors import GraphError
from smelt.network._caller_location import located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Node, Op, Value
    from smelt.types import Shape


class Owner(Protocol):
    """The operations of a network that its tensors and layers call."""

    def shape_of(self, value: Value, /) -> Shape:
        """Return the shape of a value without an implicit batch."""
        ...

    def rename(self, value: Value, name: str, /) -> None:
        """Rename a value."""
        ...

    def reshape_input(self, value: Value, shape: Sequence[int | str], /) -> None:
        """Change the shape of an input and infer all shapes again."""
        ...

    def replace_op(self, node: Node, op: Op, /) -> None:
        """Replace the op of a node and infer all shapes again."""
        ...


class Tensor:
    """An input of a network or a result of one of its layers; tensors compare by identity."""

    __slots__ = ("_network", "value")

    def __init__(self, network: Owner, value: Value) -> None:
        self._network = network
        self.value = value

    @property
    def network(self) -> Owner:
        """The network to which the tensor belongs."""
        return self._network

    @property
    def name(self) -> str:
        """The name of the tensor, which is also the name of an engine's binding."""
        return self.value.name

    @name.setter
    @located
    def name(self, name: str) -> None:
        self._network.rename(self.value, name)

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
        return self._network.shape_of(self.value)

    @shape.setter
    @located
    def shape(self, shape: Sequence[int | str]) -> None:
        self._network.reshape_input(self.value, shape)

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
    _network: Owner

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
            available = ", ".join(field.name for field in dataclasses.fields(self.op)) or "none"
            raise GraphError(
                f"{self.op.name} has no such attribute; its attributes are: {available}",
                node=self.name,
            ) from error
        self._network.replace_op(self._main, op)

    @property
    def _main(self) -> Node:
        auxiliary = ("flatten", "reshape", "identity")
        return next((node for node in self.nodes if node.op.name not in auxiliary), self.nodes[-1])
