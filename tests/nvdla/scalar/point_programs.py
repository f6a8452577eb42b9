"""Register programs of the single-point processor.

Source: NVDLA documentation, Programming Guide, "SDP programming", and the register manual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tests.nvdla.scalar.arithmetic import UNCHANGED, Converter, Cube, Precision
from tests.nvdla.scalar.programs import (
    MEMORY_BYTES,
    OPERANDS,
    cube_words,
    operand_surface,
    program_float_lut,
    program_lut,
    surface_words,
)
from tests.nvdla.scalar.sdp import (
    Adder,
    ElementStage,
    FloatAdder,
    FloatMultiplier,
    FloatStage,
    Multiplier,
    PointStage,
)
from tests.nvdla.scalar.surfaces import bits_from_halves, write_operands

if TYPE_CHECKING:
    from tests.nvdla.scalar.points import HalfPointCase, OperandPlan, PointCase
    from tests.nvdla.scalar.programs import Bench
    from tests.nvdla.scalar.surfaces import FeatureSurface

DMA_LETTERS: Final = {"BS": "B", "BN": "N", "EW": "E"}
_OPERAND_BYTES: Final = 0x10000

Stage = PointStage | ElementStage | FloatStage


def program_point_case(
    bench: Bench, case: PointCase, surfaces: tuple[FeatureSurface, FeatureSurface]
) -> None:
    """Program a run of the integer pipe from memory to memory."""
    run = case.settings
    program_source(
        bench, case.data.shape, surfaces[0], case.precision, run.output_precision, case.source_space
    )
    program_target(
        bench, case.data.shape, surfaces[1], case.precision, run.output_precision, case.target_space
    )
    program_output_converter(bench, run.output_converter)
    stages: dict[str, Stage | None] = {"BS": run.x1, "BN": run.x2, "EW": run.y}
    for number, (name, stage) in enumerate(stages.items()):
        address = OPERANDS + number * _OPERAND_BYTES
        program_stage(bench, name, stage)
        program_operands(bench, name, stage, case.plans[name], case.precision, address)
    if run.y is not None and run.y.lut is not None:
        program_lut(bench, "SDP", run.y.lut)


def program_half_point_case(
    bench: Bench, case: HalfPointCase, surfaces: tuple[FeatureSurface, FeatureSurface]
) -> None:
    """Program a run of the fp16 pipe from memory to memory."""
    run = case.settings
    program_source(bench, case.data.shape, surfaces[0], Precision.FP16, Precision.FP16)
    program_target(bench, case.data.shape, surfaces[1], Precision.FP16, Precision.FP16)
    bench.write_fields(
        "SDP.D_FEATURE_MODE_CFG",
        FLYING_MODE=0,
        OUTPUT_DST=0,
        NAN_TO_ZERO=int(run.nan_is_zero),
    )
    program_output_converter(bench, UNCHANGED)
    stages: dict[str, Stage | None] = {"BS": run.x1, "BN": run.x2, "EW": run.y}
    for number, (name, stage) in enumerate(stages.items()):
        address = OPERANDS + number * _OPERAND_BYTES
        program_stage(bench, name, stage)
        program_operands(bench, name, stage, case.plans[name], Precision.FP16, address)
    if run.y is not None and run.y.lut is not None:
        program_float_lut(bench, "SDP", run.y.lut)


def program_source(
    bench: Bench,
    shape: tuple[int, ...],
    source: FeatureSurface,
    precision: Precision,
    output: Precision,
    space: int = 1,
) -> None:
    """Program the read DMA."""
    bench.write_words(
        "SDP_RDMA",
        S_POINTER=0,
        **cube_words(shape),
        **surface_words("SRC", source, space),
    )
    bench.write_fields(
        "SDP_RDMA.D_FEATURE_MODE_CFG",
        FLYING_MODE=0,
        IN_PRECISION=int(precision),
        PROC_PRECISION=int(precision),
        OUT_PRECISION=int(output),
    )


def program_target(
    bench: Bench,
    shape: tuple[int, ...],
    target: FeatureSurface,
    precision: Precision,
    output: Precision,
    space: int = 1,
) -> None:
    """Program sizes, the write DMA and precisions; data come from memory."""
    bench.write_words(
        "SDP",
        S_POINTER=0,
        **cube_words(shape),
        **surface_words("DST", target, space),
        D_FEATURE_MODE_CFG=0,
    )
    bench.write_fields(
        "SDP.D_DATA_FORMAT", PROC_PRECISION=int(precision), OUT_PRECISION=int(output)
    )


def program_output_converter(bench: Bench, converter: Converter) -> None:
    """Program the converter at the end."""
    bench.write_fields("SDP.D_CVT_OFFSET", CVT_OFFSET=converter.offset)
    bench.write_fields("SDP.D_CVT_SCALE", CVT_SCALE=converter.scale)
    bench.write_fields("SDP.D_CVT_SHIFT", CVT_SHIFT=converter.shift)


def program_stage(bench: Bench, name: str, stage: Stage | None) -> None:
    """Program one stage's configuration register, and its arithmetic."""
    adder = None if stage is None else stage.adder
    multiplier = None if stage is None else stage.multiplier
    last = f"{name}_LUT_BYPASS" if name == "EW" else f"{name}_RELU_BYPASS"
    acts = (isinstance(stage, ElementStage | FloatStage) and stage.lut is not None) or (
        isinstance(stage, PointStage | FloatStage) and stage.has_relu
    )
    bench.write_fields(
        f"SDP.D_DP_{name}_CFG",
        **{
            f"{name}_BYPASS": int(stage is None),
            f"{name}_ALU_BYPASS": int(adder is None),
            f"{name}_ALU_ALGO": 0 if adder is None else int(adder.algorithm),
            f"{name}_MUL_BYPASS": int(multiplier is None),
            f"{name}_MUL_PRELU": int(multiplier is not None and multiplier.is_prelu),
            last: int(not acts),
        },
    )
    if isinstance(stage, ElementStage):
        bench.write_fields("SDP.D_DP_EW_TRUNCATE_VALUE", EW_TRUNCATE=stage.truncate)


def program_operands(
    bench: Bench,
    name: str,
    stage: Stage | None,
    plan: OperandPlan,
    precision: Precision,
    address: int,
) -> None:
    """Put a stage's operands where its plan says, and program the DMA that fetches them."""
    adder = None if stage is None else stage.adder
    multiplier = None if stage is None else stage.multiplier
    truncate = stage.truncate if isinstance(stage, PointStage) else 0
    _program_adder(bench, name, adder, plan)
    _program_multiplier(bench, name, multiplier, plan, truncate)
    if name == "EW":
        _program_element_converters(bench, stage)
    cubes = [
        _raw(part)
        for part, fetched in (
            (adder, plan.adder_from_memory),
            (multiplier, plan.multiplier_from_memory),
        )
        if part is not None and fetched
    ]
    has_adder = adder is not None and plan.adder_from_memory
    use = 2 if len(cubes) == 2 else int(has_adder)
    letter = DMA_LETTERS[name]
    bench.write_fields(
        f"SDP_RDMA.D_{letter}RDMA_CFG",
        **{
            f"{letter}RDMA_DISABLE": int(not cubes),
            f"{letter}RDMA_DATA_USE": use,
            f"{letter}RDMA_DATA_SIZE": plan.component_bytes - 1,
            f"{letter}RDMA_DATA_MODE": int(not plan.is_per_kernel),
            f"{letter}RDMA_RAM_TYPE": 1,
        },
    )
    if cubes:
        _store_operands(bench, name, cubes, plan, precision, address)


def _store_operands(
    bench: Bench,
    name: str,
    cubes: list[Cube],
    plan: OperandPlan,
    precision: Precision,
    address: int,
) -> None:
    surface = operand_surface(
        0,
        cubes[0].shape,
        precision,
        parts=len(cubes),
        part_bytes=plan.component_bytes,
        is_per_kernel=plan.is_per_kernel,
        atom_bytes=bench.atom_bytes,
    )
    memory = bytearray(min(_OPERAND_BYTES, MEMORY_BYTES - address))
    write_operands(memory, surface, tuple(cubes))
    bench.store(address, bytes(memory))
    bench.write_words(
        "SDP_RDMA",
        **{
            f"D_{name}_BASE_ADDR_LOW": address,
            f"D_{name}_BASE_ADDR_HIGH": 0,
            f"D_{name}_LINE_STRIDE": surface.line_stride,
            f"D_{name}_SURFACE_STRIDE": surface.surface_stride,
        },
    )


def _raw(part: Adder | FloatAdder | Multiplier | FloatMultiplier) -> Cube:
    """Return operands as memory holds them."""
    if isinstance(part, FloatAdder | FloatMultiplier):
        return bits_from_halves(part.operands)
    return part.operands


def _program_adder(
    bench: Bench, name: str, adder: Adder | FloatAdder | None, plan: OperandPlan
) -> None:
    fields = {f"{name}_ALU_SRC": int(plan.adder_from_memory)}
    if name == "EW":
        fields["EW_ALU_CVT_BYPASS"] = 1
    elif isinstance(adder, Adder):
        fields[f"{name}_ALU_SHIFT_VALUE"] = adder.shift
    bench.write_fields(f"SDP.D_DP_{name}_ALU_CFG", **fields)
    if adder is not None and not plan.adder_from_memory:
        value = _register_operand(name, adder)
        bench.write_fields(f"SDP.D_DP_{name}_ALU_SRC_VALUE", **{f"{name}_ALU_OPERAND": value})


def _program_multiplier(
    bench: Bench,
    name: str,
    multiplier: Multiplier | FloatMultiplier | None,
    plan: OperandPlan,
    truncate: int,
) -> None:
    fields = {f"{name}_MUL_SRC": int(plan.multiplier_from_memory)}
    if name == "EW":
        fields["EW_MUL_CVT_BYPASS"] = 1
    else:
        fields[f"{name}_MUL_SHIFT_VALUE"] = truncate
    bench.write_fields(f"SDP.D_DP_{name}_MUL_CFG", **fields)
    if multiplier is not None and not plan.multiplier_from_memory:
        value = _register_operand(name, multiplier)
        bench.write_fields(f"SDP.D_DP_{name}_MUL_SRC_VALUE", **{f"{name}_MUL_OPERAND": value})


def _register_operand(name: str, part: Adder | FloatAdder | Multiplier | FloatMultiplier) -> int:
    """Return a register's operand: Y's are 32 bits wide, and singles in fp16."""
    if name == "EW" and isinstance(part, FloatAdder | FloatMultiplier):
        return int(np.float32(part.operands.flat[0]).view(np.uint32))
    return int(_raw(part).flat[0])


def _program_element_converters(bench: Bench, stage: Stage | None) -> None:
    """Program both of Y's converters, which fp16 operands from memory must pass unchanged."""
    if isinstance(stage, ElementStage):
        _program_element_converter(bench, "ALU", stage.adder_converter)
        _program_element_converter(bench, "MUL", stage.multiplier_converter)
    elif isinstance(stage, FloatStage):
        _program_element_converter(bench, "ALU", UNCHANGED)
        _program_element_converter(bench, "MUL", UNCHANGED)


def _program_element_converter(bench: Bench, part: str, used: Converter | None) -> None:
    """Program one of Y's converters; without one it stays bypassed."""
    if used is None:
        return
    name = f"SDP.D_DP_EW_{part}"
    bench.registers.update_fields(f"{name}_CFG", **{f"EW_{part}_CVT_BYPASS": 0})
    for field, value in (("OFFSET", used.offset), ("SCALE", used.scale), ("TRUNCATE", used.shift)):
        bench.write_fields(f"{name}_CVT_{field}_VALUE", **{f"EW_{part}_CVT_{field}": value})
