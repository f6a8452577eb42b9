"""Plans of small graphs, assembled from chosen tactics and run step by step on a real arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends import BuiltPlan, Tactic, WeightStore, build_plan
from smelt.backends.cpu import CpuBackend, host_target
from smelt.engine import ERROR_BYTES, Binding, EngineHeader, Fingerprint, Launch, Space, verify_plan
from smelt.interp import interpret
from smelt.types import DType, Layout, SymbolicDim, TensorType, evaluate_dim
from tests.support.cpu_kernels import GuardedBuffer, call_kernel, load_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.engine import Plan, View
    from smelt.ir import Graph, Node, Value
    from smelt.types import Dim

Array = np.ndarray[Any, Any]
LINEAR, LAST = Layout.LINEAR, Layout.CHANNELS_LAST


def tensor(*shape: Dim | str, dtype: DType = DType.FLOAT32) -> TensorType:
    """A tensor's type; names are symbols."""
    return TensorType(
        dtype, tuple(SymbolicDim.symbol(d) if isinstance(d, str) else d for d in shape)
    )


def pick(layouts: Mapping[str, Layout] | None = None, default: Layout = LINEAR) -> Any:
    """The first tactic of each node that reads and writes the layout given for its name."""
    chosen = dict(layouts or {})

    def choose(node: Node, tactics: Sequence[Tactic]) -> Tactic:
        wanted = chosen.get(node.name, default)
        real = [t for t in tactics if not t.is_host_step]

        def misses(tactic: Tactic) -> int:
            forms = [f for f in (*tactic.input_formats, *tactic.output_formats) if f is not None]
            return sum(f.layout is not wanted for f in forms)

        return min(real, key=misses)

    return choose


class Planned:
    """A graph's plan."""

    def __init__(
        self,
        graph: Graph,
        choose: Any = None,
        symbols: tuple[tuple[str, int, int], ...] = (),
    ) -> None:
        """Choose a tactic for each node and assemble."""
        self.graph = graph
        self.backend = CpuBackend()
        self.target = host_target()
        self.weights = WeightStore()
        self.symbols = symbols
        pickers = choose or pick()
        tactics = {n: pickers(n, self.backend.candidates(n, self.target)[0]) for n in graph.nodes}
        self.assembled: BuiltPlan = build_plan(
            graph, tactics, self.backend, self.weights, symbols=symbols
        )

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.assembled.plan

    def kinds(self) -> list[str]:
        """What each step is: the kernel's family."""
        return [s.kernel.family if isinstance(s, Launch) else "host" for s in self.plan.steps]

    def check(self, *inputs: Array, tolerance: float = 1e-5, **values: int) -> None:
        """The plan verifies, computes what the references do, and no two layers share a name."""
        names = [layer.name for layer in self.assembled.layers]
        assert len(set(names)) == len(names)
        verify_plan(self._header(), self.plan, weights_bytes=self.weights.size_bytes)
        wanted = interpret(
            self.graph, {v.name: x for v, x in zip(self.graph.inputs, inputs, strict=True)}
        )
        made = self.run(inputs, values)
        for value, mine in zip(self.graph.outputs, made, strict=True):
            theirs = wanted[value.name]
            scale = float(np.abs(theirs).max(initial=0.0)) or 1.0
            assert mine.shape == theirs.shape
            assert float(np.abs(mine - theirs).max(initial=0.0)) <= tolerance * scale, value.name

    def _header(self) -> EngineHeader:
        given = [(v, True) for v in self.graph.inputs] + [(v, False) for v in self.graph.outputs]
        return EngineHeader(
            name="plan",
            fingerprint=Fingerprint("cpu", "any", (), "linux", 0, "0"),
            bindings=tuple(
                Binding(f"{v.name} {i}", mine, v.tensor.dtype, v.tensor.shape)
                for i, (v, mine) in enumerate(given)
            ),
            max_batch_size=None,
            plans=(self.plan,),
            layers=self.assembled.layers,
            weights=(),
        )

    def run(self, inputs: Sequence[Array], values: Mapping[str, int]) -> list[Array]:
        """The outputs. The arena starts as garbage, and parts of it are shared as planned."""
        plan = self.plan
        arena = GuardedBuffer(plan.arena_bytes)
        weights = GuardedBuffer(self.weights.size_bytes)
        weights.bytes[:] = np.frombuffer(bytes(self.weights.data()), np.uint8)
        bound = [GuardedBuffer.holding(x, align=1) for x in inputs]
        bound += [GuardedBuffer(_bytes(v, values), align=1) for v in self.graph.outputs]
        errors = GuardedBuffer(len(self.assembled.layers) * ERROR_BYTES)
        bases = {
            Space.ARENA: arena.address,
            Space.WEIGHTS: weights.address,
            Space.ERRORS: errors.address,
        }

        def address(view: View) -> int:
            buffer = plan.buffers[view.buffer]
            base = bases.get(buffer.space)
            start = bound[buffer.start].address if base is None else base + buffer.start
            return start + evaluate_dim(view.offset, values)

        for step in plan.steps:
            assert isinstance(step, Launch)
            text = self.backend.generate(step.kernel, self.target)
            call_kernel(
                load_function(text, step.kernel.symbol, self.target),
                [*map(address, step.operands), *(evaluate_dim(s, values) for s in step.scalars)],
                chunks=evaluate_dim(step.chunks, values),
                scratch_bytes=step.scratch_bytes,
            )
        first = len(inputs)
        return [
            bound[first + k].array(v.tensor.dtype.numpy, _shape(v, values)).copy()
            for k, v in enumerate(self.graph.outputs)
        ]


def _shape(value: Value, values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_dim(d, values) for d in value.tensor.shape)


def _bytes(value: Value, values: Mapping[str, int]) -> int:
    count = int(np.prod(_shape(value, values), dtype=np.int64))
    return count * value.tensor.dtype.size_bytes
