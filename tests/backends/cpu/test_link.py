"""Compiling and linking: images that need nothing from outside, the same every time."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from smelt.backends.cpu import compile_ir, host_target, link, target_named
from smelt.errors import BuildError, UnsupportedError
from tests.support.cpu_kernels import load_function, run_ir

AXPY = """
@steps = private constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
define void @axpy(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
 %x = load ptr, ptr %args
 %yp = getelementptr i8, ptr %args, i64 8
 %y = load ptr, ptr %yp
 %none = icmp sge i64 %begin, %end
 br i1 %none, label %done, label %loop
loop:
 %i = phi i64 [%begin, %entry], [%n, %loop]
 %xi = getelementptr float, ptr %x, i64 %i
 %yi = getelementptr float, ptr %y, i64 %i
 %a = load float, ptr %xi
 %b = load float, ptr %yi
 %k = and i64 %i, 3
 %cp = getelementptr float, ptr @steps, i64 %k
 %c = load float, ptr %cp
 %m = fmul float %a, %c
 %s = fadd float %m, %b
 store float %s, ptr %yi
 %n = add i64 %i, 1
 %more = icmp slt i64 %n, %end
 br i1 %more, label %loop, label %done
done:
 ret void
}
"""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("at_end", [True, False])
def test_a_compiled_kernel_computes_between_guard_pages(workers: int, at_end: bool) -> None:
    x = np.arange(37, dtype=np.float32)
    y = np.ones(37, np.float32)
    _, result = run_ir(AXPY, "axpy", [x, y], chunks=37, workers=workers, piece=5, at_end=at_end)
    np.testing.assert_array_equal(result, x * (np.arange(37) % 4 + 1).astype(np.float32) + y)


def test_linking_is_deterministic_and_keeps_every_function() -> None:
    target = target_named("x86-64-v3")
    objects = [compile_ir(AXPY.replace("@axpy", f"@axpy{i}"), target) for i in range(3)]
    again = [compile_ir(AXPY.replace("@axpy", f"@axpy{i}"), target) for i in range(3)]
    image, symbols = link(objects)
    assert (image, symbols) == link(again)
    assert [name for name, _ in symbols] == ["axpy0", "axpy1", "axpy2"]
    assert all(offset % 64 == 0 for _, offset in symbols)


def test_a_call_to_a_function_outside_is_refused_by_name() -> None:
    text = (
        "declare void @puts(ptr)\ndefine void @k(ptr %p) {\n call void @puts(ptr %p)\n ret void\n}"
    )
    with pytest.raises(BuildError, match=r"k needs 'puts'"):
        link([compile_ir(text, host_target())])


def test_kernels_may_call_each_other() -> None:
    callee = "define i64 @double(i64 %x) {\n %r = shl i64 %x, 1\n ret i64 %r\n}"
    declaration = "declare i64 @double(i64)\n"
    caller = """
define void @kernel(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
 %out = load ptr, ptr %args
 %r = call i64 @double(i64 %end)
 store i64 %r, ptr %out
 ret void
}"""
    (result,) = run_ir(f"{callee}\n{caller}", "kernel", [np.zeros(1, np.int64)], chunks=21)
    assert result[0] == 42
    image, symbols = link([compile_ir(t, host_target()) for t in (declaration + caller, callee)])
    assert dict(symbols).keys() == {"double", "kernel"}
    assert image


def test_writable_data_and_duplicates_are_refused() -> None:
    writable = "@state = global i64 0\ndefine void @k() {\n store i64 1, ptr @state\n ret void\n}"
    with pytest.raises(BuildError, match="writable"):
        link([compile_ir(writable.replace("i64 0", "i64 7"), host_target())])
    one = compile_ir("define void @k() {\n ret void\n}", host_target())
    with pytest.raises(BuildError, match="'k' is defined by two"):
        link([one, one])


def test_absolute_addresses_are_refused() -> None:
    table = "@f = constant ptr @k\ndefine void @k() {\n ret void\n}"
    with pytest.raises(BuildError, match=r"writable|absolute"):
        link([compile_ir(table, host_target())])


def test_a_loop_that_clears_memory_calls_nobody() -> None:
    clear = """
define void @clear(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
 %out = load ptr, ptr %args
 br label %loop
loop:
 %i = phi i64 [%begin, %entry], [%n, %loop]
 %p = getelementptr i8, ptr %out, i64 %i
 store i8 0, ptr %p
 %n = add i64 %i, 1
 %more = icmp slt i64 %n, %end
 br i1 %more, label %loop, label %done
done:
 ret void
}"""
    (result,) = run_ir(clear, "clear", [np.ones(5000, np.uint8)], chunks=5000)
    assert not result.any()


def test_a_jump_table_is_position_independent() -> None:
    cases = "\n".join(f"  i64 {i}, label %c{i}" for i in range(12))
    blocks = "\n".join(
        f'c{i}:\n store i64 {i * i + 3}, ptr %out\n call void asm sideeffect "", ""()\n ret void'
        for i in range(12)
    )
    text = f"""
define void @pick(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
 %out = load ptr, ptr %args
 switch i64 %end, label %other [
{cases}
 ]
{blocks}
other:
 ret void
}}"""
    for wanted in (0, 5, 11):
        out = np.zeros(1, np.int64)
        load_function(text, "pick")(np.array([out.ctypes.data]).ctypes.data, 0, wanted, 0)
        assert out[0] == wanted * wanted + 3


def test_arm_references_encode_page_and_offset() -> None:
    image, symbols = link([compile_ir(AXPY, target_named("aarch64"))])
    (start,) = [offset for name, offset in symbols if name == "axpy"]
    words = struct.unpack(f"<{len(image) // 4}I", image)
    table = image.index(struct.pack("<4f", 1, 2, 3, 4))
    pages = [i for i, w in enumerate(words) if w & 0x9F000000 == 0x90000000 and i * 4 >= start]
    assert pages, "no ADRP in the code"
    immediate = (words[pages[0]] >> 5 & 0x7FFFF) << 2 | words[pages[0]] >> 29 & 3
    assert immediate == 0  # the same page
    register = words[pages[0]] & 31
    adds = [w for w in words if w & 0xFFC00000 == 0x91000000 and w >> 5 & 31 == register]
    loads = [w for w in words if w & 0x3F000000 == 0x3D000000 and w >> 5 & 31 == register]
    offsets = [w >> 10 & 0xFFF for w in adds] + [(w >> 10 & 0xFFF) << 4 for w in loads]
    assert table in offsets


def test_arm_calls_reach_their_function() -> None:
    texts = (
        "declare void @b()\ndefine void @a() {\n call void @b()\n call void @b()\n ret void\n}",
        "define void @b() {\n ret void\n}",
    )
    image, symbols = link([compile_ir(t, target_named("aarch64")) for t in texts])
    words = struct.unpack(f"<{len(image) // 4}I", image)
    branches = [(i * 4, w) for i, w in enumerate(words) if w >> 26 in {0b100101, 0b000101}]
    assert branches
    for place, word in branches:
        distance = (word & 0x3FFFFFF) - ((word & 0x2000000) << 1)
        assert place + 4 * distance == dict(symbols)["b"]


def test_invalid_ir_and_unknown_targets_are_named() -> None:
    with pytest.raises(BuildError, match="not valid"):
        compile_ir("define void @k() { ret i32 }", host_target())
    with pytest.raises(UnsupportedError, match="x86-64-v3"):
        target_named("pentium")
