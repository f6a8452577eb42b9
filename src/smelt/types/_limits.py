"""Table of all limits on files, clients and graphs.

The error that refuses an input names the limit, and `docs/limits.md` lists all limits. Each limit
is far above the needs of real inputs and far below the capacity of a machine.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from smelt.types._text_formatting import format_integer

if TYPE_CHECKING:
    from collections.abc import Callable


class Limit(Enum):
    """Limit on the size of an input: its maximum, its unit and what it applies to."""

    MAX_MODEL_BYTES = ((1 << 31) - 1, "bytes", "an ONNX model or caffemodel, without external data")
    MAX_PROTOTXT_BYTES = (2 << 20, "bytes", "a prototxt")
    MAX_WEIGHT_FIELDS = (1_000_000, "fields", "a caffemodel or binaryproto")
    MAX_MODEL_MESSAGES = (
        1 << 20,
        "messages",
        "nodes, attributes, tensors and other messages of an ONNX model",
    )
    MAX_MODEL_FIELDS = (1 << 24, "fields", "all messages of a large ONNX model together")
    MAX_ENGINE_BYTES = (1 << 38, "bytes", "an engine")
    MAX_HEADER_BYTES = (1 << 26, "bytes", "the header of an engine")
    MAX_JSON_PARTS = (
        1 << 22,
        "parts",
        "lists, objects, commas and colons of a JSON text, or of all partitions' headers together",
    )
    MAX_PLANS = (1 << 10, "plans", "an engine")
    MAX_PARTITIONS = (1 << 10, "partitions", "an engine")
    MAX_BINDINGS = (
        1 << 12,
        "inputs or outputs",
        "inputs or outputs of a network; inputs and outputs of an engine together",
    )
    MAX_HEADER_ROWS = (1 << 18, "rows", "each of the other lists in the header of an engine")
    MAX_KEY_BYTES = (1 << 16, "bytes", "a file of keys")
    MAX_CODE_BYTES = (1 << 26, "bytes", "a kernel in the code cache")
    MAX_TIMINGS_BYTES = (1 << 26, "bytes", "a timing cache")
    MAX_ARRAYS_BYTES = (1 << 33, "bytes", "a .npy file, and the unpacked size of an .npz archive")
    MAX_DIRECTORY_BYTES = (1 << 23, "bytes", "the directory of an .npz archive")
    MAX_IMAGE_BYTES = (1 << 26, "bytes", "an image file")
    # Decoding takes 16 bytes for each pixel of a WebP image, and less for other formats.
    MAX_IMAGE_PIXELS = (100 << 20, "pixels", "an image")
    MAX_IMAGE_EXTENT = (1 << 16, "pixels", "the width or the height of an image")
    MAX_LABELS_BYTES = (1 << 24, "bytes", "a file of labels")
    MAX_PROFILE_BYTES = (1 << 26, "bytes", "a profile of layer times that `smelt bench` writes")
    MAX_LOADABLE_BYTES = ((1 << 31) - 1, "bytes", "an NVDLA loadable")
    MAX_DESCRIPTOR_BYTES = (
        1 << 24,
        "bytes",
        "the descriptors of all tasks of an NVDLA loadable, and the blobs that set them",
    )
    MAX_TRACE_BYTES = (
        1 << 28,
        "bytes",
        "a file of an NVDLA trace, and the unpacked size of an archive",
    )
    MAX_TRACE_MEMBERS = (1 << 16, "members", "an archive of NVDLA traces")
    # tarfile takes time with the square of the size of a header, and of the digits in a row.
    MAX_TRACE_HEADER_BYTES = (
        (1 << 12) + 3 * 512,  # a path of 4 KiB and the blocks around it
        "bytes",
        "the header of a member of an archive of NVDLA traces, with its extensions",
    )
    MAX_TRACE_HEADER_DIGITS = (
        64,
        "digits in a row",
        "the header of a member of an archive of NVDLA traces",
    )
    MAX_TRACE_EXTENSION_BYTES = (
        1 << 21,
        "bytes",
        "the extensions of all headers of an archive of NVDLA traces, such as long names",
    )
    MAX_TRACE_LINES = (2_000_000, "lines", "an NVDLA trace")
    MAX_COMMAND_BYTES = (
        1 << 28,
        "bytes",
        "memory that one command of an NVDLA trace fills or compares",
    )
    MAX_MOVED_BYTES = (
        1 << 32,
        "bytes",
        "memory that all commands of an NVDLA trace fill and compare",
    )
    MAX_SPAN_BYTES = (1 << 30, "bytes", "memory from an NVDLA trace's first byte to its last")
    MAX_MACS = (1 << 40, "multiplications", "a convolution of the modelled NVDLA")
    MAX_CUBE_BYTES = (1 << 27, "bytes", "a cube that an engine of the modelled NVDLA computes on")
    MAX_KERNEL_BYTES = (1 << 28, "bytes", "the kernels of a convolution of the modelled NVDLA")

    MAX_RANK = (32, "axes", "a tensor")
    MAX_VIEW_AXES = (64, "axes", "a view of a launch of an engine")
    MAX_TENSOR_BYTES = (1 << 40, "bytes", "a tensor of a network; its extents have the same limit")
    MAX_EXTENT = (1 << 40, "elements", "an extent of an engine's tensor")
    MAX_PLAN_BYTES = (1 << 48, "bytes", "a buffer, the arena or the scratch memory of a plan")
    MAX_CHUNKS = ((1 << 31) - 1, "chunks", "a launch of an engine")
    MAX_CONSTANT_BYTES = (1 << 34, "bytes", "a constant of an engine's program")
    MAX_PARAMETER_DEPTH = (256, "levels", "nested parameters of an engine")
    MAX_OPERANDS = (1024, "operands", "a launch of an engine")
    MAX_NAME_CHARACTERS = (8192, "characters", "a name in an ONNX model")
    MAX_DIM_ATOMS = (1024, "symbols and quotients", "the formula of an extent")
    MAX_DIM_CHARACTERS = (1 << 16, "characters", "the formula of an extent")
    MAX_DIM_DEPTH = (90, "nested quotients", "the formula of an extent")
    MAX_FORMULA_CHARACTERS = (1 << 19, "characters", "all different formulas of an engine together")
    MAX_FOLLOWED_ATOMS = (
        1 << 18,
        "symbols and quotients",
        "formulas of tensor elements that shape inference computes while a network is read",
    )
    MAX_RECIPE_PARTS = (1 << 17, "parts", "the recipes of an engine's weights and scales")
    MAX_FOLDED_WORK = (1 << 33, "operations", "computations on constants at build time")
    MAX_TRIAL_BYTES = (1 << 27, "bytes", "the tensors of a node that tuning runs on processors")
    MAX_GPU_TRIAL_BYTES = (1 << 32, "bytes", "the tensors of a node that tuning runs on GPUs")
    MAX_WINDOW = (
        1 << 24,
        "elements",
        "an extent, step or padding of a window, and the whole window",
    )
    MAX_LOOP_TRIPS = (1 << 24, "trips", "a Loop; a Loop with more trips is considered endless")
    MAX_LOOP_BYTES = (1 << 31, "bytes", "the scan outputs of a Loop")
    MAX_REGION_DEPTH = (40, "levels", "nested branches, loop bodies and functions")
    MAX_IMPORTED_WEIGHTS = (1 << 18, "initialisers", "an ONNX network with expanded functions")
    MAX_IMPORTED_NODES = (1 << 17, "nodes", "an ONNX network with expanded functions")
    MAX_EXPANDED_NODES = (1 << 16, "nodes", "the expanded functions of an ONNX model")
    MAX_EXPANDED_BYTES = (
        1 << 30,
        "bytes",
        "nodes that the functions of an ONNX model add, and its sparse tensors in dense form",
    )
    MAX_CLIENTS = (
        32,
        "clients",
        "`smelt dla serve` at once; an idle client is disconnected for a new one",
    )
    MAX_SILENT_SECONDS = (
        10,
        "seconds",
        "time until a new client of `smelt dla serve` sends a request",
    )
    MAX_FRAME_SECONDS = (
        30,
        "seconds",
        "time to send a request to `smelt dla serve` and to receive the answer",
    )
    MAX_IDLE_SECONDS = (
        60,
        "seconds",
        "time between requests to `smelt dla serve` while another client is waiting",
    )
    MAX_SERVED_BYTES = (1 << 32, "bytes", "memory of all clients of `smelt dla serve` together")

    def __init__(self, most: int, unit: str, what: str) -> None:
        self.most = most
        self.unit = unit
        self.what = what
        """Description of what the limit applies to, for the documentation."""

    def check(
        self, found: int, what: str, refuse: Callable[[str], Exception], advice: str = ""
    ) -> None:
        """Raise an error of ``refuse`` if ``found`` exceeds this limit.

        Args:
            found: number that is limited.
            what: start of the message, such as ``the engine has``.
            refuse: makes the error of a message.
            advice: end of the message.
        """
        if found > self.most:
            raise refuse(f"{what} {self.excess(found)}{advice}")

    def excess(self, found: int | str) -> str:
        """Return the part of a message that says that ``found`` exceeds this limit."""
        shown = format_integer(found) if isinstance(found, int) else found
        return f"{shown} {self.unit}; the limit {self.name} is {self.most:,}"
