"""Plans run on another architecture: a whole process image for an emulator of user programs.

The image holds code, run list, memories and inputs at addresses that are fixed when it is made, so
that nothing is loaded or relocated; its program runs the list, writes the outputs and ends.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends.cpu import compile_ir, compile_runtime, link, target_named
from smelt.devices.cpu import abi
from smelt.engine import Launch, Space
from smelt.types import evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from smelt.backends import CodeImage
    from smelt.engine import Plan, Step

Array = np.ndarray[Any, Any]

EMULATOR: Final = shutil.which("qemu-aarch64")
TARGET: Final = target_named("aarch64")
_BASE: Final = 0x10000000
_HEADERS: Final = 128
_PAGE: Final = 4096
"""Code reaches its constants by page and place in the page."""
_LIMIT_S: Final = 120
_SYSTEM_CALL: Final = "E80300AA E00301AA E10302AA E20303AA E30304AA 010000D4 C0035FD6"
"""``i64 (i64 number, i64, i64, i64, i64)``: moves to x8 and x0 to x3, svc #0, ret."""
_WRITE, _EXIT = 64, 93


def _record(size_bytes: int, fields: Mapping[int, int]) -> bytes:
    """A struct of 64-bit fields at offsets."""
    record = bytearray(size_bytes)
    for offset, value in fields.items():
        struct.pack_into("<q", record, offset, value)
    return bytes(record)


class Guest:
    """A process in the making."""

    def __init__(self, image: CodeImage, scratch_bytes: int) -> None:
        """Start with the kernels of all plans, and scratch memory for each of them."""
        self._memory = bytearray(_HEADERS)
        code = self._place(image.code, _PAGE)
        self._functions = {name: code + offset for name, offset in image.symbols}
        runtime = compile_runtime(TARGET)
        code = self._place(runtime.code, _PAGE)
        self._execute = code + dict(runtime.symbols)[abi.EXECUTE]
        self._scratch = self._place(bytes(scratch_bytes))
        self._lists: list[int] = []
        self._outputs: list[tuple[int, Array]] = []

    def _place(self, data: bytes | bytearray | memoryview, alignment: int = 64) -> int:
        """Append bytes; return their address."""
        self._memory += bytes(-len(self._memory) % alignment)
        address = _BASE + len(self._memory)
        self._memory += data
        return address

    def add(
        self,
        plan: Plan,
        weights: Array,
        values: Mapping[str, int],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
    ) -> None:
        """Add a run of a plan; ``inputs`` come before the ``outputs`` that will be filled."""
        arena = self._place(bytes(plan.arena_bytes))
        packed = self._place(bytes(np.ascontiguousarray(weights)))
        bindings = [self._place(np.ascontiguousarray(x).tobytes()) for x in (*inputs, *outputs)]
        self._outputs += zip(bindings[len(inputs) :], outputs, strict=True)
        starts: list[int] = []
        for buffer in plan.buffers:
            if buffer.space in {Space.ARENA, Space.WEIGHTS}:
                starts.append((arena if buffer.space is Space.ARENA else packed) + buffer.start)
            elif buffer.space is Space.ERRORS:
                starts.append(self._place(bytes(buffer.size_bytes)))
            else:
                starts.append(bindings[buffer.start])
        rows = b"".join(
            self._row(step, number, starts, values) for number, step in enumerate(plan.steps)
        )
        fields = {
            abi.LIST_ROWS: self._place(rows),
            abi.LIST_COUNT: len(plan.steps),
            abi.LIST_SCRATCH: self._scratch,
            abi.LIST_REGIONS: 1,
        }
        self._lists.append(self._place(_record(abi.LIST_BYTES, fields)))

    def _row(
        self, step: Step, number: int, starts: Sequence[int], values: Mapping[str, int]
    ) -> bytes:
        """The row of a launch, its words placed."""
        assert isinstance(step, Launch)
        words = [starts[v.buffer] + evaluate_dim(v.offset, values) for v in step.operands]
        words += [evaluate_dim(scalar, values) for scalar in step.scalars]
        chunks = evaluate_dim(step.chunks, values)
        fields = {
            abi.ROW_FUNCTION: self._functions[step.kernel.symbol],
            abi.ROW_ARGUMENTS: self._place(struct.pack(f"<{len(words)}q", *words)),
            abi.ROW_CHUNKS: chunks,
            abi.ROW_WAIT_FOR: number,
            abi.ROW_SHARES: 1,
            abi.ROW_REGIONS + abi.REGION_END: chunks,
        }
        return _record(abi.ROW_BYTES, fields)

    def run(self, folder: Path) -> None:
        """Run all plans; the arrays given as outputs hold the results.

        Raises:
            subprocess.SubprocessError: the process fails, or takes too long.
        """
        assert EMULATOR is not None
        image, symbols = link([compile_ir(self._program(), TARGET)])
        entry = self._place(image, _PAGE) + dict(symbols)["start"]
        size = len(self._memory)
        self._memory[:64] = struct.pack(
            "<16sHHIQQQIHHHHHH",
            b"\x7fELF\x02\x01\x01",
            *(2, 183, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0),
        )
        self._memory[64:120] = struct.pack("<IIQQQQQQ", 1, 7, 0, _BASE, _BASE, size, size, _PAGE)
        file = folder / "guest"
        file.write_bytes(self._memory)
        os.chmod(file, 0o700)
        done = subprocess.run(
            [EMULATOR, str(file)], check=True, capture_output=True, timeout=_LIMIT_S
        )
        read = 0
        for _, array in self._outputs:
            part = done.stdout[read : read + array.nbytes]
            array[...] = np.frombuffer(part, array.dtype).reshape(array.shape)
            read += array.nbytes
        assert read == len(done.stdout)

    def _program(self) -> str:
        code = "".join(f"\\{byte:02X}" for byte in bytes.fromhex(_SYSTEM_CALL))
        calls = [
            f" call void inttoptr (i64 {self._execute} to ptr)(ptr inttoptr (i64 {at} to ptr), "
            "ptr null, i64 0)"
            for at in self._lists
        ]
        for at, array in self._outputs:
            calls.append(
                f" call i64 @system(i64 {_WRITE}, i64 1, i64 {at}, i64 {array.nbytes}, i64 0)"
            )
        return "\n".join(
            [
                f'@system = private constant [28 x i8] c"{code}", align 16',
                "define void @start() {",
                *calls,
                f" call i64 @system(i64 {_EXIT}, i64 0, i64 0, i64 0, i64 0)",
                " ret void",
                "}",
            ]
        )
