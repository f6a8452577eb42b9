"""ABI between generated code and the CPU device: layouts in bytes and function names.

A kernel is ``void kernel(ptr arguments, i64 begin, i64 end, ptr scratch)``. ``arguments`` is an
array of 64-bit words: the operands' addresses, then the scalars. The kernel processes the chunks
from ``begin`` up to ``end`` (exclusive), any possibly empty part of all chunks. ``scratch`` is
private to the worker and 64-byte aligned. A kernel may be called by any thread, keeps no state, and
orders its own non-temporal stores.

A *run list* consists of a header and one row per launch. Workers process the rows in order: they
wait until ``WAIT_FOR`` leading rows are complete, and take chunks by compare-and-swap until none is
left. The chunks of a row are divided into as many *regions* as workers are expected. Each worker
starts in its own region, which reuses its part of the row before, and then helps in the others. The
number of workers is not counted: a late worker finds no chunks, and a worker from an earlier run
finds another epoch and leaves.

A *mailbox* is the memory in which a worker waits for the next list.
"""

from __future__ import annotations

from typing import Final

from smelt.types import Limit

ABI_VERSION: Final = 2
"""Version of this ABI; it changes with any change of this file's constants."""

ALIGNMENT_BYTES: Final = 64
"""Alignment of arenas, weights and scratch memory."""

# A row: constant fields on one cache line, counters that all workers update on another, and then a
# line for each region.
MAX_REGIONS: Final = 4
REGION_BYTES: Final = 64
ROW_REGIONS: Final = 128
ROW_BYTES: Final = ROW_REGIONS + MAX_REGIONS * REGION_BYTES
ROW_FUNCTION: Final = 0
ROW_ARGUMENTS: Final = 8
ROW_CHUNKS: Final = 16
ROW_WAIT_FOR: Final = 24
"""Number of leading rows that must be complete before this one starts."""
ROW_SHARES: Final = 32
"""Divisor of the remaining chunks of a region that a worker takes at once; at least 1."""
ROW_DONE: Final = 64
ROW_FINISHED_TICKS: Final = 72
"""Time at which the last chunk was complete, in a timed run; 0 for a row without chunks."""

# A region.
REGION_NEXT: Final = 0
"""Epoch in the upper half, next chunk in the lower."""
REGION_START: Final = 8
REGION_END: Final = 16

# The header of a run list.
LIST_BYTES: Final = 128
LIST_ROWS: Final = 0
LIST_COUNT: Final = 8
LIST_SCRATCH: Final = 16
LIST_SCRATCH_STRIDE: Final = 24
"""Bytes from one worker's scratch memory to the next."""
LIST_TIMED: Final = 32
"""Whether finish times are recorded: 0 or 1."""
LIST_STARTED_TICKS: Final = 40
LIST_REGIONS: Final = 48
"""Regions of each row: 1 to `MAX_REGIONS`."""
LIST_EPOCH: Final = 64
"""Number of the last run."""

# A mailbox.
MAILBOX_BYTES: Final = 128
MAILBOX_POSTED: Final = 0
"""Futex word, 32 bits: number of lists that were posted."""
MAILBOX_LIST: Final = 8
"""The list to run; null tells the worker to leave."""
MAILBOX_SLOT: Final = 16
MAILBOX_EPOCH: Final = 24
MAILBOX_SPINS: Final = 32
"""Number of polls before the worker sleeps."""
MAILBOX_FINISHED: Final = 64
"""32 bits: number of lists that the worker has left."""
MAILBOX_SLEEPS: Final = 68
"""32 bits: whether the worker sleeps or is about to sleep."""

MAX_CHUNKS: Final = Limit.MAX_CHUNKS.most
"""Largest number of chunks of a row."""

# Functions of the native runtime.
EXECUTE: Final = "smelt_execute"
"""``void (ptr list, ptr mailboxes, i64 count)``: one whole run; posts to the mailboxes first."""
RUN: Final = "smelt_run"
"""``void (ptr list, i64 epoch, i64 slot)``: work as one worker until the run is complete."""
BEGIN: Final = "smelt_begin"
"""``i64 (ptr list)``: start a new epoch and return it."""
CLOSE: Final = "smelt_close"
"""``void (ptr list)``: make the rows safe to change; workers of earlier runs find no chunk."""
WORKER: Final = "smelt_worker"
"""``void (ptr mailbox)``: worker loop; returns when a null list is posted."""
POST: Final = "smelt_post"
"""``void (ptr mailbox, ptr list, i64 slot, i64 epoch)``: hand a list to a worker."""
CLOCK: Final = "smelt_clock"
"""``i64 ()``: ticks of the processor's constant-rate counter."""
