"""Emulated layers equal a scalar model, element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError, create_runtime
from smelt.nvdla.loadable import (
    DescriptorVersion,
    EmuBuffer,
    EmuFormat,
    EmuOperation,
    EmuPowerOperation,
    EmuSoftmaxOperation,
)
from smelt.nvdla.port import LocalPort
from tests.support.nvdla_driver import RecordingDriver
from tests.support.nvdla_loadables import emulated_loadable

if TYPE_CHECKING:
    from smelt.nvdla import Runtime
    from smelt.nvdla.loadable import Loadable

NEW, OLD = DescriptorVersion.WITH_OFFSETS, DescriptorVersion.WITHOUT_OFFSETS


def _buffer(
    index: int, kind: int, shape: tuple[int, int, int], *, start: int = 0, spare: int = 0
) -> EmuBuffer:
    """A tensor (CxHxW) whose lines and surfaces are ``spare`` atoms apart."""
    channel, height, width = shape
    atom = 8 if kind == EmuFormat.INT8_8 else 32
    lanes = atom // 2 if kind == EmuFormat.FF16 else atom
    line = (width + spare) * atom
    surface = (height + spare) * line
    size = start + -(-channel // lanes) * surface
    return EmuBuffer(index, start, size, kind, width, height, channel, line, surface)


def _run(loadable: Loadable, source: bytes) -> bytes:
    with create_runtime(LocalPort(RecordingDriver())) as runtime:
        return _submit(runtime, loadable, source)


def _submit(runtime: Runtime, loadable: Loadable, source: bytes) -> bytes:
    runtime.load(loadable.to_bytes())
    memory = runtime.allocate_system_memory(runtime.get_input_tensor_desc(0).buffer_size)
    target = runtime.allocate_system_memory(runtime.get_output_tensor_desc(0).buffer_size)
    memory.data[: len(source)] = np.frombuffer(source, np.uint8)
    runtime.bind_input_tensor(0, memory.mem_handle)
    runtime.bind_output_tensor(0, target.mem_handle)
    runtime.submit()
    return target.data.tobytes()


def _offset(buffer: EmuBuffer, channel: int, line: int, column: int) -> int:
    atom = 8 if buffer.format == EmuFormat.INT8_8 else 32
    lanes, element = (16, 2) if buffer.format == EmuFormat.FF16 else (atom, 1)
    return (
        buffer.address_index_offset
        + channel // lanes * buffer.surf_stride
        + line * buffer.line_stride
        + column * atom
        + channel % lanes * element
    )


def _half_up(value: float) -> float:
    """Round a float to half precision, ties away from zero, by trying both neighbours."""
    if not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        low = np.float16(value)
    if np.isinf(low):
        return float(low)
    candidates = [
        low,
        np.nextafter(low, np.float16(np.inf)),
        np.nextafter(low, np.float16(-np.inf)),
    ]
    return float(min(candidates, key=lambda half: (abs(float(half) - value), -abs(float(half)))))


def _expected_softmax(values: list[float]) -> list[float]:
    largest = max(values)
    powers = [np.float32(math.exp(float(np.float32(value - largest)))) for value in values]
    total = np.float32(0)
    for power in powers:
        total = np.float32(total + power)
    return [float(np.float32(power / total)) for power in powers]


@pytest.mark.requirement("DX-6")
@given(
    st.lists(st.integers(-0x3C00, 0x3C00), min_size=1, max_size=40),
    st.sampled_from([NEW, OLD]),
)
def test_half_precision_softmax_equals_the_scalar_model(
    bits: list[int], layout: DescriptorVersion
) -> None:
    values = np.array([value & 0x8000 | abs(value) for value in bits], np.uint16).view(np.float16)
    shape = (len(bits), 1, 1)
    source, target = _buffer(3, EmuFormat.FF16, shape), _buffer(4, EmuFormat.FF16, shape)
    if layout is OLD:
        source, target = (_old(item) for item in (source, target))
    loadable = emulated_loadable(EmuSoftmaxOperation(axis=1), source, target, layout)
    answer = np.frombuffer(_run(loadable, values.tobytes()), np.float16)[: len(bits)]
    expected = [_half_up(value) for value in _expected_softmax([float(item) for item in values])]
    np.testing.assert_array_equal(answer, expected)


def _old(buffer: EmuBuffer) -> EmuBuffer:
    """The buffer with the format number of 2018, where halves are 2."""
    return EmuBuffer(
        buffer.address_index,
        0,
        buffer.size,
        2,
        buffer.width,
        buffer.height,
        buffer.channel,
        buffer.line_stride,
        buffer.surf_stride,
    )


@given(
    st.lists(st.integers(-128, 127), min_size=1, max_size=70),
    st.sampled_from([EmuFormat.INT8, EmuFormat.INT8_8]),
    st.floats(2**-10, 1, width=32),
)
def test_integer_softmax_equals_the_scalar_model(
    values: list[int], kind: EmuFormat, scale: float
) -> None:
    shape = (len(values), 1, 1)
    source, target = _buffer(3, kind, shape), _buffer(4, kind, shape)
    operation = EmuSoftmaxOperation(input_scale_factor=scale, output_scale_factor=1 / 127)
    stored = np.array(values, np.int8).tobytes()
    answer = np.frombuffer(_run(emulated_loadable(operation, source, target), stored), np.int8)
    halves = [_half_up(float(np.float32(value) * np.float32(scale))) for value in values]
    output_scale = np.float32(1 / 127)
    expected = [
        int(np.clip(np.float32(_half_up(p)) / output_scale, -128, 127))
        for p in _expected_softmax(halves)
    ]
    np.testing.assert_array_equal(answer[: len(values)], expected)


@given(
    st.tuples(st.integers(1, 20), st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([EmuFormat.FF16, EmuFormat.INT8, EmuFormat.INT8_8]),
    st.tuples(
        st.sampled_from([1.0, 2.0, 3.0, 0.5]),
        st.floats(-4, 4, width=32),
        st.floats(-4, 4, width=32),
    ),
    st.integers(0, 2),
    st.integers(0, 2**32 - 1),
)
def test_power_equals_the_scalar_model_and_touches_nothing_else(
    shape: tuple[int, int, int],
    kind: EmuFormat,
    factors: tuple[float, float, float],
    spare: int,
    seed: int,
) -> None:
    power, scale, shift = factors
    source = _buffer(3, kind, shape, start=6, spare=spare)
    target = _buffer(4, kind, shape, start=10)
    operation = EmuPowerOperation(
        input_scale_factor=0.25, output_scale_factor=0.5, power=power, scale=scale, shift=shift
    )
    memory = np.random.default_rng(seed).integers(0, 256, source.size).astype(np.uint8).tobytes()
    answer = _run(emulated_loadable(operation, source, target), memory)
    expected = bytearray(target.size)
    for index in np.ndindex(shape):
        at, to = _offset(source, *index), _offset(target, *index)
        if kind is EmuFormat.FF16:
            x = float(np.frombuffer(memory, np.float16, 1, at)[0])
            half = np.float16(_half_up(_power(x, power, scale, shift)))
            expected[to : to + 2] = half.tobytes()
        else:
            x = float(np.frombuffer(memory, np.int8, 1, at)[0]) * 0.25
            y = float(np.float32(_power(x, power, scale, shift) / 0.5))
            whole = 0 if math.isnan(y) else int(min(max(y, -128), 127))
            expected[to] = whole & 255
    if kind is EmuFormat.FF16:
        np.testing.assert_array_equal(_halves(answer, target), _halves(bytes(expected), target))
    else:
        assert answer == bytes(expected)


def _halves(memory: bytes, buffer: EmuBuffer) -> np.ndarray[tuple[int], np.dtype[np.float16]]:
    return np.frombuffer(memory[buffer.address_index_offset :], np.float16)


def _power(x: float, power: float, scale: float, shift: float) -> float:
    with np.errstate(all="ignore"):
        base = np.float32(shift) + np.float32(scale) * np.float32(x)
        return float(np.float32(np.float64(base) ** power))


def test_a_stopped_emulator_runs_nothing() -> None:
    shape = (4, 1, 1)
    loadable = emulated_loadable(
        EmuSoftmaxOperation(), _buffer(3, EmuFormat.FF16, shape), _buffer(4, EmuFormat.FF16, shape)
    )
    with create_runtime(LocalPort(RecordingDriver())) as runtime:
        runtime.stop_emu()
        with pytest.raises(NvdlaError) as caught:
            _submit(runtime, loadable, b"")
        assert caught.value.status is NvError.NOT_INITIALIZED
        runtime.init_emu()
        runtime.submit()


@pytest.mark.parametrize(
    ("source", "target", "status"),
    [
        (EmuBuffer(9, 0, 32, 3, 1, 1, 4, 32, 32), None, NvError.INVALID_ADDRESS),
        (EmuBuffer(-1, 0, 32, 3, 1, 1, 4, 32, 32), None, NvError.INVALID_ADDRESS),
        (EmuBuffer(3, 1 << 31, 32, 3, 1, 1, 4, 32, 32), None, NvError.INVALID_ADDRESS),
        (EmuBuffer(3, 0, 32, 3, 1, 2, 4, 1 << 31, 32), None, NvError.INVALID_ADDRESS),
        (EmuBuffer(3, 0, 32, 3, 65535, 65535, 65535, 0, 0), None, NvError.INVALID_SIZE),
        (EmuBuffer(3, 0, 32, 0, 1, 1, 4, 32, 32), None, NvError.NOT_SUPPORTED),
        (EmuBuffer(3, 0, 32, 17, 1, 1, 4, 32, 32), None, NvError.NOT_SUPPORTED),
        (
            EmuBuffer(3, 0, 32, 2, 1, 1, 4, 32, 32),
            EmuBuffer(4, 0, 32, 2, 1, 1, 4, 32, 32),
            NvError.NOT_SUPPORTED,
        ),
        (EmuBuffer(3, 0, 32, 3, 1, 1, 5, 32, 32), None, NvError.INVALID_SIZE),
    ],
    ids=["index", "absent", "offset", "stride", "bomb", "mixed", "format", "int16", "extent"],
)
def test_a_descriptor_that_leads_outside_is_refused(
    source: EmuBuffer, target: EmuBuffer | None, status: NvError
) -> None:
    fitting = target or EmuBuffer(4, 0, 32, 3, 1, 1, 4, 32, 32)
    loadable = emulated_loadable(EmuSoftmaxOperation(), source, fitting)
    with pytest.raises(NvdlaError) as caught:
        _run(loadable, b"")
    assert caught.value.status is status


def test_an_unknown_emulated_operation_is_refused() -> None:
    buffer = EmuBuffer(3, 0, 32, 3, 1, 1, 4, 32, 32)
    operation: EmuOperation = EmuPowerOperation(op_type=7)
    with pytest.raises(NvdlaError, match="type 7") as caught:
        _run(emulated_loadable(operation, buffer, buffer), b"")
    assert caught.value.status is NvError.NOT_SUPPORTED
