"""The contract between generated code and the device: layouts in bytes, for both halves.

A kernel is ``void kernel(ptr arguments, i64 begin, i64 end, ptr scratch)``. ``arguments`` is an
array of 64-bit words, the operands' addresses and then the scalars; the kernel does the chunks from
``begin`` up to ``end``, which may be any part of all chunks and may be empty; ``scratch`` is the
worker's own and 64-byte aligned. It may be called by any thread, keeps no state, and orders its own
non-temporal stores.

A *run list* is a header and rows, one row a launch. Workers go through the rows in order, wait
until ``WAIT_FOR`` leading rows are complete, and take chunks by compare-and-swap until none is
left. A row's chunks are cut into as many *regions* as workers are expected: each starts in its own,
where its part of the row before was, and then helps in the others'. Nobody counts workers: one that
comes late finds nothing to do, and one that comes from an earlier run finds another epoch and
leaves.

A *mailbox* is where a worker sleeps and finds the next list.
"""

from __future__ import annotations

from typing import Final

from smelt.types import Limit

ABI_VERSION: Final = 2
"""Changes with anything in this file."""

ALIGNMENT_BYTES: Final = 64
"""Alignment of arenas, weights and scratch memory."""

# A row: what does not change during a run on one cache line, what all workers count on another, and
# then a line for each region.
MAX_REGIONS: Final = 4
REGION_BYTES: Final = 64
ROW_REGIONS: Final = 128
ROW_BYTES: Final = ROW_REGIONS + MAX_REGIONS * REGION_BYTES
ROW_FUNCTION: Final = 0
ROW_ARGUMENTS: Final = 8
ROW_CHUNKS: Final = 16
ROW_WAIT_FOR: Final = 24
"""How many leading rows must be complete before this one starts."""
ROW_SHARES: Final = 32
"""A worker takes one share of the chunks that are left in a region: the divisor, at least 1."""
ROW_DONE: Final = 64
ROW_FINISHED_TICKS: Final = 72
"""When the last chunk was done, if the list asks for times; 0 for a row without chunks."""

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
"""Whether finish times are wanted: 0 or 1."""
LIST_STARTED_TICKS: Final = 40
LIST_REGIONS: Final = 48
"""Regions of each row: 1 to `MAX_REGIONS`."""
LIST_EPOCH: Final = 64
"""Number of the latest run."""

# A mailbox.
MAILBOX_BYTES: Final = 128
MAILBOX_POSTED: Final = 0
"""32 bits, for the futex: how many lists were posted."""
MAILBOX_LIST: Final = 8
"""The list to run; null tells the worker to leave."""
MAILBOX_SLOT: Final = 16
MAILBOX_EPOCH: Final = 24
MAILBOX_SPINS: Final = 32
"""How often to look before sleeping."""
MAILBOX_FINISHED: Final = 64
"""32 bits: how many lists were left."""
MAILBOX_SLEEPS: Final = 68
"""32 bits: whether the worker sleeps, or is about to."""

MAX_CHUNKS: Final = Limit.MAX_CHUNKS.most
"""Largest number of chunks of a row."""

# Functions of the native runtime.
EXECUTE: Final = "smelt_execute"
"""``void (ptr list, ptr mailboxes, i64 count)``: one whole run; posts to the mailboxes first."""
RUN: Final = "smelt_run"
"""``void (ptr list, i64 epoch, i64 slot)``: work as one worker until the run is over."""
BEGIN: Final = "smelt_begin"
"""``i64 (ptr list)``: start a new epoch and return it."""
CLOSE: Final = "smelt_close"
"""``void (ptr list)``: make the rows safe to change; workers of earlier runs find no chunk."""
WORKER: Final = "smelt_worker"
"""``void (ptr mailbox)``: sleep and work until told to leave."""
POST: Final = "smelt_post"
"""``void (ptr mailbox, ptr list, i64 slot, i64 epoch)``."""
CLOCK: Final = "smelt_clock"
"""``i64 ()``: ticks of the processor's constant-rate counter."""
