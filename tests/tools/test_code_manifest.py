"""The manifest of generated code sees what code does, and not what anything in it is called."""

from __future__ import annotations

import re

import pytest

from smelt.backends.cpu import compile_ir, target_named
from tools.code_digests import (
    canonical_llvm,
    canonical_text,
    canonical_triton,
    digest,
    parts_of_object,
)
from tools.code_manifest import (
    PARTS,
    How,
    Outcome,
    Task,
    difference,
    differences,
    read_part,
    run_task,
)
from tools.code_sources import CUDA_TARGETS, Kernel, cases_of, requests_of, unit_names, versions

SAMPLE = ("relu", "add", "gather", "softmax")
"""Ops whose requests are few and cover elementwise code, indices and reductions."""

IR = """\
declare float @llvm.fabs.f32(float)
define void @scale_0123(ptr %args, i64 %begin) nounwind {
entry:
  %at = getelementptr i64, ptr %args, i64 0
  %word = load ptr, ptr %at, align 8, !invariant.load !0
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %head]
  %x = load float, ptr %word, align 4
  %y = fmul float %x, 0x3FF8000000000000
  %z = call float @llvm.fabs.f32(float %y)
  store float %z, ptr %word, align 4
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %begin
  br i1 %more, label %head, label %done
done:
  ret void
}
!0 = !{}
"""
RENAMED_IR = """\
declare float @llvm.fabs.f32(float)
define void @other(ptr %given,   i64 %first) nounwind {
start:  ; the arguments
  %1 = getelementptr i64, ptr %given, i64 0
  %2 = load ptr, ptr %1, align 8, !invariant.load !7
  br label %"a loop"

"a loop":
  %i = phi i64 [0, %start], [%n, %"a loop"]
  %head = load float, ptr %2, align 4
  %at = fmul float %head, 0x3FF8000000000000
  %word = call float @llvm.fabs.f32(float %at)
  store float %word, ptr %2, align 4
  %n = add i64 %i, 1
  %m = icmp slt i64 %n, %first
  br i1 %m, label %"a loop", label %out
out:
  ret void
}
!7 = !{}
"""

TRITON = '''\
def kernel(p0, p1, s0):
    """Scale."""
    def most(a, b):
        return tl.maximum(a, b)
    row = tl.program_id(0) * 64 + tl.arange(0, 64)
    for tap in range(0, 4):
        x = tl.load(p0 + (row), mask=row < s0, other=0.0)  # masked
    tl.store(p1 + row, tl.reduce(x, 0, most))
'''
RENAMED_TRITON = """\
def kernel(source, target, count):
    def larger(row, p0):
        return tl.maximum(row, p0)
    i = (tl.program_id(0) * 64) + tl.arange(0, 64)
    for t in range(0, 4):
        v = tl.load(source + i, mask=i < count,
                    other=0.0)
    tl.store(target + i, tl.reduce(v, 0, larger))
"""


def test_llvm_ir_is_the_same_under_other_names() -> None:
    assert canonical_llvm(IR) == canonical_llvm(RENAMED_IR)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0x3FF8000000000000", "0x3FF0000000000000"),
        ("fmul float", "fadd float"),
        ("align 4", "align 1"),
        ("add i64 %i, 1", "add i64 %next, 1"),
        ("label %head, label %done", "label %done, label %head"),
        ("fabs", "sqrt"),
        ("nounwind", ""),
    ],
)
def test_llvm_ir_differs_where_it_does_something_else(old: str, new: str) -> None:
    assert old in IR
    assert canonical_llvm(IR) != canonical_llvm(IR.replace(old, new))


def test_triton_is_the_same_under_other_names() -> None:
    assert canonical_triton(TRITON) == canonical_triton(RENAMED_TRITON)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* 64", "* 32"),
        ("tl.maximum", "tl.minimum"),
        ("row < s0", "row <= s0"),
        ("range(0, 4)", "tl.static_range(0, 4)"),
        ("p0 + (row)", "p1 + (row)"),
        (", other=0.0", ""),
        ("tl.maximum(a, b)", "tl.maximum(b, a)"),
    ],
)
def test_triton_differs_where_it_does_something_else(old: str, new: str) -> None:
    assert old in TRITON
    assert canonical_triton(TRITON) != canonical_triton(TRITON.replace(old, new))


def generated(target: str, op: str) -> list[Kernel]:
    """The kernels of an op's requests, each text once."""
    offered = (kernel for r in requests_of(target, op) for c in r.candidates for kernel in c)
    return list({kernel.text: kernel for kernel in offered if kernel is not None}.values())


def under_other_names(kernel: Kernel) -> str:
    """A kernel's text with a new name for everything that it names, and with comments."""
    if kernel.language == "llvm":
        text = re.sub(r"^define void @[\w.]+", "define void @other", kernel.text, flags=re.M)
        text = re.sub(r"%([\w.]+)", r"%other.\1", text)
        return re.sub(r"^([\w.]+):", r"other.\1:  ; a label", text, flags=re.M)
    arguments = re.findall(r"\w+", kernel.text.partition("(")[2].partition(")")[0])
    assigned = re.findall(r"^ +(?:for )?(\w+)(?: = | in )", kernel.text, flags=re.M)
    text = kernel.text.replace("def kernel(", "def other(  # a comment\n")
    for name in {*arguments, *assigned}:
        # What follows a dot is Triton's, and what "=" follows at once is an argument's keyword.
        text = re.sub(rf"(?<![.\w]){name}\b(?!=)", f"other_{name}", text)
    return text


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "sm_90"])
@pytest.mark.parametrize("op", ["softmax", "conv"])
@pytest.mark.slow
def test_generated_text_is_the_same_under_other_names(target: str, op: str) -> None:
    kernels = generated(target, op)
    assert kernels
    for kernel in kernels[:: 1 + len(kernels) // 40]:
        other = under_other_names(kernel)
        assert other != kernel.text
        text = canonical_text(kernel.language, kernel.text)
        assert canonical_text(kernel.language, other) == text, kernel.text


@pytest.mark.parametrize("target", ["x86-64-v3", "sm_90"])
def test_generated_text_differs_in_each_number(target: str) -> None:
    kernel = generated(target, "softmax")[0]
    places = list(re.finditer(r"(?:(?<=[-+*/%,<(\[] )|(?<=i64 ))\d+\b", kernel.text))
    assert places
    text = canonical_text(kernel.language, kernel.text)
    for place in places:
        number = str(int(place[0]) + 1)
        other = kernel.text[: place.start()] + number + kernel.text[place.end() :]
        assert canonical_text(kernel.language, other) != text, place


@pytest.mark.parametrize("op", ["softmax", "conv"])
def test_generated_machine_code_is_the_same_under_other_names(op: str) -> None:
    for kernel in generated("x86-64-v3", op)[:8]:
        assert code_of(under_other_names(kernel)) == code_of(kernel.text)


def code_of(text: str) -> str:
    made = compile_ir(text, target_named("x86-64-v3"))
    return digest(parts_of_object(made), 16)


def test_machine_code_is_the_same_under_other_names() -> None:
    assert code_of(IR) == code_of(RENAMED_IR)


@pytest.mark.parametrize(
    ("old", "new"), [("fmul float", "fadd float"), ("0x3FF8000000000000", "0x3FF0000000000000")]
)
def test_machine_code_differs_where_an_instruction_or_a_constant_does(old: str, new: str) -> None:
    # The constant is in a section of its own.
    assert code_of(IR) != code_of(IR.replace(old, new))


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="no ELF object"):
        parts_of_object(b"MZ and more")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("c:1 2 3", "c:1 2 3", ""),
        ("c:1 2 3", "d:1 2 3", "machine code differs"),
        ("c:1 2 3", "c:1 4 5", "text differs at 1, 2 of 3"),
        ("c:1 2 3", "c:2 3 1", "the same texts in another order"),
        ("c:1 2 3", "c:1 4", "2 texts instead of 3: 2 are gone and 1 are new"),
        ("c:1 2", "d:3 2", "machine code differs; text differs at 0 of 2"),
        ("", "c:1", "the manifest has it not"),
        ("c:1", "", "it is no longer there"),
    ],
)
def test_a_difference_is_told_in_words(before: str, after: str, said: str) -> None:
    assert difference(before, after) == said


def test_other_compilers_code_is_not_compared() -> None:
    assert not difference("c:1 2", "d:1 2", compares_code=False)


def test_differences_name_op_mode_and_case() -> None:
    key = "x86-64-v3 | conv | float16"
    outcome = Outcome(Task("cpu", "x86-64-v3", "conv"))
    outcome.rows[key] = ["c:1", "d:2"]
    outcome.labels[key] = {0: "1x1", 1: "strided"}
    stored = {key: ["c:1", "e:2"], "x86-64-v3 | conv | tf32": ["c:1"], "aarch64 | conv | x": ["c"]}
    assert list(differences([outcome], stored, compares_code=True)) == [
        "x86-64-v3 | conv | float16 | case 1 (strided): machine code differs",
        "x86-64-v3 | conv | tf32: it is no longer there",
    ]


@pytest.mark.parametrize("target", CUDA_TARGETS)
def test_every_unit_of_the_manifest_has_cases(target: str) -> None:
    # Units of the CPU are among them. A renamed file of cases is seen here, not hours later.
    _, rows = read_part("cuda")
    units = unit_names(target)
    assert {key.split(" | ")[1] for key in rows} <= set(units)
    assert [unit for unit in units if not cases_of(unit)] == []


@pytest.mark.parametrize("part", PARTS)
def test_the_manifest_says_which_compilers_made_it(part: str) -> None:
    header, rows = read_part(part)
    assert header["versions"].keys() == versions().keys()
    assert rows


@pytest.mark.parametrize(
    ("part", "target", "unit", "precision"),
    [
        *(("cpu", "x86-64-v3", op, "") for op in SAMPLE),
        *(("cuda", "sm_90", op, "") for op in SAMPLE),
        ("networks", "x86-64-v3", "our LeNet", "float32"),
    ],
)
@pytest.mark.slow
def test_a_sample_of_the_code_is_what_the_manifest_says(
    part: str, target: str, unit: str, precision: str
) -> None:
    header, stored = read_part(part)
    # Texts do not depend on compilers. Those of GPUs take minutes to compile.
    same = header["versions"] == versions()
    outcome = run_task(
        Task(part, target, unit, precision), stored, How(compiles=same and part != "cuda")
    )
    assert outcome.rows
    assert list(differences([outcome], stored, compares_code=same)) == []
