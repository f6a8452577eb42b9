"""CaffeParser of GIE: reads a prototxt and a caffemodel into a network."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ContextError, ModelFormatError
from smelt.gie._destroyable import Destroyable
from smelt.gie._enums import DataType
from smelt.gie._network import check_network
from smelt.importers import network_from_caffe
from smelt.signal_errors import path_mode
from smelt.types import override, require_int, require_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from smelt.gie._network import InferNetwork
    from smelt.ir import Array
    from smelt.network import Tensor


class BlobNameToTensor:
    """Tensors by the names of Caffe's blobs; of a blob written in place, the last tensor."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def find(self, name: str) -> Tensor | None:
        """Return the tensor of a blob, or None if there is no such blob."""
        return self._tensors.get(name)


class BinaryProtoBlob(Destroyable):
    """A blob from a file of its own, such as a mean image."""

    def __init__(self, array: Array) -> None:
        self._array = np.asarray(array, np.float32)

    def get_data(self) -> Array:
        """Return the elements as a float32 array of shape (N, C, H, W)."""
        return self._array

    def get_dimensions(self) -> tuple[int, ...]:
        """Return the extents (N, C, H, W)."""
        return self._array.shape

    @override
    def destroy(self) -> None:
        """Release the elements."""
        self._array = np.zeros((0, 0, 0, 0), np.float32)


class CaffeParser(Destroyable):
    """Parser that reads a deploy prototxt and its weights into a network.

    The network holds references to the weights, so the parser may be destroyed before the build.
    """

    def __init__(self) -> None:
        self._buffer_bytes: int | None = None
        self._is_open = True

    def parse(
        self,
        deploy: str | os.PathLike[str],
        model: str | os.PathLike[str],
        network: InferNetwork,
        dtype: DataType = DataType.FLOAT,
    ) -> BlobNameToTensor:
        """Read a model into an empty network, without marking any output.

        Args:
            deploy: path of the prototxt.
            model: path of the caffemodel.
            network: an empty network.
            dtype: element type of the weights.

        Returns:
            The network's tensors by the names of Caffe's blobs.

        Raises:
            ModelFormatError: a file cannot be read, or is larger than the protobuf buffer.
            UnsupportedError: layers cannot be imported; every one is listed with its reason.
        """
        self._check_open()
        check_network(network)
        caffemodel = require_path(model, "a caffemodel", ModelFormatError)
        self._check_size(caffemodel)
        kind = DataType.of(dtype).dtype.value
        prototxt = require_path(deploy, "a prototxt", ModelFormatError)
        definition, blobs = network_from_caffe(prototxt, caffemodel, dtype=kind, outputs=[])
        network.fill(definition)
        return BlobNameToTensor(blobs)

    def set_protobuf_buffer_size(self, size_bytes: int) -> None:
        """Set the largest size of a model file in bytes; without it, files of any size are read."""
        self._buffer_bytes = require_int(size_bytes, "the buffer's size", ContextError, minimum=0)

    def parse_binary_proto(self, path: str | os.PathLike[str]) -> BinaryProtoBlob:
        """Read a blob from a file of its own, such as a mean image.

        Raises:
            ModelFormatError: the file cannot be read.
        """
        from smelt.importers.caffe import read_mean

        self._check_open()
        return BinaryProtoBlob(read_mean(require_path(path, "a blob", ModelFormatError)))

    @override
    def destroy(self) -> None:
        """Destroy the parser; a second call does nothing."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise ContextError("this parser was destroyed; create another")

    def _check_size(self, path: Path) -> None:
        if self._buffer_bytes is None or not stat.S_ISREG(path_mode(path)):
            return
        if (size := os.path.getsize(path)) > self._buffer_bytes:
            raise ModelFormatError(
                f"{path} has {size} bytes, more than the protobuf buffer of {self._buffer_bytes} "
                "bytes; enlarge the buffer with set_protobuf_buffer_size"
            )


def create_caffe_parser() -> CaffeParser:
    """Return a new parser."""
    return CaffeParser()


def shutdown_protobuf_library() -> None:
    """Do nothing. Ported programs call this function, but smelt has no global protobuf state."""
