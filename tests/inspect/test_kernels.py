"""What the inspector tells of kernels and of the work of layers, for GPUs and processors."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smelt
from smelt.backends.cuda import CudaBackend, target_named
from smelt.devices.cuda import ABI_VERSION, CudaKernel, CudaModule
from smelt.engine import VERSION, EngineFile, Fingerprint, Launch, read_engine
from smelt.importers import network_from_onnx
from smelt.inspect import (
    H200,
    EngineReport,
    Peaks,
    Profile,
    report_of,
    report_to_html,
    report_to_json,
    report_to_text,
)
from tests.support.cubins import Kernel, make_cubin
from tests.support.engines import ADD, MULTIPLY, affine_header
from tests.support.small_models import inception_model
from tests.support.small_networks import small_network

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice
    from smelt.engine import EngineHeader
    from smelt.runtime import Engine


def _affine(architecture: str, *records: bytes, symbols: tuple[str, ...]) -> EngineReport:
    """The report on an engine of two kernels with records of our own making."""
    offsets = [sum(map(len, records[:n])) for n in range(len(records))]
    header = dataclasses.replace(
        affine_header(),
        fingerprint=Fingerprint("cuda", architecture, (), "any", ABI_VERSION, VERSION),
        symbols=tuple(zip(symbols, offsets, strict=False)),
    )
    return report_of(_Bare(header, b"".join(records)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Bare:
    header: EngineHeader
    code: bytes


def _record(shared_bytes: int = 0, **changes: int) -> bytes:
    cubin = make_cubin(Kernel("k", **changes))
    return CudaKernel("k", cubin, 128, shared_bytes).to_bytes()


def test_each_architecture_tells_what_a_kernel_takes_there() -> None:
    report = _affine(
        "sm_80,sm_90",
        _record(8192, registers=64) + _record(4096, registers=168, frame_bytes=24),
        symbols=(MULTIPLY.symbol,),
    )
    (known,) = [k for k in report.kernels if k.symbol == MULTIPLY.symbol]
    old, new = known.codes
    assert (old.architecture, old.registers, old.blocks, old.limited_by) == (
        "sm_80", 64, 8, "registers",
    )  # fmt: skip
    assert (new.registers, new.local_bytes, new.dynamic_shared_bytes) == (168, 24, 4096)
    assert (new.blocks, new.occupancy) == (3, 3 * 128 / 2048)
    (lost,) = [k for k in report.kernels if k.symbol == ADD.symbol]
    assert {code.problem for code in lost.codes} == {"the engine has no code for this kernel"}
    text = report_to_text(report, ["kernels"], width=200)
    assert "0 + 4096 B" in text
    assert "the engine has no code for this kernel" in text


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b"\xff" * 40, "malformed|beyond"),
        (struct.pack("<II", 1 << 15, 0) + bytes(1 << 15), "a JSON text of 32768 bytes"),
        (CudaKernel("k", b"\x7fELF", 128, 16).to_bytes(), "is not a valid cubin"),
        (CudaKernel("l", make_cubin(Kernel("k")), 128, 16).to_bytes(), "no kernel 'l'"),
    ],
)
def test_what_a_damaged_kernel_does_not_tell_is_unknown(record: bytes, problem: str) -> None:
    report = _affine("sm_90", record, symbols=(MULTIPLY.symbol,))
    (code,) = next(k for k in report.kernels if k.symbol == MULTIPLY.symbol).codes
    assert (code.registers, code.blocks, code.occupancy) == (None, None, None)
    assert re.search(problem, code.problem)
    json.dumps(report_to_json(report), allow_nan=False)
    assert "?" in report_to_text(report, ["kernels"])
    assert "<td class=number>?</td>" in report_to_html(report)


def test_an_architecture_without_known_room_tells_registers_all_the_same() -> None:
    report = _affine("sm_999", _record(registers=9), symbols=(MULTIPLY.symbol,))
    (code,) = next(k for k in report.kernels if k.symbol == MULTIPLY.symbol).codes
    assert (code.registers, code.blocks) == (9, None)
    assert "sm_999" in code.problem


# ---- an engine with real kernels


@pytest.fixture(scope="module")
def engine() -> Engine:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    # Other tests build the very same: its kernels are compiled once a session.
    return smelt.build(small_network(), device="cuda:sm_90", tune="none", max_batch_size=3)


@pytest.fixture(scope="module")
def file(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> EngineFile:
    path = tmp_path_factory.mktemp("engines") / "small.engine"
    engine.save(path)
    return read_engine(path)


def _toolkit() -> str:
    """The toolkit's own reader of cubins, which some compilers bring."""
    found = find_spec("triton")
    places = [Path(p) for p in (found.submodule_search_locations or [])] if found else []
    tools = [p / "backends" / "nvidia" / "bin" / "cuobjdump" for p in places]
    return next((str(tool) for tool in tools if tool.exists()), "")


def test_what_kernels_take_is_what_the_toolkit_says(file: EngineFile, tmp_path: Path) -> None:
    if not _toolkit():
        pytest.skip("no cuobjdump here")
    path = tmp_path / "kernel.cubin"
    for kernel in report_of(file).kernels:
        record = CudaKernel.from_bytes(file.code, dict(file.header.symbols)[kernel.symbol])
        path.write_bytes(record.cubin)
        said = subprocess.run(
            [_toolkit(), "--dump-resource-usage", path], capture_output=True, text=True, check=True
        ).stdout
        detail = {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", said)}
        (code,) = kernel.codes
        reserved = 1024 if detail["SHARED"] else 0
        assert (detail["REG"], detail["STACK"]) == (code.registers, code.local_bytes)
        assert detail["SHARED"] - reserved == code.static_shared_bytes
        assert (code.threads, code.dynamic_shared_bytes) == (
            record.threads,
            record.dynamic_shared_bytes,
        )


def test_kernels_show_the_text_that_they_were_made_from(file: EngineFile) -> None:
    backend, target = CudaBackend(), target_named("sm_90")
    steps = [s for s in file.header.plans[0].steps if isinstance(s, Launch)]
    wanted = {s.kernel.symbol: backend.generate(s.kernel, target) for s in steps}
    report = report_of(file, sources=True)
    detail = {k.symbol: k.sources[0] for k in report.kernels}
    assert {symbol: source.text for symbol, source in detail.items()} == wanted
    assert all(source.architectures == ("sm_90",) for source in detail.values())
    text = report_to_text(dataclasses.replace(report, plans=report.plans * 2), ["source"], width=40)
    assert [text.count(source.text) for source in detail.values()] == [1] * len(detail)
    assert "tl.dot" in report_to_html(report)
    assert all(not k.sources for k in report_of(file).kernels)


def test_kernels_of_strangers_are_not_generated(file: EngineFile) -> None:
    report = report_of(dataclasses.replace(file, signature=None), sources=True)
    assert not any(kernel.sources for kernel in report.kernels)
    assert "not signed by a trusted key" in report.no_sources
    assert "not signed by a trusted key" in report_to_html(report)


def test_kernels_of_another_smelt_are_not_generated(engine: Engine) -> None:
    other = dataclasses.replace(engine.header.fingerprint, version="0.0.1")
    header = dataclasses.replace(engine.header, fingerprint=other)
    assert "0.0.1" in report_of(_Bare(header, engine.code), sources=True).no_sources


def test_neither_compiler_nor_gpu_is_needed_to_inspect(engine: Engine, tmp_path: Path) -> None:
    engine.save(tmp_path / "small.engine")
    code = (
        "import sys; sys.modules |= dict.fromkeys(['triton', 'llvmlite', 'cuda', 'torch']);"
        "from smelt.engine import read_engine; from smelt.inspect import report_of;"
        "report = report_of(read_engine(sys.argv[1]), sources=True);"
        "assert all(k.sources and k.codes[0].registers for k in report.kernels), report.no_sources"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "small.engine"], check=True)


def test_tensors_are_shown_as_they_are_stored() -> None:
    network = small_network()
    built = smelt.build(network, device="cpu:x86-64-v3", precision="float16", tune="none")
    report = report_of(built)
    plan = report.plans[0]
    pool = next(node for node in plan.nodes if node.name == "pool1")
    assert pool.types == ("float16[1, 16, 10, 10]",)
    layer = next(layer for layer in plan.layers if layer.node == "pool1")
    assert (layer.inputs, layer.outputs) == (("float16[1, 16, 20, 20]",), pool.types)
    assert ">float16[1, 16, 10, 10]</text>" in report_to_html(report)


def test_a_gpu_finds_the_same_registers_and_room(gpu: CudaDevice) -> None:
    architecture = gpu.properties.architecture
    built = smelt.build(small_network(), device=f"cuda:{architecture}", tune="none")
    kinds = gpu.driver.api.CUfunction_attribute
    for kernel in report_of(built).kernels:
        record = CudaKernel.from_bytes(built.code, dict(built.header.symbols)[kernel.symbol])
        module = CudaModule(gpu, record.cubin)
        function = module.function(record.entry, record.dynamic_shared_bytes).handle
        (code,) = kernel.codes
        registers, local = (
            gpu.call("cuFuncGetAttribute", kind, function)
            for kind in (
                kinds.CU_FUNC_ATTRIBUTE_NUM_REGS,
                kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
        )
        assert (code.registers, code.local_bytes) == (registers, local)
        asked = (function, record.threads, record.dynamic_shared_bytes)
        assert code.blocks == gpu.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", *asked)
        module.close()


# ---- work beside the roofline


def test_a_layers_work_is_its_products_and_its_operands(engine: Engine) -> None:
    plan = report_of(engine).plans[0]
    layer = next(layer for layer in plan.layers if layer.node == "left")
    work = layer.work
    assert work is not None
    (launch,) = layer.launches
    assert work.moved_bytes == launch.moved_bytes
    image, result, weights = 3 * 16 * 10 * 10, 3 * 8 * 10 * 10, 8 * 16
    assert work.moved_bytes is not None
    assert 0 <= work.moved_bytes - 4 * (image + result + weights) < 512
    assert work.flop == 2 * 3 * 8 * 100 * 16
    assert work.factors in {"float32", "tf32x3"}
    assert (work.bound_seconds, work.bound_by) == (work.moved_bytes / 4.3e12, "memory")
    assert plan.work.flop == sum(x.work.flop or 0 for x in plan.layers if x.work)


def test_narrow_screens_break_neither_numbers_nor_names(engine: Engine) -> None:
    narrow, wide = (
        report_to_text(report_of(engine), ["roofline", "kernels"], width=w) for w in (60, 300)
    )
    pieces = {p for p in wide.split() if re.fullmatch(r"[\d.,]+%?|\w+_[0-9a-f]{20}", p)}
    assert len(pieces) > 20
    assert pieces <= set(narrow.split())
    assert " share" not in narrow.replace("shared", "")


@pytest.mark.parametrize("section", ["layers", "kernels", "roofline", "memory"])
def test_rows_on_a_usual_screen_are_cut_between_words_and_parameters(
    engine: Engine, section: str
) -> None:
    report = report_of(engine)
    narrow, wide = (report_to_text(report, [section], width=width) for width in (80, 400))
    assert max(map(len, narrow.splitlines())) <= 80
    kept = re.findall(r"\w+=(?:\([\d, ]*\)|[^\s,()]+)|\w+\[[\d, ]+\]|[\w/]{4,}", wide)
    assert len(kept) > 20
    assert [piece for piece in kept if piece not in narrow] == []


def test_a_bound_that_is_too_small_for_its_column_is_not_shown_as_zero(engine: Engine) -> None:
    fast = Peaks("mine", 1e18, (("any", 1e18),))
    text = report_to_text(report_of(engine, peaks=fast), ["roofline"])
    assert "<0.001 us" in text
    assert " 0.000 us" not in text


def test_a_row_in_a_file_is_one_line_unless_its_words_are_many(engine: Engine) -> None:
    lines = report_to_text(report_of(engine), ["kernels"]).splitlines()
    assert len([line for line in lines if re.match(r" \w+_[0-9a-f]{20} .*sm_90 .*%", line)]) > 2


def test_work_names_the_sizes_that_it_is_counted_for(engine: Engine) -> None:
    report = report_of(engine)
    assert "; counted at batch = 3\n" in report_to_text(report, ["roofline"], width=400)
    assert "; counted at batch = 3." in report_to_html(report)
    assert report_to_json(report)["plans"][0]["counted_at"] == {"batch": 3}
    less = report_of(engine, profile=Profile({}, {"batch": 2}))
    assert less.plans[0].counted_at == (("batch", 2),)


def test_a_layers_factors_do_not_depend_on_the_rates_that_are_given(engine: Engine) -> None:
    alike = Peaks("mine", 1e12, (("any", 1e12),))
    detail = [report_of(engine, peaks=peaks).plans[0].layers for peaks in (None, alike)]
    first, second = ([x.work.factors for x in layers if x.work] for layers in detail)
    assert first == second
    assert "tf32x3" in first


def test_one_known_architecture_of_several_gives_its_bounds() -> None:
    assert _affine("sm_80,sm_90", b"", symbols=()).peaks == H200
    assert _affine("sm_80,sm_86", b"", symbols=()).peaks is None


def test_a_profile_of_an_extent_that_is_not_open_here_is_not_taken(engine: Engine) -> None:
    profile = Profile(dict.fromkeys((x.name for x in engine.layers), 1e-6), {"rows": 8})
    assert report_of(engine, profile=profile).plans[0].work.measured_seconds is None


def test_a_profile_of_a_smaller_batch_is_held_against_its_own_work(engine: Engine) -> None:
    names = [layer.name for layer in engine.layers]
    profile = Profile(dict.fromkeys(names, 1e-6), {"batch": 1})
    whole, third = (report_of(engine, profile=p).plans[0].work for p in (None, profile))
    assert whole.flop == 3 * (third.flop or 0)
    assert third.measured_seconds == pytest.approx(1e-6 * sum(1 for _ in names))
    assert third.share_of_bound is not None
    assert whole.share_of_bound is None
    kernels = report_of(engine, profile=profile).kernels
    alone = [kernel for kernel in kernels if kernel.measured_seconds is not None]
    assert {kernel.family for kernel in alone} > {"conv", "pool"}
    assert all(kernel.measured_seconds == pytest.approx(1e-6 * kernel.uses) for kernel in alone)
    assert all(kernel.share_of_bound for kernel in alone)


def test_without_known_peaks_there_is_intensity_and_no_bound() -> None:
    built = smelt.build(network_from_onnx(inception_model()), tune="none")
    report = report_of(built)
    assert report.peaks is None
    work = report.plans[0].work
    assert work.flop_per_byte
    assert work.bound_seconds is None
    assert "no peak rates of" in report_to_text(report, ["roofline"])
    slow = Peaks("mine", 1e9, (("any", 1e6),))
    judged = report_of(built, peaks=slow)
    assert judged.plans[0].work.bound_seconds == pytest.approx((work.flop or 0) / 1e6, rel=0.5)
    assert "bounds are those of mine" in report_to_text(judged, ["roofline"])


def test_float32_that_is_rounded_on_its_way_goes_at_its_own_rate() -> None:
    assert H200.flop_of("tf32") == 395e12
    assert H200.flop_of("int8") is None
