"""Work that the threads of XLA's pool take part in, if it is enough to be worth calling them.

Work comes in phases, of which none begins before the one before is done, and the tasks of a phase in as many shares as
there are threads. Each begins with a share of its own, so that it finds in its core's cache what it wrote there in the
phase before; who is done, and sees after a moment that others are not, takes tasks of theirs. Nobody waits for a thread
to come, since all of them may be waiting so, but only for tasks that others are at. What they have in common, the job,
outlives the call until the last one has looked at it. It has these lines, of the cache, and those of each phase behind:

    USERS JOINED                          written by all
    PHASES SHARES KNOWN MEMORY CALLER     read by all; what is known is the caller's

    DONE                                  of a phase: tasks
    TASKS RUN                             `RUN(KNOWN, index)` is one
    next task of a share                  of each share in turn
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from llvmlite import ir

from eagle_jax.ops.cpu import crew
from eagle_jax.ops.cpu.calls import FRAME, Call, call_xla
from eagle_jax.ops.cpu.code import (
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
    larger,
    pause,
    read,
    repeating,
    room,
    smaller,
    write,
)
from eagle_jax.ops.cpu.crew import LINE

# Vectors multiplied, as powers of two, that are worth a thread that waits in the crew; one of the pool, which keeps one
# awake; and each further one, asleep.
WORTH_WAITING, WORTH_ONE, WORTH_MORE = 9, 11, 14
USERS, JOINED = 0, 8
PHASES, SHARES, KNOWN, MEMORY, CALLER = (LINE + 8 * index for index in range(5))
FIRST = 2 * LINE  # phase
DONE, TASKS, RUN, NEXT = 0, LINE, LINE + 8, 2 * LINE  # of a phase
GRACE, PATIENCE = 32, 1000  # looks at what is done, before others' shares are taken, and before others may have the CPU
RUN_KIND = ir.FunctionType(VOID, [POINTER, I64]).as_pointer()


@dataclasses.dataclass(frozen=True)
class Phase:
    """Tasks that wait for nothing but the phase before.

    Attributes:
        tasks: how many.
        task: `task(builder, index, known)` builds one.
    """

    tasks: ir.Value
    task: Callable[[ir.IRBuilder, ir.Value, Any], None]


def share(call: Call, phases: Sequence[Phase], work: ir.Value, known: Any, name: str = "") -> None:
    """Builds all tasks of all phases.

    Args:
        work: vectors multiplied in all.
        known: the values that tasks know, in any pytree; they are handed to functions of their own.
        name: of these phases, where a handler shares several times.
    """
    builder = call.builder
    values, tree = jax.tree.flatten(known)
    runs = [_runner(call, f"{call.name}{name}_run_{index}", values, tree, phase) for index, phase in enumerate(phases)]
    place = room(builder, 8 * len(values))
    for index, value in enumerate(values):
        write(builder, value, at(builder, place, index, 8))
    most = functools.reduce(functools.partial(larger, builder), (phase.tasks for phase in phases))
    waiting, called = _worth(call, most, work)
    helpers = larger(builder, waiting, called)
    with builder.if_else(builder.icmp_unsigned("==", helpers, i64(0))) as (then, otherwise):
        with then:
            for phase, run in zip(phases, runs, strict=True):
                with counting(builder, phase.tasks) as index:
                    builder.call(run, [place, index])
        with otherwise:
            job = _job(builder, builder.add(helpers, i64(1)), place, list(zip(phases, runs, strict=True)))
            asked = crew.ask(builder, job, waiting, at(builder, job, USERS))
            _call_for_help(call, job, builder.sub(larger(builder, called, asked), asked))
            builder.call(_worker(call.module), [job, i64(0)])
            _left(builder, job)


def _worth(call: Call, tasks: ir.Value, work: ir.Value) -> tuple[ir.Value, ir.Value]:
    """How many of the threads that wait should help, and for how many the pool should be called, if too few wait."""
    builder, waiting, called = call.builder, room(call.builder, 8), room(call.builder, 8)
    for found in (waiting, called):
        write(builder, i64(0), found)

    def times(power: int) -> ir.Value:
        return builder.lshr(work, i64(power))

    several = builder.icmp_unsigned(">", tasks, i64(1))
    with builder.if_then(builder.and_(several, builder.icmp_unsigned("!=", times(WORTH_WAITING), i64(0)))):
        most = builder.sub(smaller(builder, _threads(call), tasks), i64(1))
        write(builder, smaller(builder, smaller(builder, crew.free(builder), times(WORTH_WAITING)), most), waiting)
        with builder.if_then(builder.icmp_unsigned("!=", times(WORTH_ONE), i64(0))):
            write(builder, smaller(builder, builder.add(times(WORTH_MORE), i64(1)), most), called)
    return read(builder, waiting, I64), read(builder, called, I64)


def _runner(call: Call, name: str, values: Sequence[ir.Value], tree: Any, phase: Phase) -> ir.Function:
    """`run(known, index)`: one task."""
    run = internal(call.module, name, [POINTER, I64])
    known, index = run.args
    builder = ir.IRBuilder(run.append_basic_block("entry"))
    read_ = [read(builder, at(builder, known, i, 8), value.type) for i, value in enumerate(values)]
    phase.task(builder, index, jax.tree.unflatten(tree, read_))
    builder.ret_void()
    return run


def _job(
    builder: ir.IRBuilder, shares: ir.Value, known: ir.Value, phases: Sequence[tuple[Phase, ir.Function]]
) -> ir.Value:
    """A new job, which its caller uses."""
    lines = builder.add(i64(FIRST + LINE), builder.mul(i64(len(phases)), _size(builder, shares)))
    memory = builder.call(declared(builder.module, "malloc", ir.FunctionType(POINTER, [I64])), [lines])
    begin = builder.add(builder.ptrtoint(memory, I64), i64(LINE - 1))
    job = builder.inttoptr(builder.and_(begin, i64(-LINE)), POINTER)
    for offset, value in ((USERS, i64(1)), (JOINED, i64(0)), (PHASES, i64(len(phases))), (SHARES, shares)):
        write(builder, value, at(builder, job, offset))
    for offset, value in ((KNOWN, known), (MEMORY, memory), (CALLER, _this_thread(builder))):
        write(builder, value, at(builder, job, offset))
    for index, (phase, run) in enumerate(phases):
        here = _phase(builder, job, i64(index), shares)
        for offset, value in ((DONE, i64(0)), (TASKS, phase.tasks), (RUN, run)):
            write(builder, value, at(builder, here, offset))
        with counting(builder, shares) as share_:
            write(
                builder,
                _begin(builder, phase.tasks, share_, shares),
                at(builder, at(builder, here, NEXT), share_, LINE),
            )
    return job


def _size(builder: ir.IRBuilder, shares: ir.Value) -> ir.Value:
    """Bytes of a phase."""
    return builder.add(i64(NEXT), builder.mul(shares, i64(LINE)))


def _phase(builder: ir.IRBuilder, job: ir.Value, index: ir.Value, shares: ir.Value) -> ir.Value:
    """Where a phase is."""
    return at(builder, at(builder, job, FIRST), index, _size(builder, shares))


def _begin(builder: ir.IRBuilder, tasks: ir.Value, share_: ir.Value, shares: ir.Value) -> ir.Value:
    """The first task of a share."""
    return builder.udiv(builder.mul(tasks, share_), shares)


def _worker(module: ir.Module) -> ir.Function:
    """`work(job, share)`: of every phase the tasks of this share, and of others if they are late."""
    name = "eagle_jax_work"
    if name in module.globals:
        return module.globals[name]
    work = internal(module, name, [POINTER, I64])
    job, first = work.args
    builder = ir.IRBuilder(work.append_basic_block("entry"))
    phases, shares = (read(builder, at(builder, job, offset), I64) for offset in (PHASES, SHARES))
    with counting(builder, phases) as index:
        phase = _phase(builder, job, index, shares)
        tasks, run = (read(builder, at(builder, phase, offset), I64) for offset in (TASKS, RUN))
        taken = functools.partial(_take, builder, (job, phase), (shares, tasks), builder.inttoptr(run, RUN_KIND))
        taken(first)
        joined = builder.load_atomic(at(builder, job, JOINED), "monotonic", 8, typ=I64)
        all_here = builder.icmp_unsigned(">=", builder.add(joined, i64(1)), shares)
        done = at(builder, phase, DONE)
        _wait(builder, done, tasks, builder.select(all_here, i64(GRACE), i64(0)))
        with builder.if_then(_is_less(builder, done, tasks)):
            with counting(builder, shares, i64(1)) as step:
                taken(builder.urem(builder.add(first, step), shares))
            _wait(builder, done, tasks)
    builder.ret_void()
    return work


def _take(
    builder: ir.IRBuilder,
    places: tuple[ir.Value, ir.Value],
    counts: tuple[ir.Value, ir.Value],
    run: ir.Value,
    share_: ir.Value,
) -> None:
    """Does the tasks of a share that nobody is at.

    Args:
        places: of the job and of the phase.
        counts: of shares and of tasks.
    """
    (job, phase), (shares, tasks), mine = places, counts, room(builder, 8)
    end = _begin(builder, tasks, builder.add(share_, i64(1)), shares)
    next_, known = at(builder, at(builder, phase, NEXT), share_, LINE), read(builder, at(builder, job, KNOWN), POINTER)
    write(builder, i64(0), mine)
    with repeating(builder) as leave:
        task = builder.atomic_rmw("add", next_, i64(1), "acq_rel")
        with builder.if_then(builder.icmp_unsigned(">=", task, end)):
            builder.branch(leave)
        builder.call(run, [known, task])
        write(builder, builder.add(read(builder, mine, I64), i64(1)), mine)
    count = read(builder, mine, I64)
    with builder.if_then(builder.icmp_unsigned("!=", count, i64(0))):
        builder.atomic_rmw("add", at(builder, phase, DONE), count, "acq_rel")


def _wait(builder: ir.IRBuilder, done: ir.Value, tasks: ir.Value, most: ir.Value | None = None) -> None:
    """Until all tasks of a phase are done, or for so many looks."""
    looks = room(builder, 8)
    write(builder, i64(0), looks)
    with repeating(builder) as leave:
        with builder.if_then(builder.not_(_is_less(builder, done, tasks))):
            builder.branch(leave)
        count = read(builder, looks, I64)
        if most is not None:
            with builder.if_then(builder.icmp_unsigned(">=", count, most)):
                builder.branch(leave)
        pause(builder)
        write(builder, builder.add(count, i64(1)), looks)
        with builder.if_then(builder.icmp_unsigned(">", count, i64(PATIENCE))):
            builder.call(declared(builder.module, "sched_yield", ir.FunctionType(I32, [])), [])


def _is_less(builder: ir.IRBuilder, done: ir.Value, tasks: ir.Value) -> ir.Value:
    """Whether less is done than there is."""
    return builder.icmp_unsigned("<", builder.load_atomic(done, "acquire", 8, typ=I64), tasks)


def _call_for_help(call: Call, job: ir.Value, helpers: ir.Value) -> None:
    """Gives the job to so many threads of the pool, less those that were called and have not come yet."""
    builder, help_ = call.builder, _helper(call.module)
    missing = smaller(builder, crew.missing(builder), helpers)
    with counting(builder, builder.sub(helpers, missing)):
        builder.atomic_rmw("add", at(builder, job, USERS), i64(1), "acq_rel")
        crew.calls(builder, 1)
        fields = {"ctx": _context(call), "task": help_, "data": job}
        error = call_xla(builder, call.frame, "XLA_FFI_ThreadPool_Schedule", fields)
        with builder.if_then(builder.not_(is_null(builder, error))):  # nobody comes
            _destroy(call, error)
            crew.calls(builder, -1)
            builder.atomic_rmw("sub", at(builder, job, USERS), i64(1), "acq_rel")


def _helper(module: ir.Module) -> ir.Function:
    """What a thread of the pool is given: `help(job)`, after which it stays in the crew for more.

    XLA may run it in the thread that calls, which then is to go on with its own work.
    """
    name = "eagle_jax_help"
    if name in module.globals:
        return module.globals[name]
    help_ = internal(module, name, [POINTER])
    (job,) = help_.args
    builder = ir.IRBuilder(help_.append_basic_block("entry"))
    crew.calls(builder, -1)
    caller = read(builder, at(builder, job, CALLER), I64)
    with builder.if_then(builder.icmp_unsigned("==", caller, _this_thread(builder))):
        _left(builder, job)
        builder.ret_void()
    _join(builder, job)
    with builder.if_then(builder.icmp_unsigned("==", crew.missing(builder), i64(0))):
        crew.stay(builder, _join)
    builder.ret_void()
    return help_


def _this_thread(builder: ir.IRBuilder) -> ir.Value:
    return builder.call(declared(builder.module, "pthread_self", ir.FunctionType(I64, [])), [])


def _join(builder: ir.IRBuilder, job: ir.Value) -> None:
    """A helper's part of a job."""
    joined = builder.atomic_rmw("add", at(builder, job, JOINED), i64(1), "acq_rel")
    builder.call(_worker(builder.module), [job, builder.add(joined, i64(1))])
    _left(builder, job)


def _left(builder: ir.IRBuilder, job: ir.Value) -> None:
    """One looks at the job no more; the last one frees it."""
    before = builder.atomic_rmw("sub", at(builder, job, USERS), i64(1), "acq_rel")
    with builder.if_then(builder.icmp_unsigned("==", before, i64(1))):
        memory = read(builder, at(builder, job, MEMORY), POINTER)
        builder.call(declared(builder.module, "free", ir.FunctionType(VOID, [POINTER])), [memory])


def _threads(call: Call) -> ir.Value:
    """Of XLA's pool; 1 where it does not tell."""
    builder = call.builder
    found = room(builder, 8)
    write(builder, i64(1), found)
    fields = {"ctx": _context(call), "num_threads": found}
    error = call_xla(builder, call.frame, "XLA_FFI_ThreadPool_NumThreads", fields)
    with builder.if_then(builder.not_(is_null(builder, error))):
        _destroy(call, error)
        write(builder, i64(1), found)
    return larger(builder, read(builder, found, I64), i64(1))


def _context(call: Call) -> ir.Value:
    return read(call.builder, at(call.builder, call.frame, FRAME["ctx"]), POINTER)


def _destroy(call: Call, error: ir.Value) -> None:
    """Errors are their receiver's."""
    call_xla(call.builder, call.frame, "XLA_FFI_Error_Destroy", {"error": error})
