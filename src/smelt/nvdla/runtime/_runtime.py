"""The user-mode driver: loads networks onto devices, binds memory, and runs them.

Source: seed "NVDLA runtime environment", `IRuntime`; nvdla/sw, IRuntime.h and Runtime.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import DataType, Loadable
from smelt.nvdla.port import LocalPort, MachineDriver, NvDlaHeap, PinnedMemory
from smelt.nvdla.runtime._device import OpenDevice
from smelt.nvdla.runtime._network import LoadedNetwork
from smelt.nvdla.runtime._tensor import NvDlaTensor
from smelt.types import Closeable, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.port import Port
    from smelt.nvdla.runtime._network import LoadedMemory

_DEFAULT_MAX_DEVICES: Final = 1


class Runtime(Closeable):
    """`IRuntime`: every documented call by its name in snake_case.

    What fails raises `NvdlaError`, whose ``status`` is the documented code. One network at a time
    is loaded on each device instance; calls without ``instance`` mean the instance of the last
    `load`.
    """

    def __init__(self, port: Port, max_devices: int = _DEFAULT_MAX_DEVICES) -> None:
        """Start a session of a port; it is ended by `close`.

        Args:
            port: How to reach the devices.
            max_devices: How many instances the hardware configuration may have.
        """
        self._port: Final = port
        self._session: Final = port.initialize()
        self._max_devices: Final = max_devices
        self._devices: Final[dict[int, OpenDevice]] = {}
        self._networks: Final[dict[int, LoadedNetwork]] = {}
        self._system_memory: Final[dict[int, tuple[int, PinnedMemory]]] = {}
        self._instance = 0
        self._has_emulator = True

    # ---- devices

    def get_max_devices(self) -> int:
        """How many devices the hardware configuration supports."""
        return self._max_devices

    def get_num_devices(self) -> int:
        """How many of them are there: those that can be opened."""
        count = 0
        for instance in range(self._max_devices):
            try:
                self._open(instance)
            except NvdlaError:
                continue
            count += 1
        return count

    def _open(self, instance: int) -> OpenDevice:
        if instance not in self._devices:
            handle = self._port.open(self._session, instance)
            self._devices[instance] = OpenDevice(self._port, self._session, handle)
        return self._devices[instance]

    # ---- networks

    def load(self, buf: Buffer | Loadable, instance: int = -1) -> None:
        """Load a network onto a device; one that is loaded there is unloaded first.

        Args:
            buf: The loadable, or its bytes.
            instance: The device; a negative one is the first.

        Raises:
            NvdlaError: BAD_PARAMETER, no such device, or the loadable is malformed, has no task
                or memory, or bind ids with gaps; INVALID_STATE, a blob is missing or does not fit;
                NOT_SUPPORTED, it is of an unknown version; INSUFFICIENT_MEMORY.
        """
        loadable = buf if isinstance(buf, Loadable) else _read(buf)
        target = max(instance, 0)
        count = self.get_num_devices()
        if target >= count:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"device instance {target} does not exist: there are {count}, numbered from 0",
            )
        device = self._open(target)
        if target in self._networks:
            self.unload(target)
        self._networks[target] = LoadedNetwork.load(loadable, device)
        self._instance = target

    def unload(self, instance: int | None = None) -> None:
        """Free what the network on a device uses; memory of the application stays.

        Raises:
            NvdlaError: INVALID_STATE, no network is loaded there.
        """
        target = self._instance if instance is None else max(instance, 0)
        self._network(target).release()
        del self._networks[target]

    def _network(self, instance: int | None) -> LoadedNetwork:
        target = self._instance if instance is None else max(instance, 0)
        network = self._networks.get(target)
        if network is None:
            raise NvdlaError(
                NvError.INVALID_STATE, f"no network is loaded on device {target}; call load first"
            )
        return network

    # ---- tensors

    def get_num_input_tensors(self, *, instance: int | None = None) -> int:
        """How many inputs the network has. Raises NvdlaError(INVALID_STATE): none is loaded."""
        return len(self._network(instance).inputs)

    def get_num_output_tensors(self, *, instance: int | None = None) -> int:
        """How many outputs the network has. Raises NvdlaError(INVALID_STATE): none is loaded."""
        return len(self._network(instance).outputs)

    def get_input_tensor_desc(self, id: int, *, instance: int | None = None) -> NvDlaTensor:  # noqa: A002  (the documented name)
        """Describe an input. Raises NvdlaError(BAD_PARAMETER): there is none with this id."""
        network = self._network(instance)
        return network.tensors[network.tensor_id(_pick("input", network.inputs, id))]

    def get_output_tensor_desc(self, id: int, *, instance: int | None = None) -> NvDlaTensor:  # noqa: A002  (the documented name)
        """Describe an output. Raises NvdlaError(BAD_PARAMETER): there is none with this id."""
        network = self._network(instance)
        return network.tensors[network.tensor_id(_pick("output", network.outputs, id))]

    def set_input_tensor_desc(
        self,
        id: int,  # noqa: A002  (the documented name)
        tensor: NvDlaTensor,
        *,
        instance: int | None = None,
    ) -> None:
        """Change an input's strides; they stay until changed again.

        Raises:
            NvdlaError: BAD_PARAMETER, no such input or not a description; NOT_SUPPORTED, the name,
                pixel format or mapping or the extents differ; NOT_IMPLEMENTED, the format, type or
                category differs.
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
        """Change an output's strides; fails as `set_input_tensor_desc` does."""
        network = self._network(instance)
        network.set_tensor(_pick("output", network.outputs, id), _require_tensor(tensor))

    def get_network_data_type(self, *, instance: int | None = None) -> DataType:
        """The type of the network's first input, or of its first output where it has none."""
        network = self._network(instance)
        for memory in (*network.inputs, *network.outputs):
            number = network.tensors[network.tensor_id(memory)].data_type
            return DataType(number) if number in tuple(DataType) else DataType.UNKNOWN
        return DataType.UNKNOWN

    # ---- memory

    def allocate_system_memory(self, size: int, *, instance: int | None = None) -> PinnedMemory:
        """Allocate memory that the device reaches: its handle, and itself as an array.

        Raises:
            NvdlaError: INVALID_SIZE, less than 1 byte or more than 32 bits can say;
                INSUFFICIENT_MEMORY.
        """
        target = self._instance if instance is None else max(instance, 0)
        pinned = self._open(target).allocate(size, NvDlaHeap.SYSTEM)
        self._system_memory[pinned.mem_handle] = (target, pinned)
        return pinned

    def free_system_memory(self, h_mem: int, size: int | None = None) -> None:
        """Free memory of `allocate_system_memory`; where it was bound, nothing is bound any more.

        Raises:
            NvdlaError: BAD_PARAMETER, it is no such memory, or has another size.
        """
        instance, pinned = self._find_memory(h_mem)
        if size not in (None, pinned.data.nbytes):
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"memory {h_mem} has {pinned.data.nbytes} bytes, not {size}"
            )
        if instance in self._networks:
            self._networks[instance].unbind(pinned)
        self._devices[instance].free(pinned)
        del self._system_memory[h_mem]

    def _find_memory(self, h_mem: int) -> tuple[int, PinnedMemory]:
        found = self._system_memory.get(h_mem)
        if found is None:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"memory {h_mem} was not returned by allocate_system_memory, or was freed",
            )
        return found

    def bind_input_tensor(self, id: int, h_mem: int, *, instance: int | None = None) -> None:  # noqa: A002  (the documented name)
        """Bind an input to memory of `allocate_system_memory`.

        Raises:
            NvdlaError: BAD_PARAMETER, no such input or memory; INVALID_SIZE, it is too small;
                INVALID_STATE, no network is loaded.
        """
        network = self._network(instance)
        self._bind(network, _pick("input", network.inputs, id), h_mem)

    def bind_output_tensor(self, id: int, h_mem: int, *, instance: int | None = None) -> None:  # noqa: A002  (the documented name)
        """Bind an output to memory; fails as `bind_input_tensor` does."""
        network = self._network(instance)
        self._bind(network, _pick("output", network.outputs, id), h_mem)

    def _bind(self, network: LoadedNetwork, memory: LoadedMemory, h_mem: int) -> None:
        instance, pinned = self._find_memory(h_mem)
        if self._devices[instance] is not network.device:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"memory {h_mem} is on device {instance}, and the network is on another",
            )
        network.bind(memory, pinned)

    # ---- running

    def submit(self, *, instance: int | None = None) -> None:
        """Run the network once; return when it has ended.

        Raises:
            NvdlaError: INVALID_STATE, no network is loaded, or a tensor is not bound;
                BAD_PARAMETER, a task does not exist or is of an unknown interface; else what the
                device reports.
        """
        self._network(instance).submit(has_emulator=self._has_emulator)

    def init_emu(self) -> None:
        """Start the emulator of layers that the accelerator lacks; it runs from the beginning."""
        self._has_emulator = True

    def stop_emu(self) -> None:
        """Stop the emulator: tasks for it fail with NOT_INITIALIZED until `init_emu`."""
        self._has_emulator = False

    @override
    def close(self) -> None:
        """Unload every network, free every memory, close every device."""
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
    """Make a runtime.

    Args:
        port: How to reach the devices; None makes machines in this process.
        configuration: What hardware those machines are.
        num_devices: How many of them there are.
        max_devices: How many instances the hardware may have: ``num_devices`` unless given.
        exact_fp16: Whether those machines compute fp16 convolutions as the hardware's adders do.
    """
    if port is None:
        port = LocalPort(MachineDriver(configuration, num_devices, exact_fp16=exact_fp16))
    return Runtime(port, num_devices if max_devices is None else max_devices)


def destroy_runtime(runtime: Runtime) -> None:
    """Close a runtime."""
    runtime.close()


def _read(data: Buffer) -> Loadable:
    try:
        return Loadable.from_bytes(data)
    except ModelFormatError as error:
        raise NvdlaError(NvError.BAD_PARAMETER, f"the loadable cannot be read: {error}") from error
    except UnsupportedError as error:
        raise NvdlaError(NvError.NOT_SUPPORTED, str(error)) from error


def _pick(what: str, memories: Sequence[LoadedMemory], number: int) -> LoadedMemory:
    if not 0 <= number < len(memories):
        raise NvdlaError(
            NvError.BAD_PARAMETER,
            f"{what} {number} does not exist: the network has {len(memories)}, numbered from 0",
        )
    return memories[number]


def _require_tensor(tensor: object) -> NvDlaTensor:
    if not isinstance(tensor, NvDlaTensor):
        raise NvdlaError(
            NvError.BAD_PARAMETER, f"expected a tensor description, not {type(tensor).__name__}"
        )
    return tensor
