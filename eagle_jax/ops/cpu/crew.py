"""Threads of XLA's pool that, done with one job, stay a moment for the next.

To call one through XLA takes longer than many a product of a small model. One that stays has a seat and looks at
nothing else: who has a job for it puts the job's address there. The seats are the whole process's.

A seat is `EMPTY`, its thread is `FREE` or `BUSY`, or it holds the address of a job that its thread has not seen yet. No
thread stays for good, since XLA has work for its pool too.
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
    at,
    counting,
    i64,
    pause,
    read,
    repeating,
    room,
    write,
)

# How many there are, each in a line of the cache of its own. Before them is a line with how many were ever taken, and
# how many threads were called and have not come yet.
SEATS, LINE, MISSING = 64, 64, 8
EMPTY, FREE, BUSY = (i64(number) for number in range(3))
PATIENCE, JOBS = 1000, 256  # looks at a seat, some twenty microseconds, and jobs, after which a thread leaves
MEET, PLACE = "eagle_jax_meet", "eagle_jax_seats"

_memory = ctypes.create_string_buffer(LINE * (SEATS + 2))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_memory))  # threads may look at it until the process ends

if hasattr(os, "register_at_fork"):  # the threads stay behind
    os.register_at_fork(after_in_child=lambda: ctypes.memset(_memory, 0, len(_memory)))


def build(module: ir.Module) -> None:
    """Adds what `introduce` calls."""
    place = ir.GlobalVariable(module, POINTER, PLACE)
    place.linkage, place.initializer = "internal", NULL
    meet = ir.Function(module, ir.FunctionType(VOID, [POINTER]), MEET)
    builder = ir.IRBuilder(meet.append_basic_block("entry"))
    write(builder, meet.args[0], place)
    builder.ret_void()


def introduce(code: Code) -> None:
    """Tells code where the seats are."""
    meet = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address(MEET))
    meet(-(-ctypes.addressof(_memory) // LINE) * LINE)


def free(builder: ir.IRBuilder) -> ir.Value:
    """How many threads wait for a job."""
    found = room(builder, 8)
    write(builder, i64(0), found)
    with _seats(builder) as seat:
        waits = builder.icmp_unsigned("==", _state(builder, seat), FREE)
        write(builder, builder.add(read(builder, found, I64), builder.zext(waits, I64)), found)
    return read(builder, found, I64)


def ask(builder: ir.IRBuilder, job: ir.Value, most: ir.Value, users: ir.Value) -> ir.Value:
    """Gives a job to threads that wait, at most so many, and counts each at the address `users`; returns how many."""
    asked = room(builder, 8)
    write(builder, i64(0), asked)
    with _seats(builder) as seat:
        wanted = builder.icmp_unsigned("<", read(builder, asked, I64), most)
        waits = builder.icmp_unsigned("==", _state(builder, seat), FREE)
        with builder.if_then(builder.and_(wanted, waits)):
            builder.atomic_rmw("add", users, i64(1), "acq_rel")
            given = _change(builder, seat, FREE, builder.ptrtoint(job, I64))
            with builder.if_else(given) as (then, otherwise):
                with then:
                    write(builder, builder.add(read(builder, asked, I64), i64(1)), asked)
                with otherwise:
                    builder.atomic_rmw("sub", users, i64(1), "acq_rel")
    return read(builder, asked, I64)


def calls(builder: ir.IRBuilder, number: int) -> None:
    """Counts threads that are called; less than none are threads that have come."""
    builder.atomic_rmw("add", at(builder, _place(builder), MISSING), i64(number), "acq_rel")


def missing(builder: ir.IRBuilder) -> ir.Value:
    """How many threads were called and have not come yet."""
    return builder.load_atomic(at(builder, _place(builder), MISSING), "monotonic", 8, typ=I64)


def stay(builder: ir.IRBuilder, take: Callable[[ir.IRBuilder, ir.Value], None]) -> None:
    """Builds a thread's wait for jobs, if there is an empty seat; `take(builder, job)` is what it does with one."""
    mine, looks, jobs = (room(builder, 8) for _ in range(3))
    write(builder, NULL, mine)
    write(builder, i64(0), jobs)
    with counting(builder, i64(SEATS)) as index:
        seat = at(builder, _place(builder), builder.add(index, i64(1)), LINE)
        stands = builder.icmp_unsigned("==", builder.ptrtoint(read(builder, mine, POINTER), I64), i64(0))
        empty = builder.icmp_unsigned("==", _state(builder, seat), EMPTY)
        with builder.if_then(builder.and_(stands, empty)), builder.if_then(_change(builder, seat, EMPTY, FREE)):
            write(builder, seat, mine)
            builder.atomic_rmw("umax", _place(builder), builder.add(index, i64(1)), "acq_rel")
    seat = read(builder, mine, POINTER)
    with builder.if_then(builder.icmp_unsigned("!=", builder.ptrtoint(seat, I64), i64(0))):
        write(builder, i64(0), looks)
        with repeating(builder) as leave:
            job = builder.load_atomic(seat, "acquire", 8, typ=I64)
            with builder.if_then(builder.icmp_unsigned(">", job, BUSY)):
                builder.atomic_rmw("xchg", seat, BUSY, "acq_rel")
                take(builder, builder.inttoptr(job, POINTER))
                builder.atomic_rmw("xchg", seat, FREE, "acq_rel")
                write(builder, i64(0), looks)
                write(builder, builder.add(read(builder, jobs, I64), i64(1)), jobs)
            pause(builder)
            write(builder, builder.add(read(builder, looks, I64), i64(1)), looks)
            idle = builder.icmp_unsigned(">", read(builder, looks, I64), i64(PATIENCE))
            done = builder.icmp_unsigned(">", read(builder, jobs, I64), i64(JOBS))
            with builder.if_then(builder.or_(idle, done)):
                write(builder, i64(0), looks)
                with builder.if_then(_change(builder, seat, FREE, EMPTY)):
                    builder.branch(leave)


@contextlib.contextmanager
def _seats(builder: ir.IRBuilder) -> Iterator[ir.Value]:
    """Around what is built for each seat that was ever taken."""
    place = _place(builder)
    with counting(builder, builder.load_atomic(place, "monotonic", 8, typ=I64)) as index:
        yield at(builder, place, builder.add(index, i64(1)), LINE)


def _place(builder: ir.IRBuilder) -> ir.Value:
    return read(builder, builder.module.globals[PLACE], POINTER)


def _state(builder: ir.IRBuilder, seat: ir.Value) -> ir.Value:
    return builder.load_atomic(seat, "monotonic", 8, typ=I64)


def _change(builder: ir.IRBuilder, seat: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
    """Whether the seat was as it is thought to be; then it is changed."""
    return builder.extract_value(builder.cmpxchg(seat, old, new, "acq_rel", "acquire"), 1)
