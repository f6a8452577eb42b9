"""What a network shows of itself: tensors and layers."""

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
    """What tensors and layers ask of their network."""

    def shape_of(self, value: Value, /) -> Shape:
        """The shape that the network shows of a value."""
        ...

    def rename(self, value: Value, name: str, /) -> None:
        """Give a value a name of its own."""
        ...

    def reshape_input(self, value: Value, shape: Sequence[int | str], /) -> None:
        """Give an input another shape."""
        ...

    def replace_op(self, node: Node, op: Op, /) -> None:
        """Give a node another op."""
        ...


class Tensor:
    """An input of a network or a result of one of its layers. Compared by identity."""

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
        """The name, under which an engine knows the tensor as a binding."""
        return self.value.name

    @name.setter
    @located
    def name(self, name: str) -> None:
        self._network.rename(self.value, name)

    @property
    def dtype(self) -> str:
        """The element type, by its numpy name."""
        return self.value.tensor.dtype.value

    @property
    def shape(self) -> Shape:
        """The extents, those of one image where the batch is implicit.

        Setting them is for inputs only; what follows from them is computed anew.
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
    """A layer of a network: one op, or a few that stand for one thing."""

    name: str
    kind: str
    """What was added (``convolution``, ``scale`` …), or the op's name."""
    inputs: tuple[Tensor, ...]
    """What the layer reads of the network; weights are not among them."""
    outputs: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    location: str
    """File and line that added the layer; empty for a layer of a file."""
    _network: Owner

    @property
    def op(self) -> Op:
        """What the layer computes; of several ops the one that carries its parameters."""
        return self._main.op

    @located
    def update(self, **attributes: object) -> None:
        """Change attributes of the layer's op; what follows from them is computed anew.

        Raises ShapeError: something no longer fits; the layer is then as before.
        """
        try:
            op = dataclasses.replace(self.op, **attributes)
        except TypeError as error:
            known = ", ".join(field.name for field in dataclasses.fields(self.op)) or "none"
            raise GraphError(
                f"{self.op.name} has no such attributes; it has: {known}", node=self.name
            ) from error
        self._network.replace_op(self._main, op)

    @property
    def _main(self) -> Node:
        plain = ("flatten", "reshape", "identity")
        return next((node for node in self.nodes if node.op.name not in plain), self.nodes[-1])
