"""Work that the threads of XLA's pool take part in, if it is enough to be worth waking them.

Whoever is free takes the next task; the one that called waits only for tasks that others are at, never for a thread to
wake up, since all of them may be waiting so. So what they share outlives the call until the last one has looked at it.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from eagle_jax.kernels.native.calls import API, CONTEXT, Call
from eagle_jax.kernels.native.code import (
    I32,
    I64,
    POINTER,
    VOID,
    at,
    counting,
    declared,
    i64,
    internal,
    is_null,
    read,
    room,
    smaller,
    write,
)

DESTROY_ERROR, SCHEDULE, COUNT_THREADS = 64, 136, 144  # of XLA's functions, in its table of them
# Vectors multiplied, as powers of two, that are worth one thread more, which the pool keeps awake, and each asleep.
WORTH_ONE, WORTH_MORE = 11, 14
NEXT, DONE, USERS, TASKS, VALUES = 0, 8, 16, 24, 32  # of what they share

Task = Callable[[ir.IRBuilder, ir.Value, Sequence[ir.Value]], None]


def share(call: Call, tasks: ir.Value, work: ir.Value, values: Sequence[ir.Value], task: Task) -> None:
    """Builds `task(builder, index, values)` for every index below `tasks`.

    Args:
        work: vectors multiplied in all.
        values: what tasks know, handed to functions of their own.
    """
    builder = call.builder
    run = _runner(call, values, task)
    claim = _claimer(call, run)
    alone = room(builder, VALUES + 8 * len(values))

    def filled(job: ir.Value) -> None:
        for offset, value in ((NEXT, i64(0)), (DONE, i64(0)), (USERS, i64(1)), (TASKS, tasks)):
            write(builder, value, at(builder, job, offset))
        for index, value in enumerate(values):
            write(builder, value, at(builder, job, VALUES + 8 * index))

    def by_one() -> None:
        filled(alone)
        with counting(builder, tasks) as index:
            builder.call(run, [alone, index])

    count = _worth(call, tasks, work)
    with builder.if_else(builder.icmp_unsigned("==", count, i64(0))) as (then, otherwise):
        with then:
            by_one()
        with otherwise:
            size = i64(VALUES + 8 * len(values))
            job = builder.call(declared(call.module, "malloc", ir.FunctionType(POINTER, [I64])), [size])
            filled(job)
            _with_help(call, job, claim, count)


def _worth(call: Call, tasks: ir.Value, work: ir.Value) -> ir.Value:
    """How many other threads should come."""
    builder, found = call.builder, room(call.builder, 8)
    write(builder, i64(0), found)
    is_one, is_more = builder.lshr(work, i64(WORTH_ONE)), builder.lshr(work, i64(WORTH_MORE))
    several = builder.and_(builder.icmp_unsigned("!=", is_one, i64(0)), builder.icmp_unsigned(">", tasks, i64(1)))
    with builder.if_then(several):
        most = builder.sub(smaller(builder, _threads(call), tasks), i64(1))
        write(builder, smaller(builder, builder.add(is_more, i64(1)), most), found)
    return read(builder, found, I64)


def _runner(call: Call, values: Sequence[ir.Value], task: Task) -> ir.Function:
    """`run(job, index)`: one task."""
    run = internal(call.module, f"{call.name}_run", [POINTER, I64])
    job, index = run.args
    builder = ir.IRBuilder(run.append_basic_block("entry"))
    known = [read(builder, at(builder, job, VALUES + 8 * i), value.type) for i, value in enumerate(values)]
    task(builder, index, known)
    builder.ret_void()
    return run


def _claimer(call: Call, run: ir.Function) -> ir.Function:
    """`claim(job)`: tasks, one after another, until none is left that nobody is at."""
    claim = internal(call.module, f"{call.name}_claim", [POINTER])
    (job,) = claim.args
    builder = ir.IRBuilder(claim.append_basic_block("entry"))
    tasks = read(builder, at(builder, job, TASKS), I64)
    head, body, after = (claim.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.atomic_rmw("add", at(builder, job, NEXT), i64(1), "acq_rel")
    builder.cbranch(builder.icmp_unsigned("<", index, tasks), body, after)
    builder.position_at_end(body)
    builder.call(run, [job, index])
    builder.atomic_rmw("add", at(builder, job, DONE), i64(1), "acq_rel")
    builder.branch(head)
    builder.position_at_end(after)
    builder.ret_void()
    return claim


def _with_help(call: Call, job: ir.Value, claim: ir.Function, helpers: ir.Value) -> None:
    """All tasks, with so many other threads."""
    builder, help_ = call.builder, _helper(call, claim)
    schedule = _function_of_xla(call, SCHEDULE)
    told = room(builder, 40)
    with counting(builder, helpers):
        builder.atomic_rmw("add", at(builder, job, USERS), i64(1), "acq_rel")
        context = read(builder, at(builder, call.frame, CONTEXT), POINTER)
        for offset, value in ((0, i64(40)), (8, i64(0)), (16, context), (24, help_), (32, job)):
            write(builder, value, at(builder, told, offset))
        error = builder.call(schedule, [told])
        with builder.if_then(builder.not_(is_null(builder, error))):  # nobody comes
            _destroy(call, error)
            builder.atomic_rmw("sub", at(builder, job, USERS), i64(1), "acq_rel")
    builder.call(claim, [job])
    tasks = read(builder, at(builder, job, TASKS), I64)
    wait, pause, over = (builder.append_basic_block(name) for name in ("wait", "pause", "over"))
    builder.branch(wait)
    builder.position_at_end(wait)
    done = builder.load_atomic(at(builder, job, DONE), "acquire", 8, typ=I64)
    builder.cbranch(builder.icmp_unsigned("<", done, tasks), pause, over)
    builder.position_at_end(pause)
    builder.call(declared(call.module, "sched_yield", ir.FunctionType(I32, [])), [])
    builder.branch(wait)
    builder.position_at_end(over)
    _left(builder, call.module, job)


def _helper(call: Call, claim: ir.Function) -> ir.Function:
    """What a thread of the pool is given."""
    help_ = internal(call.module, f"{call.name}_help", [POINTER])
    (job,) = help_.args
    builder = ir.IRBuilder(help_.append_basic_block("entry"))
    builder.call(claim, [job])
    _left(builder, call.module, job)
    builder.ret_void()
    return help_


def _left(builder: ir.IRBuilder, module: ir.Module, job: ir.Value) -> None:
    """One looks at the job no more; the last one frees it."""
    before = builder.atomic_rmw("sub", at(builder, job, USERS), i64(1), "acq_rel")
    with builder.if_then(builder.icmp_unsigned("==", before, i64(1))):
        builder.call(declared(module, "free", ir.FunctionType(VOID, [POINTER])), [job])


def _threads(call: Call) -> ir.Value:
    """Of XLA's pool; 1 where it does not tell."""
    builder = call.builder
    told, found = room(builder, 32), room(builder, 8)
    write(builder, i64(1), found)
    context = read(builder, at(builder, call.frame, CONTEXT), POINTER)
    for offset, value in ((0, i64(32)), (8, i64(0)), (16, context), (24, found)):
        write(builder, value, at(builder, told, offset))
    error = builder.call(_function_of_xla(call, COUNT_THREADS), [told])
    with builder.if_then(builder.not_(is_null(builder, error))):
        _destroy(call, error)
        write(builder, i64(1), found)
    return read(builder, found, I64)


def _destroy(call: Call, error: ir.Value) -> None:
    """Errors are their receiver's."""
    told = room(call.builder, 24)
    for offset, value in ((0, i64(24)), (8, i64(0)), (16, error)):
        write(call.builder, value, at(call.builder, told, offset))
    call.builder.call(_function_of_xla(call, DESTROY_ERROR), [told])


def _function_of_xla(call: Call, offset: int) -> ir.Value:
    builder = call.builder
    api = read(builder, at(builder, call.frame, API), POINTER)
    pointer = read(builder, at(builder, api, offset), I64)
    return builder.inttoptr(pointer, ir.FunctionType(POINTER, [POINTER]).as_pointer())
