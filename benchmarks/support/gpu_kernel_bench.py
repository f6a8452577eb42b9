"""One GPU, and products on it: memory to rotate, references, launches, times."""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from smelt.backends import Operands, Tactic, with_storage_dtype
from smelt.backends.cuda import compile_kernel
from smelt.devices.cuda import (
    CudaEvent,
    CudaGraph,
    CudaKernel,
    CudaModule,
    CudaStream,
    KernelArguments,
    LaunchConfig,
    cuda_device,
    launch,
)
from smelt.engine import ERROR_BYTES, Launch, View
from smelt.passes import assign_precision
from smelt.types import DType, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from benchmarks.support.gpu_gemm_problems import GemmProblem
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.engine import KernelSpec
    from smelt.ir import Node

_LAUNCHES = 20
_ROTATED_BYTES = 120 << 20
_MAX_SETS = 20


@dataclass(slots=True)
class Candidate:
    """A tactic, its launches, and their kernels while they are compiled."""

    tactic: Tactic
    steps: list[Launch]
    records: list[Future[bytes]]

    @property
    def name(self) -> str:
        """The tactic in short."""
        return str(self.tactic)


def lowered(backend: CudaBackend, node: Node, tactic: Tactic) -> list[Launch]:
    """The launches of a tactic on memory of its own: view ``k`` lies in buffer ``k``."""
    views: list[View] = []

    def place(shape: Any, dtype: DType, order: Sequence[int]) -> View:
        strides = [0] * len(shape)
        step = 1
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis]
        views.append(View(len(views), 0, dtype, tuple(shape), tuple(strides)))
        return views[-1]

    inputs: list[View | None] = []
    for value, fmt in zip(node.inputs, tactic.input_formats, strict=True):
        known = value is not None and fmt is not None
        inputs.append(
            place(value.tensor.shape, fmt.dtype, fmt.layout.axis_order(value.tensor.rank))
            if known and value is not None and fmt is not None
            else None
        )
    outputs = tuple(
        place(v.tensor.shape, f.dtype, f.layout.axis_order(v.tensor.rank))
        for v, f in zip(node.outputs, tactic.output_formats, strict=True)
    )
    family = backend.family(tactic.family)
    packed = tuple(
        place(c.type.shape, c.type.dtype, range(c.type.rank)) for c in family.pack(node, tactic)
    )
    size = evaluate_dim(tactic.workspace_bytes, {})
    room = place((size,), DType.UINT8, (0,)) if size else None
    errors = None
    if family.reports_index_errors(node):
        errors = place((ERROR_BYTES // 8,), DType.INT64, (0,))
    steps = family.lower(node, tactic, Operands(tuple(inputs), outputs, packed, room, errors))
    return [step for step in steps if isinstance(step, Launch)]


def compiled(kernel: KernelSpec, text: str, target: CudaTarget) -> bytes:
    """One kernel's record; runs in a process of its own."""
    return compile_kernel(kernel, text, target).to_bytes()


def candidates_of(
    backend: CudaBackend,
    node: Node,
    target: CudaTarget,
    submit: Callable[..., Future[bytes]],
    storage: DType,
    pick: Callable[[list[Tactic]], list[Tactic]] = lambda tactics: tactics,
) -> list[Candidate]:
    """The tactics of a node that are picked, their kernels being compiled."""
    found: list[Candidate] = []
    assign_precision([node], storage, supports_mixed_precision=True)
    tactics = [t for t in backend.candidates(node, target)[0] if not t.is_host_step]
    for tactic in pick(tactics):
        if storage is not DType.FLOAT32:
            tactic = with_storage_dtype(storage, node, tactic, narrows_all_outputs=True)
        steps = lowered(backend, node, tactic)
        records = [
            submit(compiled, s.kernel, backend.generate(s.kernel, target), target) for s in steps
        ]
        found.append(Candidate(tactic, steps, records))
    return found


class GpuKernelBench:
    """The GPU, through torch for memory and references, through the driver for our launches."""

    def __init__(self) -> None:
        """Take the first GPU."""
        torch: Any = importlib.import_module("torch")
        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(time.time_ns() % 2**31)
        torch.zeros(1, device="cuda")
        self.device = cuda_device(0)
        self.stream = CudaStream(self.device)
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def dtype(self, dtype: DType) -> Any:
        """Torch's name of an element type."""
        return getattr(self.torch, dtype.value)

    def filled(self, view: View, scale: float = 1.0) -> Any:
        """A random tensor that lies as the view says."""
        count = evaluate_dim(element_count(view.shape), {})
        kind = self.dtype(view.dtype)
        flat = (self.torch.randn(count, device="cuda") * scale).to(kind)
        return flat.as_strided(view.shape, view.strides)

    def milliseconds(self, graph: CudaGraph, rounds: int) -> float:
        """Median of a graph's replays."""
        times: list[float] = []
        marks = [(CudaEvent(self.device), CudaEvent(self.device)) for _ in range(rounds)]
        graph.launch(self.stream)
        for begin, end in marks:
            begin.record(self.stream)
            graph.launch(self.stream)
            end.record(self.stream)
        self.stream.synchronize()
        times += [begin.elapsed(end) for begin, end in marks]
        return statistics.median(times)

    def torch_us(self, work: Sequence[Callable[[], Any]]) -> float:
        """Microseconds of each of several calls into torch, in a graph."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in work:
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in work:
                call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        times: list[float] = []
        for _ in range(5):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times) * 1e3 / len(work)


class Memory:
    """Sets of operands of one product: values that every candidate of it shares."""

    def __init__(self, rig: GpuKernelBench, product: GemmProblem, node: Node) -> None:
        """Draw the values of two sets, and compute what they give."""
        self.rig, self.product, self.node = rig, product, node
        size = product.moved_bytes(2)
        self.sets = int(min(_MAX_SETS, max(2, -(-_ROTATED_BYTES // size))))
        self.inputs: dict[tuple[int, int], Any] = {}
        self.known: dict[int, Any] = {}
        self.pool: dict[tuple[Any, ...], Any] = {}
        torch = rig.torch
        for index, value in enumerate(node.inputs):
            if value is not None and value.constant is not None:
                array = value.constant.array
                for number in range(2):
                    self.inputs[number, index] = torch.from_numpy(array).cuda()
            elif value is not None:
                for number in range(2):
                    made = torch.randn(*value.tensor.shape, device="cuda")
                    self.inputs[number, index] = made.half().to(rig.dtype(value.tensor.dtype))
        self.wanted = [self._reference(number) for number in range(2)]

    def _reference(self, number: int) -> Any:
        torch, product = self.rig.torch, self.product
        functional = torch.nn.functional
        x, w, *others = (self.inputs[number, k].float() for k in range(len(self.inputs) // 2))
        w = w.half().float()
        shortcut, others = (others[:2], others[2:]) if product.shortcut else ([], others)
        b = others[0]
        if product.size:
            y = functional.conv2d(
                x, w, b, product.stride, product.kernel // 2, groups=product.groups
            )
        else:
            y = functional.linear(x, w, b)
        if shortcut:
            image, filters = shortcut
            y += functional.conv2d(image, filters.half().float(), None, product.shortcut_stride)
        if product.adds:
            y += others[1]
        then = product.then
        if then == "gelu":
            return functional.gelu(y)
        return y.clamp(0, 6) if then == "clip" else y.relu() if then == "relu" else y

    def operand(self, view: View, number: int, name: str, source: Any) -> Any:
        """Memory for one view of one set; with a source, its values are there."""
        key = (name, view.dtype, view.shape, view.strides, number)
        if key not in self.pool:
            made = self.rig.filled(view)
            if source is not None:
                made.copy_(source)
            self.pool[key] = made
        return self.pool[key]

    def room(self, tactic: Tactic, number: int) -> Any:
        """The workspace of a tactic in one set, poisoned when it is new."""
        size = evaluate_dim(tactic.workspace_bytes, {})
        key = ("room", size, number)
        if key not in self.pool:
            kind = self.rig.torch.uint8
            self.pool[key] = self.rig.torch.full((size,), 255, dtype=kind, device="cuda")
        return self.pool[key]

    def torch_us(self) -> float:
        """What torch takes for the root alone, channels last, bias included."""
        torch, product = self.rig.torch, self.product
        functional = torch.nn.functional
        calls: list[Callable[[], Any]] = []
        for _ in range(self.sets):
            x, w = (self.inputs[0, k].half().clone() for k in range(2))
            b = self.inputs[0, 4 if product.shortcut else 2].half().clone()
            if product.size:
                last = torch.channels_last
                x, w = x.to(memory_format=last), w.to(memory_format=last)
                args = (x, w, b, product.stride, product.kernel // 2, 1, product.groups)
                calls.append(partial(functional.conv2d, *args))
            else:
                calls.append(partial(functional.linear, x, w, b))
        return self.rig.torch_us(calls * -(-_LAUNCHES // len(calls)))


class CandidateBench:
    """One candidate, loaded."""

    def __init__(self, memory: Memory, candidate: Candidate, backend: CudaBackend) -> None:
        """Load the kernels and lay out the arguments of every set."""
        self.memory, self.rig = memory, memory.rig
        records = [CudaKernel.from_bytes(f.result(), 0) for f in candidate.records]
        self.modules = [CudaModule(self.rig.device, r.cubin) for r in records]
        self.functions = [
            module.function(r.entry, r.dynamic_shared_bytes)
            for module, r in zip(self.modules, records, strict=True)
        ]
        node, tactic = memory.node, candidate.tactic
        packed = backend.family(tactic.family).pack(node, tactic)
        self.places: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        count = 0
        for index, (value, fmt) in enumerate(zip(node.inputs, tactic.input_formats, strict=True)):
            if value is not None and fmt is not None:
                self.places[count] = index
                count += 1
        self.output = count
        torch = self.rig.torch
        for offset, constant in enumerate(packed):
            self.places[count + 1 + offset] = torch.from_numpy(constant.array).cuda()
            self.names[count + 1 + offset] = f"{constant.name} {constant.recipe}"
        self.last = count + len(packed)
        self.sets = [self._arguments(candidate, records, n) for n in range(memory.sets)]

    def _arguments(self, candidate: Candidate, records: Any, number: int) -> list[Any]:
        queued: list[Any] = []
        for step, record, function in zip(candidate.steps, records, self.functions, strict=True):
            words: list[int] = []
            for position, view in enumerate(step.operands):
                if view.buffer > self.last:
                    words.append(self.memory.room(candidate.tactic, number).data_ptr())
                    continue
                source = self.places.get(view.buffer)
                if isinstance(source, int):
                    source = self.memory.inputs[number % 2, source]
                name = self.names.get(view.buffer, str(view.buffer))
                made = self.memory.operand(view, number, name, source)
                if view.buffer == self.output and position in step.writes:
                    self.results[number] = made
                words.append(made.data_ptr())
            words += [evaluate_dim(s, {}) for s in step.scalars] + [0] * record.scratch_words
            arguments = KernelArguments(words)
            shape = LaunchConfig(
                (evaluate_dim(step.chunks, {}), 1, 1),
                record.threads,
                record.dynamic_shared_bytes,
                uses_pdl=record.supports_pdl,
                cluster_size=record.cluster,
            )
            queued.append((function, shape, arguments))
        return queued

    def queue(self, number: int, *, early: bool = True) -> None:
        """Launch the candidate on one set; ``early``, if it can start so."""
        for function, shape, arguments in self.sets[number % len(self.sets)]:
            if not early:
                shape = dataclasses.replace(shape, uses_pdl=False)
            launch(function, shape, arguments, self.rig.stream)

    def error(self) -> float:
        """The larger relative error of two sets, their outputs poisoned before."""
        worst = 0.0
        for number in range(2):
            self.results[number].fill_(float("nan"))
            self.rig.torch.cuda.synchronize()
            self.queue(number)
            self.rig.stream.synchronize()
            wanted = self.memory.wanted[number]
            difference = (self.results[number].float() - wanted).norm() / wanted.norm()
            value = float(difference)
            worst = max(worst, value if value == value else float("inf"))
        return worst

    def microseconds(self, rounds: int) -> float:
        """One launch of many in a graph."""
        count = max(_LAUNCHES, len(self.sets))

        def record() -> None:
            for number in range(count):
                self.queue(number)

        graph = CudaGraph(self.rig.stream, record)
        try:
            return self.rig.milliseconds(graph, rounds) * 1e3 / count
        finally:
            graph.close()
