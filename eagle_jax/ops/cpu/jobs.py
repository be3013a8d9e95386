"""A job that threads share: its layout in memory, and how long it lives.

The job outlives the call that made it until the last thread has released it. Its layout in cache lines, with those of
each phase after:

    USERS JOINED                            written by all
    PHASES SHARES CONTEXT MEMORY CALLER     read by all; the context lies in the caller's stack frame

    DONE                                    of a phase: number of tasks
    TASKS RUN                               `RUN(CONTEXT, index)` runs one task
    next task of a share                    one line for each share
"""

from collections.abc import Sequence

from llvmlite import ir

from eagle_jax.ops.cpu.code import I64, POINTER, VOID, at, declare, for_range, i64, read, write
from eagle_jax.ops.cpu.worker_pool import LINE

USERS, JOINED = 0, 8
PHASES, SHARES, CONTEXT, MEMORY, CALLER = (LINE + 8 * index for index in range(5))
FIRST = 2 * LINE  # offset of the first phase
DONE, TASKS, RUN, NEXT = 0, LINE, LINE + 8, 2 * LINE  # offsets in a phase


def allocate(
    builder: ir.IRBuilder, shares: ir.Value, context: ir.Value, phases: Sequence[tuple[ir.Value, ir.Function]]
) -> ir.Value:
    """Allocates a job, with its caller as the first user.

    Args:
        shares: number of shares of each phase.
        context: address of the values that the tasks need.
        phases: number of tasks and the function that runs one, for each phase.
    """
    lines = builder.add(i64(FIRST + LINE), builder.mul(i64(len(phases)), _size(builder, shares)))
    memory = builder.call(declare(builder.module, "malloc", ir.FunctionType(POINTER, [I64])), [lines])
    begin = builder.add(builder.ptrtoint(memory, I64), i64(LINE - 1))
    job = builder.inttoptr(builder.and_(begin, i64(-LINE)), POINTER)
    for offset, value in ((USERS, i64(1)), (JOINED, i64(0)), (PHASES, i64(len(phases))), (SHARES, shares)):
        write(builder, value, at(builder, job, offset))
    for offset, value in ((CONTEXT, context), (MEMORY, memory), (CALLER, this_thread(builder))):
        write(builder, value, at(builder, job, offset))
    for index, (tasks, run) in enumerate(phases):
        address = phase_address(builder, job, i64(index), shares)
        for offset, value in ((DONE, i64(0)), (TASKS, tasks), (RUN, run)):
            write(builder, value, at(builder, address, offset))
        with for_range(builder, shares) as share:
            first = first_task(builder, tasks, share, shares)
            write(builder, first, at(builder, at(builder, address, NEXT), share, LINE))
    return job


def _size(builder: ir.IRBuilder, shares: ir.Value) -> ir.Value:
    """Returns the size in bytes of a phase."""
    return builder.add(i64(NEXT), builder.mul(shares, i64(LINE)))


def phase_address(builder: ir.IRBuilder, job: ir.Value, index: ir.Value, shares: ir.Value) -> ir.Value:
    """Returns the address of a phase."""
    return at(builder, at(builder, job, FIRST), index, _size(builder, shares))


def first_task(builder: ir.IRBuilder, tasks: ir.Value, share: ir.Value, shares: ir.Value) -> ir.Value:
    """Returns the index of the first task of a share."""
    return builder.udiv(builder.mul(tasks, share), shares)


def this_thread(builder: ir.IRBuilder) -> ir.Value:
    return builder.call(declare(builder.module, "pthread_self", ir.FunctionType(I64, [])), [])


def release(builder: ir.IRBuilder, job: ir.Value) -> None:
    """Releases the job; the last user frees it."""
    users_before = builder.atomic_rmw("sub", at(builder, job, USERS), i64(1), "acq_rel")
    with builder.if_then(builder.icmp_unsigned("==", users_before, i64(1))):
        memory = read(builder, at(builder, job, MEMORY), POINTER)
        builder.call(declare(builder.module, "free", ir.FunctionType(VOID, [POINTER])), [memory])
