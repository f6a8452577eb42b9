"""The table of devices: what a row promises, and a device that is added by a row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt.backends import Backend
from smelt.builder._toolchain import Toolchain
from smelt.devices import DEVICE_GRAMMAR, DEVICE_KINDS, DeviceKind, DeviceName
from smelt.errors import EngineMismatchError, IndexRangeError, UnsupportedError
from smelt.inspect import report_of, report_to_text
from smelt.runtime import DeviceRuntime
from tests.support import serial_device
from tests.support.index_errors import Picking, picking_network
from tests.support.small_models import inception_model

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@pytest.mark.parametrize("kind", DEVICE_KINDS.values(), ids=lambda kind: kind.name)
def test_every_part_of_a_device_is_where_its_row_says(kind: DeviceKind) -> None:
    assert issubclass(kind.load_part(kind.runtime), DeviceRuntime)
    assert issubclass(kind.load_part(kind.backend), Backend)
    assert issubclass(kind.load_part(kind.toolchain), Toolchain)
    for form in kind.forms:
        text = form.replace("TARGET", "x86-64-v3").replace("INDEX", "0")
        assert DeviceName.from_text(text).kind is kind
        assert form in DEVICE_GRAMMAR


@pytest.fixture
def serial(monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of a device that has only a row in the table, and the classes that it names."""
    monkeypatch.setitem(DEVICE_KINDS, serial_device.SERIAL.name, serial_device.SERIAL)
    serial_device.calls.clear()
    return serial_device.SERIAL.name


def _images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((count, 3, 16, 16), np.float32)


def test_a_device_that_has_a_row_is_built_for_saved_loaded_and_run(
    serial: str, tmp_path: Path
) -> None:
    network = smelt.network_from_onnx(inception_model("batch"))
    shapes = {"image": tuple((n, 3, 16, 16) for n in (1, 4, 8))}
    path = tmp_path / "serial.engine"
    with smelt.build(network, serial, tune="none", shapes=shapes) as built:
        assert built.device == serial
        built.save(path)
    with (
        smelt.load(path, device=serial) as engine,
        smelt.build(network, "cpu", tune="none", shapes=shapes) as reference,
        engine.create_context() as context,
        reference.create_context() as other,
    ):
        for count in (1, 5, 8):
            x = _images(count)
            name = engine.inputs[0].name
            outputs, wanted = context.run({name: x}), other.run({name: x})
            for output, array in wanted.items():
                np.testing.assert_array_equal(outputs[output], array)
        assert set(serial_device.calls) == {symbol for symbol, _ in engine.header.symbols}
        assert serial in report_to_text(report_of(engine))


def test_its_runs_raise_index_errors_and_its_streams_run_in_order(serial: str) -> None:
    with (
        smelt.build(picking_network(), serial, tune="none") as engine,
        smelt.Stream(serial) as stream,
        engine.create_context() as context,
    ):
        picking = Picking(engine)
        bindings, result = picking.bindings(picking.good)
        context.enqueue(1, bindings, stream)
        stream.synchronize()
        np.testing.assert_array_equal(result, picking.right)
        with pytest.raises(IndexRangeError):
            context.run(picking.bad)
        picking.check_run(context)


def test_without_its_row_the_device_is_unknown(
    serial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serial.engine"
    with smelt.build(smelt.network_from_onnx(inception_model()), serial, tune="none") as engine:
        engine.save(path)
    monkeypatch.delitem(DEVICE_KINDS, serial)
    with pytest.raises(UnsupportedError, match="'serial' does not exist"):
        smelt.Stream(serial)
    with pytest.raises(EngineMismatchError, match="for the device 'serial'"):
        smelt.load(path)
