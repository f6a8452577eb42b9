"""``smelt dla``: inspect and run NVDLA loadables on a simulated device, here or on a server."""

from __future__ import annotations

import contextlib
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._console import print_json, print_report, print_table, say, show
from smelt.cli._dla_trace import trace
from smelt.cli._file_arguments import FileCommand, InputFile, OutputFile, check_writable
from smelt.cli._option_types import configuration_option
from smelt.cli._options import Count, flag_option, json_option
from smelt.errors import ModelFormatError, SmeltError, remove_controls
from smelt.types import Limit, counted, read_array, read_file

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from numpy.typing import NDArray

    from smelt.nvdla.loadable import Loadable
    from smelt.nvdla.port import DeviceHardware, Driver
    from smelt.nvdla.runtime import NvDlaTensor, Runtime
    from smelt.types import ArrayHeader

_MAX_VALUES: Final = 4096
"""Largest number of an output's values in the report."""
_EXACT = flag_option(
    "--exact-fp16", help="Add fp16 products in the hardware's order, bit-exact but slow."
)


@click.group(short_help="Inspect and run NVDLA loadables, or serve a simulated device.")
def dla() -> None:
    r"""Inspect and run NVDLA loadables on a bit-exact model of the hardware.

    \b
    Examples:
      smelt dla inspect network.nvdla
      smelt dla run network.nvdla --configuration nv_small --input image.npy
      smelt dla serve /tmp/dla.sock --configuration nv_full
    """


dla.add_command(trace)


@dla.command(short_help="Show tasks, operations, dependencies, memory and tensors.")
@click.argument("path", metavar="FILE", type=InputFile())
@flag_option("--dot", help="Write the dependency graph in Graphviz format.")
@json_option()
def inspect(*, path: str, dot: bool, as_json: bool) -> None:
    r"""Show what the loadable FILE does; no hardware that can run it is needed.

    \b
    Examples:
      smelt dla inspect network.nvdla
      smelt dla inspect network.nvdla --json | python -m json.tool
      smelt dla inspect network.nvdla --dot | dot -Tsvg > network.svg
    """
    from smelt.nvdla.loadable import format_dot, format_text, interpret, to_plain

    view = interpret(_read_loadable(path))
    if as_json:
        print_json(to_plain(view))
    else:
        click.echo(remove_controls(format_dot(view) if dot else format_text(view)))


def _read_loadable(path: str) -> Loadable:
    """Read a loadable. Errors name the file."""
    from smelt.nvdla.loadable import Loadable

    try:
        return Loadable.from_bytes(read_file(path, Limit.MAX_LOADABLE_BYTES))
    except ModelFormatError as error:
        raise ModelFormatError(f"{path} is not a valid loadable: {error}") from error


@dla.command(cls=FileCommand, short_help="Run a loadable once.")
@click.argument("path", metavar="FILE", type=InputFile())
@click.option(
    "--input",
    "input_files",
    multiple=True,
    type=InputFile(),
    help="Next input: .npy (CxHxW), .dimg, or raw memory; repeatable.  [default: zeros]",
)
@click.option(
    "--output",
    "output_files",
    multiple=True,
    type=OutputFile(),
    help="File for the next output: .npy, .dimg, or raw memory; repeatable.",
)
@configuration_option(help="The hardware configuration.  [default: nv_full, or that of the server]")
@_EXACT
@click.option(
    "--socket", metavar="PATH", help="Run on the `smelt dla serve` server at this socket."
)
@click.option("--instance", default=0, help="Index of the server's device.")
@click.option(
    "--record-trace",
    type=OutputFile(numbered_suffix=".dat"),
    help="Record the register accesses as a trace (.cfg or .txn), with data files beside it.",
)
@json_option()
def run(
    *,
    path: str,
    input_files: tuple[str, ...],
    output_files: tuple[str, ...],
    configuration: str | None,
    exact_fp16: bool,
    socket: str | None,
    instance: int,
    record_trace: str | None,
    as_json: bool,
) -> None:
    r"""Run the loadable FILE once and show its outputs.

    \b
    Examples:
      smelt dla run network.nvdla --input image.npy --output answer.npy
      smelt dla run network.nvdla --configuration nv_small --output answer.dimg
      smelt dla run network.nvdla --socket /tmp/dla.sock --json
      smelt dla run network.nvdla --record-trace network.cfg
    """
    from smelt.nvdla import create_runtime
    from smelt.nvdla.port import LocalPort, MachineDriver, SocketPort, TracedDriver

    _check_options(socket, instance, record_trace, exact_fp16=exact_fp16)
    driver: MachineDriver | None = None
    loadable = _read_loadable(path)
    if socket:
        port: LocalPort | SocketPort = SocketPort(socket)
    else:
        make = MachineDriver if record_trace is None else TracedDriver
        driver = make(configuration or "nv_full", exact_fp16=exact_fp16)
        port = LocalPort(driver)
    with port, create_runtime(port, max_devices=instance + 1 if socket else 1) as runtime:
        runtime.load(loadable, instance)
        hardware = _checked_hardware(port.hardware, configuration, socket)
        results = _run_once(runtime, input_files, output_files, hardware.atom_bytes)
    cycles = driver.machines[0].total_cycles if driver is not None else None
    if record_trace is not None and isinstance(driver, TracedDriver):
        driver.write_trace(record_trace)
    report = {
        "loadable": path,
        "configuration": hardware.configuration,
        "estimated_cycles": cycles,
        **results,
    }
    print_report(report, _show, as_json=as_json)


def _check_options(
    socket: str | None, instance: int, record_trace: str | None, *, exact_fp16: bool
) -> None:
    """Check the options that depend on where the device is.

    Raises:
        click.UsageError: the options contradict each other.
    """
    if record_trace is not None and (socket or instance):
        raise click.UsageError(
            "--record-trace works only without --socket and --instance: it records device 0 of "
            "this process"
        )
    if exact_fp16 and socket:
        raise click.UsageError("with --socket, give --exact-fp16 to `smelt dla serve`")


@dla.command(short_help="Serve simulated devices to other processes.")
@click.argument("socket", metavar="SOCKET")
@configuration_option(
    default="nv_full",
    help="The hardware: nv_full, nv_large, nv_small, nv_small_256, …",
)
@_EXACT
@click.option("--devices", "num_devices", default=1, type=Count(1, 64), help="Number of devices.")
def serve(*, socket: str, configuration: str, exact_fp16: bool, num_devices: int) -> None:
    r"""Serve simulated devices at the Unix socket SOCKET, until interrupted.

    The kernel-mode driver and the hardware model run in this process, the user-mode driver runs in
    the clients. Only this user may connect.

    \b
    Examples:
      smelt dla serve /tmp/dla.sock
      smelt dla serve /tmp/dla.sock --configuration nv_small --devices 2
    """
    from smelt.nvdla.port import MachineDriver, PortServer

    check_writable(Path(socket))
    driver: Driver = MachineDriver(configuration, num_devices, exact_fp16=exact_fp16)
    with _ended_by_sigterm(), PortServer(socket, driver) as server:
        devices = counted(num_devices, f"{configuration} device")
        say(f"serving {devices} at {socket}; stop with Ctrl-C")
        server.serve_forever()


@contextlib.contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Turn SIGTERM into SystemExit within the block, so that open resources are closed."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checked_hardware(
    reported: DeviceHardware | None, configuration: str | None, socket: str | None
) -> DeviceHardware:
    """Return the device's hardware, checked against --configuration.

    Args:
        reported: hardware that the device reports; None if it does not.
        configuration: value of --configuration, if given.
        socket: socket of the server, if any.

    Raises:
        SmeltError: the hardware is unknown, or is not that of --configuration.
    """
    from smelt.nvdla.hardware import find_configuration
    from smelt.nvdla.port import DeviceHardware

    if reported is None:
        if configuration is None:
            raise SmeltError(
                f"the server at {socket} does not report its hardware configuration; give "
                "--configuration"
            )
        known = find_configuration(configuration)
        return DeviceHardware(known.name, known.atom_bytes)
    if configuration not in (None, reported.configuration):
        raise SmeltError(
            f"--configuration is {configuration}, but the server at {socket} has "
            f"{reported.configuration}: omit --configuration, or start the server with "
            f"--configuration {configuration}"
        )
    return reported


def _run_once(
    runtime: Runtime, input_files: tuple[str, ...], output_files: tuple[str, ...], atom_bytes: int
) -> dict[str, Any]:
    """Bind memory to all tensors, run once, write the output files, and describe the outputs."""
    num_inputs, num_outputs = runtime.get_num_input_tensors(), runtime.get_num_output_tensors()
    for files, count, kind in (
        (input_files, num_inputs, "input"),
        (output_files, num_outputs, "output"),
    ):
        if len(files) > count:
            raise SmeltError(
                f"--{kind} is given {counted(len(files), 'time')}; the network has "
                f"{counted(count, kind)}"
            )
    for number in range(num_inputs):
        tensor = runtime.get_input_tensor_desc(number)
        pinned = runtime.allocate_system_memory(tensor.buffer_size)
        runtime.bind_input_tensor(number, pinned.mem_handle)
        if number < len(input_files):
            _read_input(Path(input_files[number]), tensor, pinned.data, atom_bytes)
    bound: list[tuple[NvDlaTensor, NDArray[Any]]] = []
    for number in range(num_outputs):
        tensor = runtime.get_output_tensor_desc(number)
        pinned = runtime.allocate_system_memory(tensor.buffer_size)
        runtime.bind_output_tensor(number, pinned.mem_handle)
        bound.append((tensor, pinned.data))
    start = time.perf_counter()
    runtime.submit()
    milliseconds = (time.perf_counter() - start) * 1e3
    for file, (tensor, data) in zip(output_files, bound, strict=False):
        _write_output(Path(file), tensor, data, atom_bytes)
    return {
        "milliseconds": milliseconds,
        "zero_inputs": num_inputs - len(input_files),
        "outputs": [_describe(tensor, data, atom_bytes) for tensor, data in bound],
    }


def _read_input(path: Path, tensor: NvDlaTensor, memory: NDArray[Any], atom_bytes: int) -> None:
    """Write a .npy, .dimg or raw file to the memory of an input."""
    import numpy as np

    from smelt.nvdla.runtime import DlaImage, write_tensor

    if path.suffix == ".npy":
        array = read_array(path, partial(_check_array, path, tensor))
        if array.ndim == 4 and array.shape[0] == 1:
            array = array[0]
        write_tensor(tensor, array, memory, atom_bytes=atom_bytes)
        return
    data = read_file(path, Limit.MAX_ARRAYS_BYTES)
    if path.suffix == ".dimg":
        DlaImage.from_bytes(data).write_to(memory)
        return
    if len(data) != memory.nbytes:
        raise SmeltError(
            f"{path} has {len(data)} bytes; input {tensor.name!r} takes {memory.nbytes}"
        )
    memory[:] = np.frombuffer(data, np.uint8)


def _check_array(path: Path, tensor: NvDlaTensor, header: ArrayHeader) -> None:
    expected = (tensor.dims.c, tensor.dims.h, tensor.dims.w)
    if header.shape not in (expected, (1, *expected)):
        raise SmeltError(
            f"{path} has shape {header.shape}; input {tensor.name!r} takes {expected} (CxHxW)"
        )


def _write_output(path: Path, tensor: NvDlaTensor, memory: NDArray[Any], atom_bytes: int) -> None:
    """Write an output to a .npy, .dimg or raw file."""
    import io

    import numpy as np

    from smelt.engine import write_atomically
    from smelt.nvdla.runtime import array_from_tensor, image_from_tensor

    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, array_from_tensor(tensor, memory, atom_bytes=atom_bytes))
        data = buffer.getvalue()
    elif path.suffix == ".dimg":
        data = image_from_tensor(tensor, memory).to_bytes()
    else:
        data = memory.tobytes()
    write_atomically(path, iter([data]))


def _describe(tensor: NvDlaTensor, memory: NDArray[Any], atom_bytes: int) -> dict[str, Any]:
    """Return an output as JSON values, with the MD5 of its .dimg image."""
    import hashlib

    from smelt.nvdla.runtime import array_from_tensor, image_from_tensor

    array = array_from_tensor(tensor, memory, atom_bytes=atom_bytes)
    image = image_from_tensor(tensor, memory).to_bytes()
    values = array.reshape(-1)
    return {
        "name": tensor.name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "md5": hashlib.md5(image, usedforsecurity=False).hexdigest(),
        "values": values[:_MAX_VALUES].tolist(),
        "largest_index": int(values.argmax()) if values.size else None,
    }


def _show(report: Mapping[str, Any]) -> None:
    """Print the result of a run as text."""
    if report["zero_inputs"]:
        count = report["zero_inputs"]
        verb = "is" if count == 1 else "are"
        say(f"{counted(count, 'input')} without a file {verb} all zeros; give files with --input")
    cycles = report["estimated_cycles"]
    estimate = f" (estimate for the hardware: {cycles:,} cycles)" if cycles is not None else ""
    show(f"{report['milliseconds']:.1f} ms{estimate}")
    rows = [
        (
            output["name"],
            "x".join(map(str, output["shape"])),
            output["dtype"],
            ", ".join(f"{value:g}" for value in output["values"][:10])
            + (", …" if len(output["values"]) > 10 else ""),
            output["largest_index"],
        )
        for output in report["outputs"]
    ]
    print_table(rows, ("output", "shape", "dtype", "values", "largest at"))
