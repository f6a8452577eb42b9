"""The user-mode driver `IRuntime`: loads networks onto devices, binds memory and runs networks.

Source: "NVDLA runtime environment", `IRuntime`; nvdla/sw, IRuntime.h and Runtime.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.loadable import DataType, Loadable
from smelt.nvdla.port import LocalPort, MachineDriver, NvDlaHeap, PinnedMemory
from smelt.nvdla.runtime._network import LoadedNetwork
from smelt.nvdla.runtime._tensor import NvDlaTensor
from smelt.types import Closeable, counted, override, require_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.port import NvDlaTask, Port
    from smelt.nvdla.runtime._network import LoadedMemory

_bad_parameter: Final = NvError.BAD_PARAMETER.error
"""Return the failure of an invalid argument."""


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """An open device of a session, with the operations that the runtime needs."""

    port: Port
    session_handle: int
    device_handle: int

    def allocate(self, size: int, heap: NvDlaHeap) -> PinnedMemory:
        """Allocate zeroed memory of ``size`` bytes."""
        return self.port.alloc_mem(self.session_handle, self.device_handle, size, heap)

    def free(self, pinned: PinnedMemory) -> None:
        """Free memory."""
        self.port.free_mem(self.session_handle, self.device_handle, *pinned, pinned.data.nbytes)

    def submit(self, task: NvDlaTask) -> None:
        """Run a task; return when the task has ended."""
        self.port.submit(self.session_handle, self.device_handle, [task])


class Runtime(Closeable):
    """`IRuntime`, with every documented function by its name in snake_case.

    A function that fails raises `NvdlaError`, whose ``status`` is the documented code. Each device
    instance holds one network at a time; functions without ``instance`` use the instance of the
    last `load`.

    Threads may submit, bind and unload at once: a call waits for the end of another thread's
    submission of the network. A signal handler that interrupts one gets BUSY instead.
    """

    def __init__(self, port: Port, max_devices: int = 1) -> None:
        """Start a session of a port; `close` ends it.

        Args:
            port: The portability layer through which the devices are reached.
            max_devices: Maximum number of instances that the hardware configuration may have.
        """
        self._port: Final = port
        self._max_devices: Final = require_int(
            max_devices, "the maximum number of devices", _bad_parameter
        )
        self._session: Final = port.initialize()
        self._devices: Final[dict[int, OpenDevice]] = {}
        self._networks: Final[dict[int, LoadedNetwork]] = {}
        self._system_memory: Final[dict[int, tuple[int, PinnedMemory]]] = {}
        self._instance = 0
        self._has_emulator = True

    # ---- devices

    def get_max_devices(self) -> int:
        """Return the number of devices that the hardware configuration supports."""
        return self._max_devices

    def get_num_devices(self) -> int:
        """Return the number of devices that can be opened."""
        count = 0
        for instance in range(self._max_devices):
            try:
                self._open(instance)
            except NvdlaError:
                continue
            count += 1
        return count

    def _target(self, instance: int | None) -> int:
        """Return the device instance that an argument selects; raises BAD_PARAMETER."""
        if instance is None:
            return self._instance
        return max(require_int(instance, "the device instance", _bad_parameter), 0)

    def _open(self, instance: int) -> OpenDevice:
        if instance not in self._devices:
            handle = self._port.open(self._session, instance)
            self._devices[instance] = OpenDevice(self._port, self._session, handle)
        return self._devices[instance]

    # ---- networks

    def load(self, buf: Buffer | Loadable, instance: int = -1) -> None:
        """Load a network onto a device; a network that is loaded there is unloaded first.

        Args:
            buf: The loadable, or its bytes.
            instance: The device instance; a negative number selects instance 0.

        Raises:
            NvdlaError: BAD_PARAMETER if the device does not exist, or the loadable is malformed,
                has no submission, task or memory, or has bind ids with gaps; INVALID_STATE if a
                blob is missing or does not fit; NOT_SUPPORTED if the loadable's version is not
                supported; INSUFFICIENT_MEMORY.
        """
        loadable = buf if isinstance(buf, Loadable) else _read(buf)
        target = self._target(instance)
        count = self.get_num_devices()
        if target >= count:
            raise _bad_parameter(
                f"device instance {target} does not exist: the port has "
                f"{counted(count, 'device')}, numbered from 0"
            )
        device = self._open(target)
        if target in self._networks:
            self.unload(target)
        self._networks[target] = LoadedNetwork(loadable, device)
        self._instance = target

    def unload(self, instance: int | None = None) -> None:
        """Unload a network and free its memory; memory that the application allocated stays.

        Raises:
            NvdlaError: INVALID_STATE if no network is loaded on the device instance.
        """
        target = self._target(instance)
        network = self._network(target)
        network.release()
        if self._networks.get(target) is network:  # another thread may have unloaded it meanwhile
            self._networks.pop(target, None)

    def _network(self, instance: int | None) -> LoadedNetwork:
        target = self._target(instance)
        network = self._networks.get(target)
        if network is None:
            raise NvError.INVALID_STATE.error(
                f"no network is loaded on device {target}; call load first"
            )
        return network

    # ---- tensors

    def get_num_input_tensors(self, *, instance: int | None = None) -> int:
        """Return the number of inputs of the network on a device instance.

        Raises:
            NvdlaError: INVALID_STATE if no network is loaded.
        """
        return len(self._network(instance).inputs)

    def get_num_output_tensors(self, *, instance: int | None = None) -> int:
        """Return the number of outputs of the network on a device instance.

        Raises:
            NvdlaError: INVALID_STATE if no network is loaded.
        """
        return len(self._network(instance).outputs)

    def get_input_tensor_desc(self, id: int, *, instance: int | None = None) -> NvDlaTensor:  # noqa: A002  (the documented name)
        """Return the description of an input of the network on a device instance.

        Raises:
            NvdlaError: BAD_PARAMETER if the input does not exist; INVALID_STATE if no network is
                loaded.
        """
        network = self._network(instance)
        return network.tensors[network.tensor_id(_pick("input", network.inputs, id))]

    def get_output_tensor_desc(self, id: int, *, instance: int | None = None) -> NvDlaTensor:  # noqa: A002  (the documented name)
        """Return the description of an output of the network on a device instance.

        Raises:
            NvdlaError: BAD_PARAMETER if the output does not exist; INVALID_STATE if no network is
                loaded.
        """
        network = self._network(instance)
        return network.tensors[network.tensor_id(_pick("output", network.outputs, id))]

    def set_input_tensor_desc(
        self,
        id: int,  # noqa: A002  (the documented name)
        tensor: NvDlaTensor,
        *,
        instance: int | None = None,
    ) -> None:
        """Change an input's strides; they apply until they are changed again.

        Raises:
            NvdlaError: BAD_PARAMETER if the input does not exist, ``tensor`` is not a description
                or a stride is invalid; NOT_SUPPORTED if the name, pixel format, pixel mapping or
                extents differ; NOT_IMPLEMENTED if the format, type or category differs.
        """
        network = self._network(instance)
        network.set_tensor(_pick("input", network.inputs, id), _require_tensor(tensor))

    def set_output_tensor_desc(
        self,
        id: int,  # noqa: A002  (the documented name)
        tensor: NvDlaTensor,
        *,
        instance: int | None = None,
    ) -> None:
        """Change an output's strides; raises the errors of `set_input_tensor_desc`."""
        network = self._network(instance)
        network.set_tensor(_pick("output", network.outputs, id), _require_tensor(tensor))

    def get_network_data_type(self, *, instance: int | None = None) -> DataType:
        """Return the type of the network's first input, or of its first output without inputs."""
        network = self._network(instance)
        for memory in (*network.inputs, *network.outputs):
            number = network.tensors[network.tensor_id(memory)].data_type
            return DataType(number) if number in tuple(DataType) else DataType.UNKNOWN
        return DataType.UNKNOWN

    # ---- memory

    def allocate_system_memory(self, size: int, *, instance: int | None = None) -> PinnedMemory:
        """Allocate zeroed memory that the device can access; return its handle and its bytes.

        Args:
            size: Size in bytes.
            instance: The device instance.

        Raises:
            NvdlaError: INVALID_SIZE if the size is less than 1 byte or does not fit into 32 bits;
                INSUFFICIENT_MEMORY.
        """
        target = self._target(instance)
        pinned = self._open(target).allocate(size, NvDlaHeap.SYSTEM)
        self._system_memory[pinned.mem_handle] = (target, pinned)
        return pinned

    def free_system_memory(self, h_mem: int, size: int | None = None) -> None:
        """Free memory of `allocate_system_memory`; tensors that are bound to it become unbound.

        Raises:
            NvdlaError: BAD_PARAMETER if the handle is not that of such memory, or the size
                differs.
        """
        instance, pinned = self._find_memory(h_mem)
        if size not in (None, pinned.data.nbytes):
            raise _bad_parameter(f"memory {h_mem} has {pinned.data.nbytes} bytes, not {size}")
        if instance in self._networks:
            self._networks[instance].unbind(pinned)
        if self._system_memory.pop(h_mem, None) is None:
            raise _unknown_memory(h_mem)  # another thread has freed it meanwhile
        self._devices[instance].free(pinned)

    def _find_memory(self, h_mem: int) -> tuple[int, PinnedMemory]:
        handle = require_int(h_mem, "the memory handle", _bad_parameter)
        allocation = self._system_memory.get(handle)
        if allocation is None:
            raise _unknown_memory(handle)
        return allocation

    def bind_input_tensor(self, id: int, h_mem: int, *, instance: int | None = None) -> None:  # noqa: A002  (the documented name)
        """Bind an input to memory of `allocate_system_memory`.

        Raises:
            NvdlaError: BAD_PARAMETER if the input or the memory does not exist; INVALID_SIZE if
                the memory is too small; INVALID_STATE if no network is loaded.
        """
        network = self._network(instance)
        self._bind(network, _pick("input", network.inputs, id), h_mem)

    def bind_output_tensor(self, id: int, h_mem: int, *, instance: int | None = None) -> None:  # noqa: A002  (the documented name)
        """Bind an output to memory; raises the errors of `bind_input_tensor`."""
        network = self._network(instance)
        self._bind(network, _pick("output", network.outputs, id), h_mem)

    def _bind(self, network: LoadedNetwork, memory: LoadedMemory, h_mem: int) -> None:
        instance, pinned = self._find_memory(h_mem)
        if self._devices[instance] is not network.device:
            raise _bad_parameter(
                f"memory {h_mem} is on device {instance}, but the network is on another device"
            )
        network.bind(memory, pinned)

    # ---- running

    def submit(self, *, instance: int | None = None) -> None:
        """Run the network once; return when the run has ended.

        Raises:
            NvdlaError: INVALID_STATE if no network is loaded or a tensor is not bound;
                BAD_PARAMETER if a task does not exist or its interface is unknown; otherwise the
                code that the device reports.
        """
        self._network(instance).submit(is_emulator_running=self._has_emulator)

    def init_emu(self) -> None:
        """Start the emulator of the layers that the accelerator lacks.

        A new runtime has already started it.
        """
        self._has_emulator = True

    def stop_emu(self) -> None:
        """Stop the emulator: its tasks fail with NOT_INITIALIZED until `init_emu` is called."""
        self._has_emulator = False

    @override
    def close(self) -> None:
        """Unload all networks, free all memory and close all devices.

        It waits for the submissions of other threads that run; those that wait fail.

        Raises:
            NvdlaError: BUSY in a signal handler that interrupts a submission; nothing changes.
        """
        networks = list(self._networks.values())
        for network in networks:  # before any is changed
            network.check_idle()
        for network in networks:
            network.abandon()
        self._networks.clear()
        self._system_memory.clear()
        self._devices.clear()
        self._port.destroy(self._session)


def create_runtime(
    port: Port | None = None,
    *,
    configuration: Configuration | str = "nv_full",
    num_devices: int = 1,
    max_devices: int | None = None,
    exact_fp16: bool = False,
) -> Runtime:
    """Create a runtime.

    Args:
        port: The portability layer through which the devices are reached. None creates machine
            models in this process; the other arguments then describe them.
        configuration: Hardware configuration of the machines, or its name.
        num_devices: Number of machines.
        max_devices: Maximum number of instances of the hardware; ``num_devices`` by default.
        exact_fp16: Whether the machines compute fp16 convolutions bit for bit as the hardware.
    """
    if port is None:
        port = LocalPort(MachineDriver(configuration, num_devices, exact_fp16=exact_fp16))
    return Runtime(port, num_devices if max_devices is None else max_devices)


def destroy_runtime(runtime: Runtime) -> None:
    """Close a runtime."""
    runtime.close()


def _read(data: Buffer) -> Loadable:
    """Read a loadable; raise NvdlaError with the documented code if that fails."""
    try:
        data = memoryview(data)
    except TypeError as error:
        raise _bad_parameter(
            f"expected a loadable or its bytes, not {type(data).__name__}"
        ) from error
    try:
        return Loadable.from_bytes(data)
    except ModelFormatError as error:
        raise _bad_parameter(f"the loadable cannot be read: {error}") from error
    except UnsupportedError as error:
        raise NvError.NOT_SUPPORTED.error(str(error)) from error


def _unknown_memory(handle: int) -> NvdlaError:
    return _bad_parameter(
        f"memory {handle} was not returned by allocate_system_memory, or was freed"
    )


def _pick(what: str, memories: Sequence[LoadedMemory], number: int) -> LoadedMemory:
    number = require_int(number, f"the number of the {what}", _bad_parameter)
    if not 0 <= number < len(memories):
        raise _bad_parameter(
            f"{what} {number} does not exist: the network has {counted(len(memories), what)}, "
            "numbered from 0"
        )
    return memories[number]


def _require_tensor(tensor: object) -> NvDlaTensor:
    if not isinstance(tensor, NvDlaTensor):
        raise _bad_parameter(f"expected a tensor description, not {type(tensor).__name__}")
    return tensor
