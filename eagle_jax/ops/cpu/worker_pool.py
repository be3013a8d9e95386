"""Threads of XLA's pool that, after a job, spin for a moment to take the next one.

Scheduling a thread through XLA takes longer than many a product of a small model. A spinning thread owns a slot and
polls it: whoever has a job for it stores the job's address there. There is one table of slots in a process.

A slot is `EMPTY`, its thread is `FREE` or `BUSY`, or it holds the address of a job that its thread has not taken yet.
No thread spins for ever, since XLA needs its pool too.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

from llvmlite import ir

from eagle_jax.ops.cpu.code import (
    I64,
    NULL,
    POINTER,
    VOID,
    Code,
    alloca,
    at,
    for_range,
    forever,
    i64,
    pause,
    read,
    write,
)
from eagle_jax.ops.cpu.hardware import cache_line

# Slots, each in a cache line of its own. The line before them holds the number of slots that were ever used and, at
# NUM_CALLED, of threads that were scheduled and have not started yet.
SLOTS, LINE, NUM_CALLED = 64, cache_line(), 8
EMPTY, FREE, BUSY = (i64(number) for number in range(3))
POLL_LIMIT, JOB_LIMIT = 1000, 256  # polls (some 20 microseconds) and jobs, after which a thread leaves
SET_TABLE, TABLE = "eagle_jax_set_table", "eagle_jax_slots"

_memory = ctypes.create_string_buffer(LINE * (SLOTS + 2))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_memory))  # threads may poll it until the process ends

if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=lambda: ctypes.memset(_memory, 0, len(_memory)))


def build(module: ir.Module) -> None:
    """Adds the function that `pass_table` calls."""
    table = ir.GlobalVariable(module, POINTER, TABLE)
    table.linkage, table.initializer = "internal", NULL
    set_table = ir.Function(module, ir.FunctionType(VOID, [POINTER]), SET_TABLE)
    builder = ir.IRBuilder(set_table.append_basic_block("entry"))
    write(builder, set_table.args[0], table)
    builder.ret_void()


def pass_table(code: Code) -> None:
    """Passes the address of the table of slots to compiled code."""
    set_table = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address(SET_TABLE))
    set_table(-(-ctypes.addressof(_memory) // LINE) * LINE)


def num_waiting(builder: ir.IRBuilder) -> ir.Value:
    """Returns the number of threads that wait for a job."""
    count = alloca(builder, 8)
    write(builder, i64(0), count)
    with _slots(builder) as slot:
        is_free = builder.icmp_unsigned("==", _load(builder, slot), FREE)
        write(builder, builder.add(read(builder, count, I64), builder.zext(is_free, I64)), count)
    return read(builder, count, I64)


def submit(builder: ir.IRBuilder, job: ir.Value, limit: ir.Value, users: ir.Value) -> ir.Value:
    """Gives a job to at most `limit` waiting threads.

    Args:
        users: address of a counter that is increased by one for each of them.

    Returns:
        Their number.
    """
    count = alloca(builder, 8)
    write(builder, i64(0), count)
    with _slots(builder) as slot:
        below_limit = builder.icmp_unsigned("<", read(builder, count, I64), limit)
        is_free = builder.icmp_unsigned("==", _load(builder, slot), FREE)
        with builder.if_then(builder.and_(below_limit, is_free)):
            builder.atomic_rmw("add", users, i64(1), "acq_rel")
            submitted = _exchange(builder, slot, FREE, builder.ptrtoint(job, I64))
            with builder.if_else(submitted) as (then, otherwise):
                with then:
                    write(builder, builder.add(read(builder, count, I64), i64(1)), count)
                with otherwise:
                    builder.atomic_rmw("sub", users, i64(1), "acq_rel")
    return read(builder, count, I64)


def count_called(builder: ir.IRBuilder, number: int) -> None:
    """Adds to the number of threads that were scheduled and have not started; negative when they start."""
    builder.atomic_rmw("add", at(builder, _table(builder), NUM_CALLED), i64(number), "acq_rel")


def num_missing(builder: ir.IRBuilder) -> ir.Value:
    """Returns the number of threads that were scheduled and have not started yet."""
    return builder.load_atomic(at(builder, _table(builder), NUM_CALLED), "monotonic", 8, typ=I64)


def work_loop(builder: ir.IRBuilder, run_job: Callable[[ir.IRBuilder, ir.Value], None]) -> None:
    """Builds the loop in which a thread waits for jobs, if a slot is empty; `run_job(builder, job)` builds one job."""
    slot_address, polls, num_jobs = (alloca(builder, 8) for _ in range(3))
    write(builder, NULL, slot_address)
    write(builder, i64(0), num_jobs)
    with for_range(builder, i64(SLOTS)) as index:
        slot = at(builder, _table(builder), builder.add(index, i64(1)), LINE)
        has_none = builder.icmp_unsigned("==", builder.ptrtoint(read(builder, slot_address, POINTER), I64), i64(0))
        is_empty = builder.icmp_unsigned("==", _load(builder, slot), EMPTY)
        with builder.if_then(builder.and_(has_none, is_empty)), builder.if_then(_exchange(builder, slot, EMPTY, FREE)):
            write(builder, slot, slot_address)
            builder.atomic_rmw("umax", _table(builder), builder.add(index, i64(1)), "acq_rel")
    slot = read(builder, slot_address, POINTER)
    with builder.if_then(builder.icmp_unsigned("!=", builder.ptrtoint(slot, I64), i64(0))):
        write(builder, i64(0), polls)
        with forever(builder) as leave:
            job = builder.load_atomic(slot, "acquire", 8, typ=I64)
            with builder.if_then(builder.icmp_unsigned(">", job, BUSY)):
                builder.atomic_rmw("xchg", slot, BUSY, "acq_rel")
                run_job(builder, builder.inttoptr(job, POINTER))
                builder.atomic_rmw("xchg", slot, FREE, "acq_rel")
                write(builder, i64(0), polls)
                write(builder, builder.add(read(builder, num_jobs, I64), i64(1)), num_jobs)
            pause(builder)
            write(builder, builder.add(read(builder, polls, I64), i64(1)), polls)
            is_idle = builder.icmp_unsigned(">", read(builder, polls, I64), i64(POLL_LIMIT))
            has_done_enough = builder.icmp_unsigned(">", read(builder, num_jobs, I64), i64(JOB_LIMIT))
            with builder.if_then(builder.or_(is_idle, has_done_enough)):
                write(builder, i64(0), polls)
                with builder.if_then(_exchange(builder, slot, FREE, EMPTY)):
                    builder.branch(leave)


@contextlib.contextmanager
def _slots(builder: ir.IRBuilder) -> Iterator[ir.Value]:
    """Builds a loop over the slots that were ever used."""
    table = _table(builder)
    with for_range(builder, builder.load_atomic(table, "monotonic", 8, typ=I64)) as index:
        yield at(builder, table, builder.add(index, i64(1)), LINE)


def _table(builder: ir.IRBuilder) -> ir.Value:
    return read(builder, builder.module.globals[TABLE], POINTER)


def _load(builder: ir.IRBuilder, slot: ir.Value) -> ir.Value:
    return builder.load_atomic(slot, "monotonic", 8, typ=I64)


def _exchange(builder: ir.IRBuilder, slot: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
    """Compares and exchanges; returns whether the slot held `old`."""
    return builder.extract_value(builder.cmpxchg(slot, old, new, "acq_rel", "acquire"), 1)
