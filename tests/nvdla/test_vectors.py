"""The machine gives, bit for bit, what NVIDIA's C model of nv_full gave for random programs.

A vector is what a program writes to the registers, what memory holds before it, and what it holds
afterwards. Numbers that are infinite, not numbers, or denormal are among the fp16 inputs. Only the
vectors are here: the programs came from the random configurations of these tests, the results from
the published C model, compiled elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from smelt.nvdla import MemorySpace
from smelt.nvdla.hardware import NV_FULL, Machine
from tests.nvdla.scalar.programs import MEMORY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER: Final = Path(__file__).parent / "vectors"
UNITS: Final = sorted(path.stem for path in FOLDER.glob("*.npz"))
LEAST_UNITS: Final = 19


def test_all_units_have_vectors() -> None:
    assert len(UNITS) >= LEAST_UNITS


@pytest.mark.parametrize("elements_at_once", [None, 50])
@pytest.mark.parametrize("unit", UNITS)
def test_the_machine_gives_the_bits_of_the_vendors_model(
    unit: str, elements_at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the parts are in which an engine takes a cube."""
    if elements_at_once is not None:
        place = "smelt.nvdla.hardware._running_operation._ELEMENTS_AT_ONCE"
        monkeypatch.setattr(place, elements_at_once)
    with np.load(FOLDER / f"{unit}.npz", allow_pickle=False) as arrays:
        cases: dict[str, dict[str, NDArray[np.generic]]] = {}
        for name in arrays.files:
            case, part = name.split("_", 1)
            cases.setdefault(case, {})[part] = arrays[name]
    assert cases
    for case, parts in cases.items():
        machine = run_program(parts)
        for part, expected in parts.items():
            if part.startswith("out"):
                space, address = (int(number) for number in part.split("_")[1:])
                found = machine.memory.read(MemorySpace(space), address, expected.size)
                assert found == expected.tobytes(), (unit, case, part)


def run_program(parts: dict[str, NDArray[np.generic]]) -> Machine:
    """Fill memory, write the registers, and let the machine run."""
    machine = Machine(NV_FULL, MEMORY_BYTES, MEMORY_BYTES, exact_fp16=True)
    for part, content in parts.items():
        if part.startswith("in"):
            space, address = (int(number) for number in part.split("_")[1:])
            machine.memory.write(MemorySpace(space), address, content.tobytes())
    for address, word in parts["writes"].tolist():
        machine.write(address, word)
    machine.advance()
    assert not machine.faults, machine.faults
    return machine
