"""The Caffe parser in the documented vocabulary."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ContextError, ModelFormatError
from smelt.gie._destroyable import Destroyable
from smelt.gie._enums import DataType
from smelt.gie._network import check_network
from smelt.importers import network_from_caffe
from smelt.types import override, require_int, require_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.gie._network import InferNetwork
    from smelt.ir import Array
    from smelt.network import Tensor


class BlobNameToTensor:
    """Caffe's blobs by name; a blob that is written in place stands for its last write."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def find(self, name: str) -> Tensor | None:
        """Return the tensor of a blob, or None when there is none."""
        return self._tensors.get(name)


class BinaryProtoBlob(Destroyable):
    """A blob of its own, such as a mean image."""

    def __init__(self, array: Array) -> None:
        self._array = np.asarray(array, np.float32)

    def get_data(self) -> Array:
        """Return the elements, (N, C, H, W)."""
        return self._array

    def get_dimensions(self) -> tuple[int, ...]:
        """Return the extents (N, C, H, W)."""
        return self._array.shape

    @override
    def destroy(self) -> None:
        """Let go of the elements."""
        self._array = np.zeros((0, 0, 0, 0), np.float32)


class CaffeParser(Destroyable):
    """Reads a deploy prototxt and its weights into a network.

    The network keeps the weights alive by itself: the parser may be destroyed before the build.
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
        """Fill an empty network; nothing is marked as an output.

        Raises:
            ModelFormatError: a file cannot be read, or is larger than the protobuf buffer.
            UnsupportedError: layers that cannot be imported, every one with its reason.
        """
        self._check_open()
        check_network(network)
        self._check_size(model)
        kind = DataType.of(dtype).dtype.value
        prototxt = require_path(deploy, "a prototxt", ModelFormatError)
        caffemodel = require_path(model, "a caffemodel", ModelFormatError)
        definition, blobs = network_from_caffe(prototxt, caffemodel, dtype=kind, outputs=[])
        network.fill(definition)
        return BlobNameToTensor(blobs)

    def set_protobuf_buffer_size(self, size_bytes: int) -> None:
        """Refuse models of more bytes; by default any size is read."""
        self._buffer_bytes = require_int(size_bytes, "the buffer's size", ContextError, least=0)

    def parse_binary_proto(self, path: str | os.PathLike[str]) -> BinaryProtoBlob:
        """Read a blob in a file of its own, such as a mean image. Raises ModelFormatError."""
        from smelt.importers.caffe import read_mean

        self._check_open()
        return BinaryProtoBlob(read_mean(require_path(path, "a blob", ModelFormatError)))

    @override
    def destroy(self) -> None:
        """End the parser's life; again is harmless."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise ContextError("this parser was destroyed; create another")

    def _check_size(self, model: str | os.PathLike[str]) -> None:
        path = require_path(model, "a caffemodel", ModelFormatError)
        if self._buffer_bytes is None or not os.path.isfile(path):
            return
        if (size := os.path.getsize(path)) > self._buffer_bytes:
            raise ModelFormatError(
                f"{path} has {size} bytes and the protobuf buffer {self._buffer_bytes}; "
                "raise it with set_protobuf_buffer_size"
            )


def create_caffe_parser() -> CaffeParser:
    """Return a new parser."""
    return CaffeParser()


def shutdown_protobuf_library() -> None:
    """Do nothing: there is no global protobuf state to take down. Kept for ported programs."""
