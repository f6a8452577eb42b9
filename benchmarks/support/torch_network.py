"""Networks of steps in PyTorch: a graph module that runs eagerly and compiles.

Only processes that measure PyTorch import this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.support.onnx_steps import Network

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


def torch_module(network: Network, dtype: str, device: str = "cuda") -> Any:
    """Return a module; its floats are of ``dtype``, its filters channels-last."""
    root = torch.nn.Module()
    graph = torch.fx.Graph()
    values = {name: graph.placeholder(f"input{k}") for k, name in enumerate(network.inputs)}
    for number, (name, array) in enumerate(network.constants.items()):
        root.register_buffer(
            f"constant{number}", torch_tensor(torch.from_numpy(array.copy()), dtype, device)
        )
        values[name] = graph.get_attr(f"constant{number}")
    for step in network.steps:
        operands = tuple(values[name] if name else None for name in step.inputs)
        values[step.output] = graph.call_function(TABLE[step.op], operands, dict(step.attributes))
    graph.output(tuple(values[name] for name in network.outputs))
    return torch.fx.GraphModule(root, graph).eval()


def torch_tensor(tensor: Any, dtype: str, device: str = "cuda") -> Any:
    """Return a tensor on the GPU, floats as ``dtype``, four axes channels-last."""
    there = tensor.to(device)
    if there.is_floating_point():
        there = there.to(getattr(torch, dtype))
    return there.to(memory_format=torch.channels_last) if there.ndim == 4 else there


def _conv(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Any:
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        x, pads = functional.pad(x, _torch_pads(pads)), (0,) * 2 * half
    return functional.conv2d(x, w, b, strides, pads[:half], dilations, group)


def _max_pool(
    x: Any, *, size: Sequence[int], strides: Sequence[int], pads: Sequence[int], ceil_mode: bool
) -> Any:
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        x = functional.pad(x, _torch_pads(pads), value=float("-inf"))
        pads = (0,) * 2 * half
    return functional.max_pool2d(x, size, strides, pads[:half], ceil_mode=ceil_mode)


def _torch_pads(pads: Sequence[int]) -> list[int]:
    """Padding as torch has it: the last axis first, before and after by turns."""
    half = len(pads) // 2
    return [n for k in reversed(range(half)) for n in (pads[k], pads[half + k])]


def _gemm(x: Any, w: Any, b: Any = None, *, is_transposed: bool) -> Any:
    return functional.linear(x, w if is_transposed else w.t(), b)


def _attention(q: Any, k: Any, v: Any, *, scale: float) -> Any:
    return functional.scaled_dot_product_attention(q, k.transpose(-1, -2), v, scale=scale)


def _layer_norm(x: Any, w: Any, b: Any, *, epsilon: float) -> Any:
    return functional.layer_norm(x, w.shape, w, b, epsilon)


def _reshape(x: Any, *, shape: Sequence[int]) -> Any:
    return x.reshape([x.shape[k] if size == 0 else size for k, size in enumerate(shape)])


def _gather(x: Any, indices: Any, *, axis: int) -> Any:
    if axis == 0:
        return functional.embedding(indices, x)
    return torch.index_select(x, axis, indices.reshape(-1))


def _concat(*arrays: Any, axis: int) -> Any:
    return torch.cat(arrays, axis)


def _clip(x: Any, *, low: float, high: float) -> Any:
    return torch.clamp(x, low, high)


def _flatten(x: Any, *, axis: int) -> Any:
    return torch.flatten(x, axis)


def _average(x: Any) -> Any:
    return x.mean((2, 3), keepdim=True)


def _same(x: Any) -> Any:
    return x


def _softmax(x: Any, *, axis: int) -> Any:
    return torch.softmax(x, axis)


def _transpose(x: Any, *, axes: Sequence[int]) -> Any:
    return x.permute(axes)


TABLE: Final[dict[str, Callable[..., Any]]] = {
    "Add": torch.add,
    "Attention": _attention,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": torch.div,
    "Erf": torch.erf,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": functional.gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _average,
    "Identity": _same,
    "LayerNormalization": _layer_norm,
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Transpose": _transpose,
}
