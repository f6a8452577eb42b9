"""Attention: two matrix products with a softmax between, for some queries of one head at a time.

A worker packs the keys and values of a head. Then, for one block of queries after the other, it
computes scores, their softmax and the weighted sum of values in its own scratch memory, so that
scores are never stored. The kernels are those of `GemmFamily` and `NormalizeFamily`, called from
one launch. Where extents are not known at build time they are five launches, with the scores in the
workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import Family, NodeRefusedError, Operands, Tactic, op_as, with_storage_dtype
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends._storage import packed_strides
from smelt.backends._view_family import permute_axes
from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._refusals import check_float_values
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec
from smelt.backends.cpu.families._operand_packing import LINEAR
from smelt.backends.cpu.families._subkernels import call_subkernel, link_subkernels
from smelt.backends.cpu.families._vectors import unravel
from smelt.backends.cpu.families.gemm import STRIDED, GemmFamily
from smelt.backends.cpu.families.normalize import NormalizeFamily
from smelt.engine import Json, KernelSpec, Launch, Step, View, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Graph, Node, Value
from smelt.ops import Add, Attention, Fused, MatMul, Softmax, Stage, Transpose
from smelt.types import (
    DType,
    Layout,
    TensorFormat,
    TensorType,
    ceil_div,
    element_count,
    fixed_extent,
    override,
)

if TYPE_CHECKING:
    from smelt.types import Dim

_GEMM: Final = GemmFamily()
"""Family that generates both matrix products and the packing of their second factors."""
_SOFTMAX: Final = NormalizeFamily()
"""Family that generates the softmax."""
_FAMILIES: Final[dict[str, Family[CpuTarget]]] = {f.name: f for f in (_GEMM, _SOFTMAX)}
_QUERY_BLOCKS: Final = (128, 48)
"""Approximate numbers of queries of a head per block, each of which gives a tactic. Chosen without
a measurement."""
_SCRATCH_BYTES: Final = 1 << 20
"""Largest size in bytes of a block's scores; many keys make blocks of queries smaller. 1 MiB is the
L2 cache of current cores; chosen without a measurement."""
_MIN_CHUNKS: Final = 12
"""Fewest chunks per launch. With fewer heads, the queries of a head are divided over chunks, each
of which packs the keys and values again. Chosen without a measurement."""
_LINE_BYTES: Final = 64
"""Size in bytes of a cache line, to which scores and weights are aligned."""
_UNFUSED_COST: Final = 1.1
"""Estimated time of five launches, relative to one. MiniLM as a whole gains 0 to 9 % from one
launch (docs/lab/transformers.md); the value is chosen without a measurement of the attention
alone."""
_SECONDS_PER_SCORE: Final = 2.5e-10
"""Estimated seconds of the softmax per score. The softmax of 12x128x128 scores takes 39 µs alone
(docs/performance.md), which is 2.0e-10 s for each score."""
_NO_MEMORY: Final = View(0, 0, DType.FLOAT32, (), ())
"""View whose memory is determined at run time: scratch memory."""


class AttentionFamily(Family[CpuTarget]):
    """Attention in float32; the head sizes must be known at build time."""

    name: ClassVar[str] = "attention"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, Attention):
            return
        sizes = _Sizes.of(node)
        _check(node, sizes)
        inputs = tuple(None if v is None else _format(v) for v in node.inputs)
        for first, second, seconds in _pairs(_AttentionNodes.of(node, sizes), target):
            for queries in (*sizes.blocks(), 0):
                options = parameters(
                    queries=queries, first=first.parameters, second=second.parameters
                )
                tactic = Tactic(self.name, options, inputs, (LINEAR,))
                yield replace(
                    tactic,
                    workspace_bytes=0 if queries else _WorkspaceLayout.of(node, tactic).size_bytes,
                    estimated_seconds=seconds * (1.0 if queries else _UNFUSED_COST),
                )

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Return the tactic with operands and softmax weights stored as ``dtype``.

        The scores stay float32.
        """
        narrow = with_storage_dtype(dtype, node, tactic)
        options: dict[str, Any] = dict(narrow.parameters)
        nodes = _AttentionNodes.of(node, _Sizes.of(node))
        for name, product_node in (("first", nodes.scores), ("second", nodes.values)):
            formats = tuple(None if v is None else LINEAR for v in product_node.inputs)
            float_tactic = Tactic(_GEMM.name, options[name], formats, (LINEAR,))
            options[name] = _GEMM.reduced_precision_tactics(
                product_node, float_tactic, dtype, target
            )[0].parameters
        narrow = replace(narrow, parameters=parameters(**options, intermediate_dtype=dtype.value))
        size = 0 if options["queries"] else _WorkspaceLayout.of(node, narrow).size_bytes
        return (replace(narrow, workspace_bytes=size),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op, options = op_as(Attention, node), tactic.options
        operand_views = _AttentionViews.of(op, operands)
        queries = options.integer("queries")
        if not queries:
            return tuple(_launches(node, tactic, operand_views, operands.workspace))
        fused_attention = _FusedAttention(
            operand_views, _Sizes.of(node), queries, _WorkspaceLayout.of(node, tactic)
        )
        stages = _launches(node, tactic, fused_attention.window(), None)
        return (fused_attention.launch(self.name, stages),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        stages: Any = as_json(kernel["stages"])
        specs = [KernelSpec(family, options) for family, options, *_ in stages]
        texts = [_FAMILIES[spec.family].generate(spec, target) for spec in specs]
        return link_subkernels(_write(kernel, [spec.symbol for spec in specs]), texts)


# ---- extents and nodes


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Extents of the scores and of both matrix products."""

    stack: tuple[Dim, ...]
    """Batch and heads."""
    queries: Dim
    keys: Dim
    width: Dim
    """Elements of a query and of a key: the head size."""
    result_width: Dim
    """Elements of a value."""

    @staticmethod
    def of(node: Node) -> _Sizes:
        """Return the extents of an attention node."""
        op = op_as(Attention, node)
        *stack, queries, width = op.split(required_input(node, 0).tensor.shape)
        _, _, keys, result_width = op.split(required_input(node, 2).tensor.shape)
        return _Sizes(tuple(stack), queries, keys, width, result_width)

    def blocks(self) -> tuple[int, ...]:
        """Return the numbers of queries per block to offer.

        The result is empty if an extent that the fused kernel needs is not known at build time.
        """
        queries, extents = self.queries, (self.keys, self.width, self.result_width)
        if not isinstance(queries, int) or not all(isinstance(e, int) for e in extents):
            return ()
        maximum = max(1, _SCRATCH_BYTES // (4 * fixed_extent(self.keys)))
        block_counts = (max(round(queries / n), -(-queries // maximum)) for n in _QUERY_BLOCKS)
        return tuple(dict.fromkeys(-(-queries // count) for count in block_counts))


@dataclass(frozen=True, slots=True)
class _AttentionNodes:
    """The ops that attention consists of, as nodes of a graph of their own."""

    scores: Node
    soft: Node
    values: Node

    @staticmethod
    def of(node: Node, sizes: _Sizes) -> _AttentionNodes:
        """Return the nodes for one attention node; an additive mask becomes an epilogue."""
        graph, s = Graph(node.name), sizes

        def add_input(name: str, *shape: Dim) -> Value:
            return graph.add_input(name, TensorType(DType.FLOAT32, (*s.stack, *shape)))

        q, k = add_input("q", s.queries, s.width), add_input("k", s.width, s.keys)
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        op, inputs = cast("Any", MatMul()), [q, k]
        if mask is not None:
            mask_shape = mask.tensor.shape
            scores_shape = (*s.stack, s.queries, s.keys)
            shape = ((1,) * (4 - len(mask_shape)) + mask_shape)[4 - len(scores_shape) :]
            shape = tuple(1 if g == 1 else w for g, w in zip(shape, scores_shape, strict=True))
            inputs.append(graph.add_input("mask", TensorType(DType.FLOAT32, shape)))
            op = Fused(MatMul(), 2, (Stage(Add(), (-1, 2)),))
        scores = graph.add(op, *inputs, name="scores")
        soft = graph.add(Softmax(-1), scores.output, name="soft")
        v = add_input("v", s.keys, s.result_width)
        values = graph.add(MatMul(), soft.output, v, name="values")
        graph.outputs.append(values.output)
        return _AttentionNodes(scores, soft, values)


def _check(node: Node, sizes: _Sizes) -> None:
    """Check that the family supports an attention node."""
    check_float_values(*node.inputs, node.output)
    if not isinstance(sizes.width, int) or not isinstance(sizes.result_width, int):
        raise NodeRefusedError("the head size is not known at build time")
    if 0 in (sizes.width, sizes.result_width, sizes.queries, sizes.keys, *sizes.stack):
        raise NodeRefusedError("an operand is empty")


def _format(value: Value) -> TensorFormat:
    """Return the format in which an operand is read.

    The kernels read any strides, so an operand that a transpose produces needs no copy.
    """
    producer = value.producer
    return STRIDED if producer is not None and isinstance(producer.op, Transpose) else LINEAR


def _pairs(nodes: _AttentionNodes, target: CpuTarget) -> list[tuple[Tactic, Tactic, float]]:
    """Return the best two pairs of matrix product tactics, with their estimated seconds."""
    candidates = [
        list(_GEMM.tactics(product_node, target))[:2]
        for product_node in (nodes.scores, nodes.values)
    ]
    count = element_count(nodes.scores.output.tensor.shape)
    seconds = (count if isinstance(count, int) else 1 << 14) * _SECONDS_PER_SCORE
    return [
        (a, b, a.estimated_seconds + b.estimated_seconds + seconds)
        for a, b in zip(*candidates, strict=False)
    ]


# ---- memory


@dataclass(frozen=True, slots=True)
class _WorkspaceLayout:
    """Layout of the workspace or of scratch memory: packed keys, packed values, scores.

    The softmax overwrites the scores with its weights, unless the weights are narrower: then they
    follow the scores.
    """

    keys_bytes: Dim
    values_bytes: Dim
    row: Dim
    """Elements from one row of scores to the next."""
    stack: tuple[Dim, ...]
    queries: Dim
    dtype: DType
    """Element type of the softmax weights."""

    @staticmethod
    def of(node: Node, tactic: Tactic) -> _WorkspaceLayout:
        """Return the layout for a node and a tactic."""
        options = tactic.options
        sizes = _Sizes.of(node)
        stack, queries = sizes.stack, sizes.queries
        if (block := options.integer("queries")) > 0:
            stack, queries = (), block
        second_factors = ((sizes.keys, sizes.width), (sizes.result_width, sizes.keys))
        packed: list[Dim] = []
        for (columns, rows), name in zip(second_factors, ("first", "second"), strict=True):
            of_product = options.nested(name)
            width = of_product.integer("lanes") * of_product.integer("vectors")
            size = ceil_div(columns, width) * width * _LINE_BYTES * ceil_div(rows * 4, _LINE_BYTES)
            packed.append(size * element_count(stack))
        # The padding keeps row lengths from being powers of two, whose rows would compete for the
        # same cache sets.
        row = ceil_div(sizes.keys, 16) * 16 + 16
        dtype = DType(options.text("intermediate_dtype", DType.FLOAT32.value))
        return _WorkspaceLayout(packed[0], packed[1], row, stack, queries, dtype)

    @property
    def scores_at(self) -> Dim:
        """Byte offset of the scores."""
        return self.keys_bytes + self.values_bytes

    @property
    def weights_at(self) -> Dim:
        """Byte offset of the softmax weights."""
        narrow = self.dtype is not DType.FLOAT32
        return self.scores_at + (self._bytes_of(DType.FLOAT32) if narrow else 0)

    @property
    def size_bytes(self) -> Dim:
        """Size in bytes of the whole layout."""
        return self.weights_at + self._bytes_of(self.dtype)

    def _bytes_of(self, dtype: DType) -> Dim:
        """Return the size in bytes of the scores stored as ``dtype``, rounded up to cache lines."""
        elements = element_count(self.stack) * self.queries * self.row
        return ceil_div(elements * dtype.size_bytes, _LINE_BYTES) * _LINE_BYTES

    def windows(self, workspace: View | None, keys: Dim) -> tuple[View, View, View, View]:
        """Return views of packed keys, packed values, scores and softmax weights.

        For scratch memory only shapes, strides and element types are meaningful.
        """
        memory = replace(workspace or _NO_MEMORY, dtype=DType.FLOAT32, strides=(1,))
        packed_keys = replace(memory, shape=(self.keys_bytes // 4,))
        packed_values = replace(
            memory, offset=memory.offset + self.keys_bytes, shape=(self.values_bytes // 4,)
        )
        shape = (*self.stack, self.queries, keys)
        strides, _ = packed_strides((*self.stack, self.queries, self.row), Layout.LINEAR)
        scores, weights = (
            View(memory.buffer, memory.offset + at, dtype, shape, strides)
            for at, dtype in ((self.scores_at, DType.FLOAT32), (self.weights_at, self.dtype))
        )
        return packed_keys, packed_values, scores, weights


@dataclass(frozen=True, slots=True)
class _AttentionViews:
    """Views of the operands with the axes batch, head, position, element, or the last two alone."""

    q: View
    k: View
    v: View
    mask: View | None
    out: View

    @staticmethod
    def of(op: Attention, operands: Operands) -> _AttentionViews:
        """Return the operands of a node with an axis of heads, and the mask broadcast to them."""
        q, k, v = (_with_head_axis(op, input_view(operands, index)) for index in range(3))
        mask = operands.inputs[3] if len(operands.inputs) > 3 else None
        if mask is not None:
            scores_shape = (*q.shape[:3], k.shape[2])
            shape = (1,) * (4 - len(mask.shape)) + mask.shape
            mask = replace(mask, shape=shape, strides=broadcast_strides(mask, scores_shape))
        return _AttentionViews(q, k, v, mask, _with_head_axis(op, operands.outputs[0]))

    def all(self) -> tuple[View, ...]:
        """Return the operands in the order of the kernel."""
        return (self.q, self.k, self.v, *([] if self.mask is None else [self.mask]), self.out)


def _with_head_axis(op: Attention, view: View) -> View:
    """Return the view with an axis of heads split from its last axis."""
    if not op.heads:
        return view
    batch, position, element = view.strides
    shape = op.split(view.shape)
    return replace(view, shape=shape, strides=(batch, shape[3] * element, position, element))


def _launches(
    node: Node, tactic: Tactic, operand_views: _AttentionViews, workspace: View | None
) -> list[Launch]:
    """Return the five launches: pack keys, pack values, scores, softmax, weighted sum of values."""
    options = tactic.options
    *stack, queries, width = operand_views.q.shape
    sizes = _Sizes(
        tuple(stack), queries, operand_views.k.shape[-2], width, operand_views.v.shape[-1]
    )
    nodes = _AttentionNodes.of(node, sizes)
    keys, values, scores, weights = _WorkspaceLayout.of(node, tactic).windows(workspace, sizes.keys)
    rank = len(operand_views.k.shape)
    transposed_keys = permute_axes(operand_views.k, (*range(rank - 2), rank - 1, rank - 2))
    masks = () if operand_views.mask is None else (operand_views.mask,)
    product_operands = Operands((operand_views.q, transposed_keys, *masks), (scores,), (), keys)
    pack_keys, multiply = _product(nodes.scores, options["first"], product_operands)
    panels = replace(MicrokernelSpec.from_spec(multiply.kernel), alpha=op_as(Attention, node).scale)
    multiply = replace(multiply, kernel=panels.spec(_GEMM.name))
    softmax_tactic = Tactic(_SOFTMAX.name, (), (LINEAR,), (LINEAR,))
    (softmax,) = _SOFTMAX.lower(nodes.soft, softmax_tactic, Operands((scores,), (weights,), ()))
    product_operands = Operands((weights, operand_views.v), (operand_views.out,), (), values)
    pack_values, sum_values = _product(nodes.values, options["second"], product_operands)
    pack_values = replace(pack_values, waits=False)
    return [pack_keys, pack_values, multiply, cast("Launch", softmax), sum_values]


def _product(node: Node, options: Any, operands: Operands) -> list[Launch]:
    """Return the launches of one matrix product: packing, then the product."""
    formats = tuple(None if view is None else LINEAR for view in operands.inputs)
    steps = _GEMM.lower(node, Tactic(_GEMM.name, options, formats, (LINEAR,)), operands)
    return [cast("Launch", step) for step in steps]


# ---- one fused launch

_KEYS: Final = -1
_VALUES: Final = -2
_SCORES: Final = -3
_WEIGHTS: Final = -4
_OWN: Final = (_KEYS, _VALUES, _SCORES, _WEIGHTS)
"""Regions of scratch memory; as operand numbers they are negative."""
_PACKS: Final = 2
"""Number of leading stages, which pack keys and values and run once per chunk."""


@dataclass(frozen=True, slots=True)
class _FusedAttention:
    """Attention in one launch, in blocks of queries of one head, in scratch memory."""

    operand_views: _AttentionViews
    sizes: _Sizes
    queries: int
    memory: _WorkspaceLayout

    def window(self) -> _AttentionViews:
        """Return the part of the operands that one block of queries sees."""

        def inner(view: View, rows: Dim) -> View:
            shape = (rows, view.shape[3])
            return View(view.buffer, 0, view.dtype, shape, view.strides[2:])

        p, mask = self.operand_views, self.operand_views.mask
        if mask is not None:
            mask = inner(mask, self.queries if mask.shape[2] != 1 else 1)
        k, v = (inner(view, self.sizes.keys) for view in (p.k, p.v))
        return _AttentionViews(inner(p.q, self.queries), k, v, mask, inner(p.out, self.queries))

    def launch(self, family: str, stages: Sequence[Launch]) -> Launch:
        """Return the launch that runs ``stages`` for every block of queries."""
        if any(stage.scalars for stage in stages):
            raise InternalError(
                "the fused attention kernel needs extents that are known at build time"
            )
        views, scalars, memory = self.operand_views.all(), LaunchScalars(), self.memory
        result = len(views) - 1
        masks = (3,) if result > 3 else ()
        operands = (
            (1, _KEYS),
            (2, _VALUES),
            (0, _KEYS, *masks, _SCORES),
            (_SCORES, _WEIGHTS),
            (_WEIGHTS, _VALUES, result),
        )
        blocks_per_chunk, blocks = self._blocks()
        chunks_per_head = -(-blocks // blocks_per_chunk)
        spec = kernel_spec(
            family,
            stages=tuple(
                (s.kernel.family, s.kernel.parameters, o, fixed_extent(s.chunks))
                for s, o in zip(stages, operands, strict=True)
            ),
            extents=(*scalars.all_json(self.sizes.stack), chunks_per_head),
            queries=(self.queries, fixed_extent(self.sizes.queries)),
            blocks=(blocks_per_chunk, blocks),
            strides=tuple(
                _steps(view, scalars, moves=number not in (1, 2))
                for number, view in enumerate(views)
            ),
            memory=scalars.all_json((0, memory.keys_bytes, memory.scores_at, memory.weights_at)),
        )
        scratch = fixed_extent(memory.size_bytes)
        chunks = element_count(self.sizes.stack) * chunks_per_head
        return Launch(spec, views, (result,), scalars.values, chunks, scratch_bytes=scratch)

    def _blocks(self) -> tuple[int, int]:
        """Return the number of blocks of queries of a chunk, and of a head."""
        blocks = -(-fixed_extent(self.sizes.queries) // self.queries)
        heads = element_count(self.sizes.stack)
        parts = 1 if not isinstance(heads, int) else -(-_MIN_CHUNKS // heads)
        return max(1, blocks // parts), blocks


def _steps(view: View, scalars: LaunchScalars, *, moves: bool) -> Json:
    """Return the bytes from one item of the batch, one head and one query to the next."""
    size = view.dtype.size_bytes
    batch, head, position = (stride * size for stride in view.strides[:3])
    return scalars.all_json((batch, head, position if moves else 0))


def _write(kernel: KernelSpec, symbols: Sequence[str]) -> str:
    """Return the LLVM IR of the loop over chunks, which calls the stages."""
    strides: Any = as_json(kernel["strides"])
    stages: Any = as_json(kernel["stages"])
    extents: Any = as_json(kernel["extents"])
    memory: Any = as_json(kernel["memory"])
    e = Emitter(kernel.symbol, len(strides))
    frames = [e.emit("ptr", f"alloca [{len(o)} x i64], align 16") for _, _, o, _ in stages]
    scratch_pointers = {
        number: e.at(e.scratch, at) for number, at in zip(_OWN, memory, strict=True)
    }

    def call(chosen: slice, at: dict[int, Reg]) -> None:
        """Write calls of the chosen stages with the addresses of their operands."""
        for (_, _, operands, count), symbol, frame in list(
            zip(stages, symbols, frames, strict=True)
        )[chosen]:
            call_subkernel(e, symbol, frame, [at[number] for number in operands], (0, count))

    with e.loop(e.begin, e.end) as chunk:
        *stack, part = unravel(e, chunk.index, extents)
        at = scratch_pointers | {
            number: _advance(e, e.pointer(number), steps[:2], stack)
            for number, steps in enumerate(strides)
        }
        call(slice(_PACKS), at)
        blocks_per_chunk, blocks = cast("tuple[int, int]", as_json(kernel["blocks"]))
        first = e.mul(part, blocks_per_chunk)
        with e.loop(first, e.minimum(e.add(first, blocks_per_chunk), blocks)) as block:
            # The last block overlaps the one before rather than being smaller.
            size, queries = cast("tuple[int, int]", as_json(kernel["queries"]))
            row = e.minimum(e.mul(block.index, size), queries - size)
            block_pointers = scratch_pointers | {
                number: _advance(e, at[number], steps[2:], [row])
                for number, steps in enumerate(strides)
            }
            call(slice(_PACKS, None), block_pointers)
    return e.module()


def _advance(e: Emitter, at: Reg, steps: Sequence[Json], indices: Sequence[Int]) -> Reg:
    """Return the address after moving ``indices`` steps along each axis."""
    for index, step in zip(indices, steps, strict=True):
        at = e.at(at, e.mul(index, e.extent(step)))
    return at
