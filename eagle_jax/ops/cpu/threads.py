"""Parallel phases on the threads of XLA's pool, if there is enough work to be worth scheduling them.

A job is a sequence of phases, each of which begins when the one before is done. The tasks of a phase are divided into
as many shares as there are threads. A thread begins with its own share, so that data of the phase before is in its
core's cache; when it is done and polls in vain for the others, it steals tasks from their shares. No thread waits for
another one to start, which could deadlock a full pool, but only for tasks that are being run.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from llvmlite import ir

from eagle_jax.ops.cpu import jobs, worker_pool
from eagle_jax.ops.cpu.calls import FRAME, Call, call_xla
from eagle_jax.ops.cpu.code import (
    I32,
    I64,
    POINTER,
    VOID,
    alloca,
    at,
    declare,
    for_range,
    forever,
    i64,
    internal_function,
    is_null,
    maximum,
    minimum,
    pause,
    read,
    write,
)
from eagle_jax.ops.cpu.worker_pool import LINE

# Work in multiplied vectors, as powers of two, that is worth a spinning thread; the first thread of the pool, which
# keeps one awake; and each further one, which has to be woken.
WORTH_WAITING, WORTH_ONE, WORTH_MORE = 9, 11, 14
POLLS_BEFORE_STEALING, POLLS_BEFORE_YIELDING = 32, 1000
RUN_KIND = ir.FunctionType(VOID, [POINTER, I64]).as_pointer()


@dataclasses.dataclass(frozen=True)
class Phase:
    """Tasks that depend on nothing but the phase before.

    Attributes:
        tasks: their number.
        task: `task(builder, index, context)` builds one.
    """

    tasks: ir.Value
    task: Callable[[ir.IRBuilder, ir.Value, Any], None]


def run_phases(call: Call, phases: Sequence[Phase], work: ir.Value, context: Any, name: str = "") -> None:
    """Builds the phases and their execution.

    Args:
        work: multiplied vectors in all.
        context: values that the tasks need, in any pytree; each task is a function that gets them.
        name: name of these phases, if a handler has several calls of this function.
    """
    builder = call.builder
    values, tree = jax.tree.flatten(context)
    runs = [_runner(call, f"{call.name}{name}_run_{index}", values, tree, phase) for index, phase in enumerate(phases)]
    context_address = alloca(builder, 8 * len(values))
    for index, value in enumerate(values):
        write(builder, value, at(builder, context_address, index, 8))
    max_tasks = functools.reduce(functools.partial(maximum, builder), (phase.tasks for phase in phases))
    num_waiting, num_called = _num_helpers(call, max_tasks, work)
    helpers = maximum(builder, num_waiting, num_called)
    with builder.if_else(builder.icmp_unsigned("==", helpers, i64(0))) as (then, otherwise):
        with then:
            for phase, run in zip(phases, runs, strict=True):
                with for_range(builder, phase.tasks) as index:
                    builder.call(run, [context_address, index])
        with otherwise:
            tasks = [(phase.tasks, run) for phase, run in zip(phases, runs, strict=True)]
            job = jobs.allocate(builder, builder.add(helpers, i64(1)), context_address, tasks)
            num_submitted = worker_pool.submit(builder, job, num_waiting, at(builder, job, jobs.USERS))
            _schedule_helpers(call, job, builder.sub(maximum(builder, num_called, num_submitted), num_submitted))
            builder.call(_worker_function(call.module), [job, i64(0)])
            jobs.release(builder, job)


def _num_helpers(call: Call, tasks: ir.Value, work: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns how many waiting threads get the job, and how many helpers it needs from the pool if too few wait."""
    builder, num_waiting, num_called = call.builder, alloca(call.builder, 8), alloca(call.builder, 8)
    for result in (num_waiting, num_called):
        write(builder, i64(0), result)

    def threads_worth(power: int) -> ir.Value:
        return builder.lshr(work, i64(power))

    has_several_tasks = builder.icmp_unsigned(">", tasks, i64(1))
    is_worth_it = builder.icmp_unsigned("!=", threads_worth(WORTH_WAITING), i64(0))
    with builder.if_then(builder.and_(has_several_tasks, is_worth_it)):
        limit = builder.sub(minimum(builder, _num_threads(call), tasks), i64(1))
        waiting = minimum(builder, worker_pool.num_waiting(builder), threads_worth(WORTH_WAITING))
        write(builder, minimum(builder, waiting, limit), num_waiting)
        with builder.if_then(builder.icmp_unsigned("!=", threads_worth(WORTH_ONE), i64(0))):
            write(builder, minimum(builder, builder.add(threads_worth(WORTH_MORE), i64(1)), limit), num_called)
    return read(builder, num_waiting, I64), read(builder, num_called, I64)


def _runner(call: Call, name: str, values: Sequence[ir.Value], tree: Any, phase: Phase) -> ir.Function:
    """Builds the function `run(context, index)`, which runs one task."""
    run = internal_function(call.module, name, [POINTER, I64])
    context, index = run.args
    builder = ir.IRBuilder(run.append_basic_block("entry"))
    fields = [read(builder, at(builder, context, i, 8), value.type) for i, value in enumerate(values)]
    phase.task(builder, index, jax.tree.unflatten(tree, fields))
    builder.ret_void()
    return run


def _worker_function(module: ir.Module) -> ir.Function:
    """Builds the function `work(job, share)`: runs the share's tasks of every phase, and steals from late shares."""
    name = "eagle_jax_work"
    if name in module.globals:
        return module.globals[name]
    work = internal_function(module, name, [POINTER, I64])
    job, first = work.args
    builder = ir.IRBuilder(work.append_basic_block("entry"))
    phases, shares = (read(builder, at(builder, job, offset), I64) for offset in (jobs.PHASES, jobs.SHARES))
    with for_range(builder, phases) as index:
        phase = jobs.phase_address(builder, job, index, shares)
        tasks, run = (read(builder, at(builder, phase, offset), I64) for offset in (jobs.TASKS, jobs.RUN))
        run_share = functools.partial(
            _run_share, builder, (job, phase), (shares, tasks), builder.inttoptr(run, RUN_KIND)
        )
        run_share(first)
        joined = builder.load_atomic(at(builder, job, jobs.JOINED), "monotonic", 8, typ=I64)
        all_joined = builder.icmp_unsigned(">=", builder.add(joined, i64(1)), shares)
        done = at(builder, phase, jobs.DONE)
        _wait(builder, done, tasks, builder.select(all_joined, i64(POLLS_BEFORE_STEALING), i64(0)))
        with builder.if_then(_is_less(builder, done, tasks)):
            with for_range(builder, shares, i64(1)) as step:
                run_share(builder.urem(builder.add(first, step), shares))
            _wait(builder, done, tasks)
    builder.ret_void()
    return work


def _run_share(
    builder: ir.IRBuilder,
    addresses: tuple[ir.Value, ir.Value],
    counts: tuple[ir.Value, ir.Value],
    run: ir.Value,
    share: ir.Value,
) -> None:
    """Runs the tasks of a share that no thread has taken.

    Args:
        addresses: addresses of the job and of the phase.
        counts: numbers of shares and of tasks.
    """
    (job, phase), (shares, tasks), num_done = addresses, counts, alloca(builder, 8)
    end = jobs.first_task(builder, tasks, builder.add(share, i64(1)), shares)
    next_task = at(builder, at(builder, phase, jobs.NEXT), share, LINE)
    context = read(builder, at(builder, job, jobs.CONTEXT), POINTER)
    write(builder, i64(0), num_done)
    with forever(builder) as leave:
        task = builder.atomic_rmw("add", next_task, i64(1), "acq_rel")
        with builder.if_then(builder.icmp_unsigned(">=", task, end)):
            builder.branch(leave)
        builder.call(run, [context, task])
        write(builder, builder.add(read(builder, num_done, I64), i64(1)), num_done)
    count = read(builder, num_done, I64)
    with builder.if_then(builder.icmp_unsigned("!=", count, i64(0))):
        builder.atomic_rmw("add", at(builder, phase, jobs.DONE), count, "acq_rel")


def _wait(builder: ir.IRBuilder, done: ir.Value, tasks: ir.Value, max_polls: ir.Value | None = None) -> None:
    """Polls until all tasks of a phase are done, or `max_polls` times."""
    polls = alloca(builder, 8)
    write(builder, i64(0), polls)
    with forever(builder) as leave:
        with builder.if_then(builder.not_(_is_less(builder, done, tasks))):
            builder.branch(leave)
        count = read(builder, polls, I64)
        if max_polls is not None:
            with builder.if_then(builder.icmp_unsigned(">=", count, max_polls)):
                builder.branch(leave)
        pause(builder)
        write(builder, builder.add(count, i64(1)), polls)
        with builder.if_then(builder.icmp_unsigned(">", count, i64(POLLS_BEFORE_YIELDING))):
            builder.call(declare(builder.module, "sched_yield", ir.FunctionType(I32, [])), [])


def _is_less(builder: ir.IRBuilder, done: ir.Value, tasks: ir.Value) -> ir.Value:
    """Returns whether not all tasks are done."""
    return builder.icmp_unsigned("<", builder.load_atomic(done, "acquire", 8, typ=I64), tasks)


def _schedule_helpers(call: Call, job: ir.Value, helpers: ir.Value) -> None:
    """Schedules helpers in XLA's pool, less those that were scheduled before and have not started yet."""
    builder, helper = call.builder, _helper_function(call.module)
    num_missing = minimum(builder, worker_pool.num_missing(builder), helpers)
    with for_range(builder, builder.sub(helpers, num_missing)):
        builder.atomic_rmw("add", at(builder, job, jobs.USERS), i64(1), "acq_rel")
        worker_pool.count_called(builder, 1)
        fields = {"ctx": _execution_context(call), "task": helper, "data": job}
        error = call_xla(builder, call.frame, "XLA_FFI_ThreadPool_Schedule", fields)
        with builder.if_then(builder.not_(is_null(builder, error))):  # no thread will start
            _destroy(call, error)
            worker_pool.count_called(builder, -1)
            builder.atomic_rmw("sub", at(builder, job, jobs.USERS), i64(1), "acq_rel")


def _helper_function(module: ir.Module) -> ir.Function:
    """Builds the function `help(job)` that XLA's pool runs: joins the job, then waits for further ones.

    XLA may run it in the calling thread; then it returns at once.
    """
    name = "eagle_jax_help"
    if name in module.globals:
        return module.globals[name]
    helper = internal_function(module, name, [POINTER])
    (job,) = helper.args
    builder = ir.IRBuilder(helper.append_basic_block("entry"))
    worker_pool.count_called(builder, -1)
    caller = read(builder, at(builder, job, jobs.CALLER), I64)
    with builder.if_then(builder.icmp_unsigned("==", caller, jobs.this_thread(builder))):
        jobs.release(builder, job)
        builder.ret_void()
    _join(builder, job)
    with builder.if_then(builder.icmp_unsigned("==", worker_pool.num_missing(builder), i64(0))):
        worker_pool.work_loop(builder, _join)
    builder.ret_void()
    return helper


def _join(builder: ir.IRBuilder, job: ir.Value) -> None:
    """Takes a share of a job."""
    joined = builder.atomic_rmw("add", at(builder, job, jobs.JOINED), i64(1), "acq_rel")
    builder.call(_worker_function(builder.module), [job, builder.add(joined, i64(1))])
    jobs.release(builder, job)


def _num_threads(call: Call) -> ir.Value:
    """Returns the number of threads of XLA's pool; 1 if it does not say."""
    builder = call.builder
    result = alloca(builder, 8)
    write(builder, i64(1), result)
    fields = {"ctx": _execution_context(call), "num_threads": result}
    error = call_xla(builder, call.frame, "XLA_FFI_ThreadPool_NumThreads", fields)
    with builder.if_then(builder.not_(is_null(builder, error))):
        _destroy(call, error)
        write(builder, i64(1), result)
    return maximum(builder, read(builder, result, I64), i64(1))


def _execution_context(call: Call) -> ir.Value:
    return read(call.builder, at(call.builder, call.frame, FRAME["ctx"]), POINTER)


def _destroy(call: Call, error: ir.Value) -> None:
    """Frees an error of XLA, which belongs to whoever received it."""
    call_xla(call.builder, call.frame, "XLA_FFI_Error_Destroy", {"error": error})
