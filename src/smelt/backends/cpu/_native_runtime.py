"""Native run loop and worker loop as LLVM IR, which every engine carries.

`smelt.devices.cpu.abi` describes the memory that the code works on, and why workers that are late
do no harm. System calls and counters, for which LLVM has no instruction, are machine code in
constants, so that an engine for another architecture can be built without its assembler. This works
because an image is executable as a whole.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from smelt.backends.cpu._compile import compile_ir
from smelt.backends.cpu._link import link
from smelt.backends.cpu._target import CpuTarget, target_named
from smelt.devices.cpu import abi
from smelt.errors import UnsupportedError

_SPINS_IN_RUN: Final = 1500
"""Reads of a counter before a waiting worker sleeps between two reads, about 20 microseconds. A
worker never yields its processor: a busy neighbour would keep it for milliseconds, whereas a
sleeper gets it back (docs/lab/threads.md)."""
_NAP_NS: Final = 50_000
"""Length of such a sleep in nanoseconds; 1 µs is no faster (docs/lab/threads.md)."""
_CLOSED: Final = 0xFFFFFFFF
"""Chunk number that marks a region as closed: no chunk is left to take."""

_FUTEX_WAIT_PRIVATE: Final = 128
_FUTEX_WAKE_PRIVATE: Final = 129
"""Linux's FUTEX_WAIT and FUTEX_WAKE, each with FUTEX_PRIVATE_FLAG."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    """Code and system call numbers that differ between architectures."""

    declarations: str
    pause: str
    clock: str
    save_modes: str
    """Save the caller's floating-point modes and set the default ones."""
    restore_modes: str
    syscall: bytes
    """Machine code of ``i64 (i64 number, i64, i64, i64, i64)``."""
    futex: int
    nanosleep: int


_X86_64: Final = _Architecture(
    declarations="""
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
""",
    pause="call void @llvm.x86.sse2.pause()",
    clock="%now = call i64 @llvm.readcyclecounter()",
    save_modes="""
 %modes = alloca i32
 %default = alloca i32
 call void @llvm.x86.sse.stmxcsr(ptr %modes)
 store i32 8064, ptr %default
 call void @llvm.x86.sse.ldmxcsr(ptr %default)
""",
    restore_modes=" call void @llvm.x86.sse.ldmxcsr(ptr %modes)",
    syscall=bytes.fromhex("4889f8 4889f7 4889d6 4889ca 4d89c2 0f05 c3"),
    futex=202,
    nanosleep=35,
)
"""The system call is mov rax,rdi; mov rdi,rsi; mov rsi,rdx; mov rdx,rcx; mov r10,r8; syscall;
ret."""

_AARCH64: Final = _Architecture(
    declarations="""
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
@smelt_counter = private constant [8 x i8] c"\\40\\E0\\3B\\D5\\C0\\03\\5F\\D6", align 16
""",
    pause="call void @llvm.aarch64.isb(i32 15)",
    clock="%now = call i64 @smelt_counter()",  # mrs x0, cntvct_el0; ret
    save_modes="""
 %modes = call i64 @llvm.aarch64.get.fpcr()
 call void @llvm.aarch64.set.fpcr(i64 0)
""",
    restore_modes=" call void @llvm.aarch64.set.fpcr(i64 %modes)",
    syscall=b"".join(
        word.to_bytes(4, "little")
        for word in (
            0xAA0003E8,  # mov x8, x0
            0xAA0103E0,  # mov x0, x1
            0xAA0203E1,  # mov x1, x2
            0xAA0303E2,  # mov x2, x3
            0xAA0403E3,  # mov x3, x4
            0xD4000001,  # svc #0
            0xD65F03C0,  # ret
        )
    ),
    futex=98,
    nanosleep=101,
)
_ARCHITECTURES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}


@functools.cache
def runtime_image(
    architecture: str, system: str = "linux"
) -> tuple[bytes, tuple[tuple[str, int], ...]]:
    """Return the linked native runtime of an architecture and operating system.

    It is compiled for the oldest processors of the architecture, so all engines carry the same
    runtime and a process maps it once.

    Raises:
        UnsupportedError: there is no runtime for the architecture.
    """
    target = target_named("x86-64" if architecture == "x86_64" else architecture)
    return link([compile_ir(runtime_ir(target, system), target)])


def runtime_ir(target: CpuTarget, system: str = "linux") -> str:
    """Return the native runtime for a target and an operating system as LLVM IR.

    Systems other than Linux have no worker loop, because their system calls differ;
    `smelt.devices.cpu` then waits in Python.

    Raises:
        UnsupportedError: there is no runtime for the architecture.
    """
    if target.architecture not in _ARCHITECTURES:
        raise UnsupportedError(f"there is no native runtime for {target.architecture}")
    machine = _ARCHITECTURES[target.architecture]
    linux = system == "linux"
    parts = [machine.declarations, _clock(machine), _relax(machine, linux=linux)]
    parts += [_begin(), _close(), _run(machine)]
    if linux:
        code = "".join(f"\\{byte:02X}" for byte in machine.syscall)
        parts.append(
            f'@smelt_syscall = private constant [{len(machine.syscall)} x i8] c"{code}", align 16'
        )
        parts += [_post(machine), _worker(machine), _execute()]
    return "\n".join(parts)


def _field(result: str, base: str, offset: int) -> str:
    """Return the line that computes the address of a field of a struct."""
    return f" %{result} = getelementptr i8, ptr %{base}, i64 {offset}"


def _load(result: str, kind: str, base: str, offset: int, order: str = "") -> str:
    """Return the lines that load a field of a struct; ``order`` makes the load atomic."""
    align = 4 if kind == "i32" else 8
    how = (
        f"load atomic {kind}, ptr %{result}.at {order}"
        if order
        else f"load {kind}, ptr %{result}.at"
    )
    return f"{_field(f'{result}.at', base, offset)}\n %{result} = {how}, align {align}"


def _clock(machine: _Architecture) -> str:
    return f"""
define i64 @{abi.CLOCK}() {{
 {machine.clock}
 ret i64 %now
}}"""


def _relax(machine: _Architecture, *, linux: bool) -> str:
    """Return the function that a waiting worker calls: pause, and sleep after many calls."""
    if not linux:
        return f"""
define internal void @smelt_relax(i64 %looks) {{
 {machine.pause}
 ret void
}}"""
    nap = f"i64 {machine.nanosleep}, i64 %time.word, i64 0, i64 0, i64 0"
    return f"""
@smelt_nap = private constant [2 x i64] [i64 0, i64 {_NAP_NS}], align 16
define internal void @smelt_relax(i64 %looks) {{
 {machine.pause}
 %patient = icmp ult i64 %looks, {_SPINS_IN_RUN}
 br i1 %patient, label %done, label %sleep
sleep:
 %time.word = ptrtoint ptr @smelt_nap to i64
 %slept = call i64 @smelt_syscall({nap})
 br label %done
done:
 ret void
}}"""


def _for_each_row(body: str) -> str:
    """Return a loop that runs ``body`` with ``%row`` as each row, and then goes to ``%done``.

    ``body`` must end with the lines of `_each_region`.
    """
    return f"""
{_load("rows", "ptr", "list", abi.LIST_ROWS)}
{_load("count", "i64", "list", abi.LIST_COUNT)}
 br label %head
head:
 %index = phi i64 [0, %entry], [%index.next, %region.done]
 %more = icmp ult i64 %index, %count
 br i1 %more, label %body, label %done
body:
 %offset = mul i64 %index, {abi.ROW_BYTES}
 %row = getelementptr i8, ptr %rows, i64 %offset
{body}
 %index.next = add i64 %index, 1
 br label %head"""


def _each_region(body: str) -> str:
    """Return a loop that runs ``body``, one block, with ``%region`` as each region of ``%row``."""
    return f"""
{_load("regions", "i64", "list", abi.LIST_REGIONS)}
 %first.region = getelementptr i8, ptr %row, i64 {abi.ROW_REGIONS}
 br label %region.body
region.body:
 %number = phi i64 [0, %body], [%number.next, %region.body]
 %region.offset = mul i64 %number, {abi.REGION_BYTES}
 %region = getelementptr i8, ptr %first.region, i64 %region.offset
{body}
 %number.next = add i64 %number, 1
 %more.regions = icmp ult i64 %number.next, %regions
 br i1 %more.regions, label %region.body, label %region.done
region.done:"""


def _begin() -> str:
    """Return the function that starts a run: new epoch, all rows not done, all regions full."""
    regions = _each_region(f"""
{_field("next", "region", abi.REGION_NEXT)}
{_load("start", "i64", "region", abi.REGION_START)}
 %word = or i64 %high, %start
 store atomic i64 %word, ptr %next release, align 8""")
    rows = _for_each_row(f"""
{_field("done.at", "row", abi.ROW_DONE)}
{_field("finished", "row", abi.ROW_FINISHED_TICKS)}
 store atomic i64 0, ptr %done.at monotonic, align 8
 store i64 0, ptr %finished, align 8
{regions}""")
    return f"""
define i64 @{abi.BEGIN}(ptr %list) {{
entry:
{_load("before", "i64", "list", abi.LIST_EPOCH)}
 %after = add i64 %before, 1
 %epoch = and i64 %after, 4294967295
 store i64 %epoch, ptr %before.at, align 8
 %high = shl i64 %epoch, 32
{rows}
done:
{_field("started", "list", abi.LIST_STARTED_TICKS)}
 %ticks = call i64 @{abi.CLOCK}()
 store i64 %ticks, ptr %started, align 8
 ret i64 %epoch
}}"""


def _close() -> str:
    """Return the function that closes all regions, so that late workers take nothing."""
    regions = _each_region(f"""
{_field("next", "region", abi.REGION_NEXT)}
 store atomic i64 %word, ptr %next seq_cst, align 8""")
    rows = _for_each_row(regions)
    return f"""
define void @{abi.CLOSE}(ptr %list) {{
entry:
{_load("epoch", "i64", "list", abi.LIST_EPOCH)}
 %high = shl i64 %epoch, 32
 %word = or i64 %high, {_CLOSED}
{rows}
done:
 ret void
}}"""


def _run(machine: _Architecture) -> str:
    """Return the function that goes through the rows; see the notes in `smelt.devices.cpu.abi`.

    A worker that has taken chunks keeps the run from ending until it reports them as done, so all
    that it reads meanwhile belongs to this run. What it read before serves only the
    compare-and-swap, which fails if another run has started.
    """
    return f"""
define void @{abi.RUN}(ptr %list, i64 %epoch, i64 %slot) {{
entry:
{machine.save_modes}
{_load("rows", "ptr", "list", abi.LIST_ROWS)}
{_load("count", "i64", "list", abi.LIST_COUNT)}
{_load("scratches", "ptr", "list", abi.LIST_SCRATCH)}
{_load("stride", "i64", "list", abi.LIST_SCRATCH_STRIDE)}
{_load("timed", "i64", "list", abi.LIST_TIMED)}
{_load("regions", "i64", "list", abi.LIST_REGIONS)}
 %own = urem i64 %slot, %regions
 %own.offset = mul i64 %own, {abi.REGION_BYTES}
 %is.timed = icmp ne i64 %timed, 0
 %mine = mul i64 %slot, %stride
 %scratch = getelementptr i8, ptr %scratches, i64 %mine
 br label %row.head
row.head:
 %i = phi i64 [0, %entry], [%i.next, %row.over]
 %known = phi i64 [0, %entry], [%complete, %row.over]
 %more = icmp ult i64 %i, %count
 br i1 %more, label %row.first, label %end
{_run_wait()}
{_run_take()}
end:
 %is.caller = icmp eq i64 %slot, 0
 br i1 %is.caller, label %last.head, label %leave
{_run_last()}
leave:
{machine.restore_modes}
 ret void
}}"""


def _run_wait() -> str:
    """Return the code that waits until the leading rows are complete or the run is over."""
    return f"""
row.first:
 %offset = mul i64 %i, {abi.ROW_BYTES}
 %row = getelementptr i8, ptr %rows, i64 %offset
 %all.regions = getelementptr i8, ptr %row, i64 {abi.ROW_REGIONS}
 %own.region = getelementptr i8, ptr %all.regions, i64 %own.offset
{_field("own.next", "own.region", abi.REGION_NEXT)}
{_load("wait", "i64", "row", abi.ROW_WAIT_FOR)}
 br label %wait.head
wait.head:
 %complete = phi i64 [%known, %row.first], [%complete.next, %wait.look], [%complete, %wait.again]
 %looks = phi i64 [0, %row.first], [0, %wait.look], [%looks.next, %wait.again]
 %ready = icmp uge i64 %complete, %wait
 br i1 %ready, label %region.head, label %wait.look
wait.look:
 %before.offset = mul i64 %complete, {abi.ROW_BYTES}
 %before = getelementptr i8, ptr %rows, i64 %before.offset
{_load("before.done", "i64", "before", abi.ROW_DONE, "acquire")}
{_load("before.chunks", "i64", "before", abi.ROW_CHUNKS)}
 %complete.next = add i64 %complete, 1
 %is.complete = icmp eq i64 %before.done, %before.chunks
 br i1 %is.complete, label %wait.head, label %wait.not
wait.not:
 %now.word = load atomic i64, ptr %own.next acquire, align 8
 %now.epoch = lshr i64 %now.word, 32
 %same = icmp eq i64 %now.epoch, %epoch
 br i1 %same, label %wait.again, label %leave
wait.again:
 call void @smelt_relax(i64 %looks)
 %looks.next = add i64 %looks, 1
 br label %wait.head"""


def _run_take() -> str:  # gate: one loop of the run, which reads best unbroken
    """Return the code that takes all chunks of the own region, then of the others."""
    return f"""
region.head:
 %number = phi i64 [%own, %wait.head], [%number.wrapped, %region.over]
 %tried = phi i64 [0, %wait.head], [%tried.next, %region.over]
 %mine.region = phi i64 [0, %wait.head], [%mine.done, %region.over]
 %region.offset = mul i64 %number, {abi.REGION_BYTES}
 %region = getelementptr i8, ptr %all.regions, i64 %region.offset
{_field("next.at", "region", abi.REGION_NEXT)}
{_load("last.chunk", "i64", "region", abi.REGION_END)}
{_load("shares", "i64", "row", abi.ROW_SHARES)}
 %word.first = load atomic i64, ptr %next.at acquire, align 8
 br label %take.head
take.head:
 %word = phi i64 [%word.first, %region.head], [%word.seen, %take.try], [%word.again, %work]
 %mine.done = phi i64 [%mine.region, %region.head], [%mine.done, %take.try], [%mine.more, %work]
 %word.epoch = lshr i64 %word, 32
 %current = icmp eq i64 %word.epoch, %epoch
 br i1 %current, label %take.look, label %leave
take.look:
 %begin = and i64 %word, 4294967295
 %some = icmp ult i64 %begin, %last.chunk
 br i1 %some, label %take.try, label %region.over
take.try:
 %left = sub i64 %last.chunk, %begin
 %part = udiv i64 %left, %shares
 %piece = call i64 @llvm.umax.i64(i64 %part, i64 1)
 %word.new = add i64 %word, %piece
 %swap = cmpxchg ptr %next.at, i64 %word, i64 %word.new acq_rel acquire, align 8
 %word.seen = extractvalue {{i64, i1}} %swap, 0
 %won = extractvalue {{i64, i1}} %swap, 1
 br i1 %won, label %work, label %take.head
work:
{_load("function", "ptr", "row", abi.ROW_FUNCTION)}
{_load("arguments", "ptr", "row", abi.ROW_ARGUMENTS)}
 %finish = add i64 %begin, %piece
 call void %function(ptr %arguments, i64 %begin, i64 %finish, ptr %scratch)
 %mine.more = add i64 %mine.done, %piece
 %word.again = load atomic i64, ptr %next.at acquire, align 8
 br label %take.head
region.over:
 %tried.next = add i64 %tried, 1
 %number.next = add i64 %number, 1
 %number.wrapped = urem i64 %number.next, %regions
 %untried = icmp ult i64 %tried.next, %regions
 br i1 %untried, label %region.head, label %row.did
row.did:
 %idle = icmp eq i64 %mine.done, 0
 br i1 %idle, label %row.over, label %row.stamp
row.stamp:
{_field("done.at", "row", abi.ROW_DONE)}
 br i1 %is.timed, label %row.time, label %row.tell
row.time:
{_field("finished.at", "row", abi.ROW_FINISHED_TICKS)}
 %ticks = call i64 @{abi.CLOCK}()
 store atomic i64 %ticks, ptr %finished.at monotonic, align 8
 br label %row.tell
row.tell:
 %done.before = atomicrmw add ptr %done.at, i64 %mine.done acq_rel, align 8
 br label %row.over
row.over:
 %i.next = add i64 %i, 1
 br label %row.head"""


def _run_last() -> str:
    """Return the code in which the caller waits until every row is complete."""
    return f"""
last.head:
 %last = phi i64 [%known, %end], [%last.next, %last.look], [%last, %last.again]
 %last.looks = phi i64 [0, %end], [0, %last.look], [%last.looks.next, %last.again]
 %all = icmp uge i64 %last, %count
 br i1 %all, label %leave, label %last.look
last.look:
 %last.offset = mul i64 %last, {abi.ROW_BYTES}
 %last.row = getelementptr i8, ptr %rows, i64 %last.offset
{_load("last.done", "i64", "last.row", abi.ROW_DONE, "acquire")}
{_load("last.chunks", "i64", "last.row", abi.ROW_CHUNKS)}
 %last.next = add i64 %last, 1
 %last.complete = icmp eq i64 %last.done, %last.chunks
 br i1 %last.complete, label %last.head, label %last.again
last.again:
 call void @smelt_relax(i64 %last.looks)
 %last.looks.next = add i64 %last.looks, 1
 br label %last.head"""


def _post(machine: _Architecture) -> str:
    """Return the function that posts a run to a worker's mailbox and wakes a sleeping worker."""
    wake = f"i64 {machine.futex}, i64 %address, i64 {_FUTEX_WAKE_PRIVATE}, i64 1, i64 0"
    return f"""
define void @{abi.POST}(ptr %mailbox, ptr %list, i64 %slot, i64 %epoch) {{
{_field("list.at", "mailbox", abi.MAILBOX_LIST)}
{_field("slot.at", "mailbox", abi.MAILBOX_SLOT)}
{_field("epoch.at", "mailbox", abi.MAILBOX_EPOCH)}
 store ptr %list, ptr %list.at, align 8
 store i64 %slot, ptr %slot.at, align 8
 store i64 %epoch, ptr %epoch.at, align 8
{_field("posted", "mailbox", abi.MAILBOX_POSTED)}
 %old = atomicrmw add ptr %posted, i32 1 seq_cst, align 4
{_load("sleeps", "i32", "mailbox", abi.MAILBOX_SLEEPS, "seq_cst")}
 %asleep = icmp ne i32 %sleeps, 0
 br i1 %asleep, label %wake, label %done
wake:
 %address = ptrtoint ptr %posted to i64
 %woken = call i64 @smelt_syscall({wake})
 br label %done
done:
 ret void
}}"""


def _worker(machine: _Architecture) -> str:  # gate: one loop, which reads best unbroken
    """Return a worker's loop, which announces sleep and looks again, so that no post is missed."""
    sleep = f"i64 {machine.futex}, i64 %address, i64 {_FUTEX_WAIT_PRIVATE}, i64 %seen.wide, i64 0"
    return f"""
define void @{abi.WORKER}(ptr %mailbox) {{
entry:
{_load("first", "i32", "mailbox", abi.MAILBOX_FINISHED)}
{_load("spins", "i64", "mailbox", abi.MAILBOX_SPINS)}
{_field("posted", "mailbox", abi.MAILBOX_POSTED)}
{_field("sleeps", "mailbox", abi.MAILBOX_SLEEPS)}
{_field("list.at", "mailbox", abi.MAILBOX_LIST)}
{_field("slot.at", "mailbox", abi.MAILBOX_SLOT)}
{_field("epoch.at", "mailbox", abi.MAILBOX_EPOCH)}
{_field("finished", "mailbox", abi.MAILBOX_FINISHED)}
 %address = ptrtoint ptr %posted to i64
 br label %idle
idle:
 %seen = phi i32 [%first, %entry], [%seen.next, %work]
 %seen.wide = zext i32 %seen to i64
 br label %look
look:
 %looks = phi i64 [0, %idle], [%looks.next, %spin], [0, %awake]
 %now = load atomic i32, ptr %posted acquire, align 4
 %new = icmp ne i32 %now, %seen
 br i1 %new, label %found, label %wait
wait:
 %patient = icmp ult i64 %looks, %spins
 br i1 %patient, label %spin, label %sleep
spin:
 {machine.pause}
 %looks.next = add i64 %looks, 1
 br label %look
sleep:
 %announced = atomicrmw xchg ptr %sleeps, i32 1 seq_cst, align 4
 %again = load atomic i32, ptr %posted seq_cst, align 4
 %still = icmp eq i32 %again, %seen
 br i1 %still, label %block, label %awake
block:
 %blocked = call i64 @smelt_syscall({sleep})
 br label %awake
awake:
 store atomic i32 0, ptr %sleeps seq_cst, align 4
 br label %look
found:
 %list = load ptr, ptr %list.at, align 8
 %leave = icmp eq ptr %list, null
 br i1 %leave, label %done, label %work
work:
 %slot = load i64, ptr %slot.at, align 8
 %epoch = load i64, ptr %epoch.at, align 8
 call void @{abi.RUN}(ptr %list, i64 %epoch, i64 %slot)
 %seen.next = add i32 %seen, 1
 store atomic i32 %seen.next, ptr %finished release, align 4
 br label %idle
done:
 %seen.last = add i32 %seen, 1
 store atomic i32 %seen.last, ptr %finished release, align 4
 ret void
}}"""


def _execute() -> str:
    """Return the function that starts a run, posts it to the workers and takes part in it."""
    return f"""
define void @{abi.EXECUTE}(ptr %list, ptr %mailboxes, i64 %count) {{
entry:
 %epoch = call i64 @{abi.BEGIN}(ptr %list)
 br label %head
head:
 %index = phi i64 [0, %entry], [%slot, %body]
 %more = icmp ult i64 %index, %count
 br i1 %more, label %body, label %done
body:
 %at = getelementptr ptr, ptr %mailboxes, i64 %index
 %mailbox = load ptr, ptr %at, align 8
 %slot = add i64 %index, 1
 call void @{abi.POST}(ptr %mailbox, ptr %list, i64 %slot, i64 %epoch)
 br label %head
done:
 call void @{abi.RUN}(ptr %list, i64 %epoch, i64 0)
 ret void
}}"""
