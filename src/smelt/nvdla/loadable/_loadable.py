"""Loadable: the file that a compiler produces for the user-mode driver."""

from __future__ import annotations

import struct
from dataclasses import field
from typing import TYPE_CHECKING, Final

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.nvdla._errors import NvError
from smelt.nvdla.loadable._flatbuffers import TableReader, TableWriter
from smelt.nvdla.loadable._model import (
    LOADABLE_VERSION,
    Address,
    Blob,
    Event,
    Memory,
    Relocation,
    Submit,
    Table,
    Task,
    TensorDescriptor,
    Version,
    slot,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_IDENTIFIER: Final = b"NVDA"


class Loadable(Table):
    """Compiled network in the standard format, version 0.7.0.

    Every list has the order of the file; entries refer to each other by their ``id``.
    """

    version: Version = slot(0, "version", LOADABLE_VERSION)
    tasks: tuple[Task, ...] = slot(1, Task)
    memories: tuple[Memory, ...] = slot(2, Memory)
    addresses: tuple[Address, ...] = slot(3, Address)
    events: tuple[Event, ...] = slot(4, Event)
    blobs: tuple[Blob, ...] = slot(5, Blob)
    tensors: tuple[TensorDescriptor, ...] = slot(6, TensorDescriptor)
    relocations: tuple[Relocation, ...] = slot(7, Relocation)
    submits: tuple[Submit, ...] = slot(8, Submit)
    has_identifier: bool = field(default=True)
    """Whether the file has the identifier ``NVDA`` after its first word; files of 2018 lack it."""

    @classmethod
    def from_bytes(cls, data: Buffer) -> Loadable:
        """Read a loadable.

        Raises:
            ModelFormatError: If the file is malformed; the message names the invalid part.
            UnsupportedError: If the major version is not 0.
            MissingExtraError: If the flatbuffers package is not installed.
        """
        content = bytes(data)
        values = TableReader(content).read_root(cls)
        if "version" not in values:
            raise ModelFormatError("the loadable has no version; loadable.version is missing")
        if values["version"].major != LOADABLE_VERSION.major:
            raise UnsupportedError(
                f"the loadable has version {values['version']}; only versions "
                f"{LOADABLE_VERSION.major}.x.x are supported"
            )
        loadable = cls(**values, has_identifier=content[4:8] == _IDENTIFIER)
        for blob in loadable.blobs:
            if blob.size not in (0, len(blob.data)):
                raise ModelFormatError(
                    f"blob {blob.name!r} declares {blob.size} bytes but has {len(blob.data)}"
                )
        return loadable

    def to_bytes(self) -> bytes:
        """Return the bytes of the file; reading them gives an equal loadable.

        Raises:
            NvdlaError: BAD_VALUE if a value does not fit its field.
        """
        identifier = _IDENTIFIER if self.has_identifier else None
        writer = TableWriter()
        try:
            return writer.write_root(Loadable, self, identifier)
        except (TypeError, OverflowError, struct.error) as error:
            raise NvError.BAD_VALUE.error(
                f"{writer.where} has a value that its field cannot hold: {error}"
            ) from error
