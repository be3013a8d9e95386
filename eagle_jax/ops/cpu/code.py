"""Functions that are written with llvmlite's builder, and the machine code that LLVM makes of them for this CPU."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding, ir

from eagle_jax.durable import replacing
from eagle_jax.ops import attention_case as base
from eagle_jax.ops.cpu import symbols
from eagle_jax.platform import programs_folder

POINTER, VOID = ir.PointerType(), ir.VoidType()
I8, I16, I32, I64, F32 = *(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType()


class _BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


LANES = 16  # numbers that are computed together: a register of AVX-512, two of AVX2, four of NEON
FLOATS, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
PAIRS = ir.VectorType(_BFloat(), 2 * LANES)  # two bfloat16 in the place of each number
WORD = 4  # bytes of a number, or of a pair
VECTOR = WORD * LANES
NULL = ir.Constant(POINTER, None)
ROOMY = 48 * 1024  # bytes of a first cache that holds rows and the weights that are fetched for them


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def every(value: float) -> ir.Constant:
    """The same number in every lane."""
    return ir.Constant(FLOATS, [value] * LANES)


def at(builder: ir.IRBuilder, base: ir.Value, offset: ir.Value | int, size: ir.Value | int = 1) -> ir.Value:
    """The address `offset` times `size` bytes behind another."""
    steps, each = (i64(number) if isinstance(number, int) else number for number in (offset, size))
    return builder.gep(base, [builder.mul(steps, each)], source_etype=I8)


def read(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """What lies at an address, aligned or not."""
    return builder.load(address, align=1, typ=kind)


def fetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Has the CPU bring a line of memory into the core's caches, into the first one where that is `ROOMY`, in its own
    time; the address need not exist.
    """
    kind = ir.FunctionType(VOID, [POINTER, I32, I32, I32])
    caches = 3 if first_cache() >= ROOMY else 2
    to_read, into, data = (ir.Constant(I32, value) for value in (0, caches, 1))
    builder.call(declared(builder.module, "llvm.prefetch.p0", kind), [address, to_read, into, data])


def forget(builder: ir.IRBuilder) -> None:
    """What was read of memory before is read again after; no instruction."""
    nothing = ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True)
    builder.call(nothing, [])


def write(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, address, align=1)


def room(builder: ir.IRBuilder, size: int) -> ir.Value:
    """The address of `size` bytes that are free until the function returns."""
    with builder.goto_entry_block():
        lies = builder.alloca(ir.ArrayType(I8, size))
        lies.align = VECTOR
        return builder.inttoptr(builder.ptrtoint(lies, I64), POINTER)


def everywhere(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A number in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(INTEGERS, [0] * LANES))


def is_null(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    return builder.icmp_unsigned("==", builder.ptrtoint(pointer, I64), i64(0))


def smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned("<", a, b), a, b)


def larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned(">", a, b), a, b)


def clamped(builder: ir.IRBuilder, number: ir.Value, most: ir.Value) -> ir.Value:
    """A signed number of 32 bits as a count between 0 and `most`."""
    count = builder.sext(number, I64)
    return smaller(builder, builder.select(builder.icmp_signed("<", count, i64(0)), i64(0), count), most)


@contextlib.contextmanager
def repeating(builder: ir.IRBuilder) -> Iterator[ir.Block]:
    """`while True` around what is built inside; whoever branches to the block leaves it."""
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    yield after
    builder.branch(body)
    builder.position_at_end(after)


def pause(builder: ir.IRBuilder) -> None:
    """A moment of a thread that waits for another one, which may share the core."""
    if is_x86():
        builder.call(declared(builder.module, "llvm.x86.sse2.pause", ir.FunctionType(VOID, [])), [])
    elif platform.machine().lower() in ("aarch64", "arm64"):  # its `yield` does nothing, and this takes as long
        builder.call(declared(builder.module, "llvm.aarch64.isb", ir.FunctionType(VOID, [I32])), [ir.Constant(I32, 15)])


@contextlib.contextmanager
def counting(
    builder: ir.IRBuilder, stop: ir.Value, start: ir.Value | None = None, step: int = 1
) -> Iterator[ir.Instruction]:
    """`for index in range(start, stop, step)` around what is built inside; numbers have no sign."""
    before, head = builder.block, builder.append_basic_block("head")
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(i64(0) if start is None else start, before)
    builder.cbranch(builder.icmp_unsigned("<", index, stop), body, after)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, i64(step)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)


def by_tiles(builder: ir.IRBuilder, count: ir.Value, most: int, build: Callable[[ir.Value, int], None]) -> None:
    """`build(first, size)` for `most` of `count` at a time; the last two times for about as many each."""
    done = room(builder, 8)
    write(builder, i64(0), done)
    with repeating(builder) as leave:
        first = read(builder, done, I64)
        left = builder.sub(count, first)
        with builder.if_then(builder.icmp_unsigned("==", left, i64(0))):
            builder.branch(leave)
        half = builder.lshr(builder.add(left, i64(1)), i64(1))
        several = builder.select(builder.icmp_unsigned("<", left, i64(2 * most)), half, i64(most))
        now = builder.select(builder.icmp_unsigned("<=", left, i64(most)), left, several)
        write(builder, builder.add(first, now), done)
        for size in range(1, most + 1):
            with builder.if_then(builder.icmp_unsigned("==", now, i64(size))):
                build(first, size)


def values_of(record: Any) -> list[ir.Value]:
    """The fields of a dataclass of values, in order, as a function that is built is given them."""
    return [getattr(record, field.name) for field in dataclasses.fields(record)]


def declared(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """A function of LLVM's or of the C library."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def internal(module: ir.Module, name: str, kinds: list[ir.Type]) -> ir.Function:
    """A new function that returns nothing and is seen by this module alone; it stays a function, to be read alone."""
    function = ir.Function(module, ir.FunctionType(VOID, kinds), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function


@functools.cache
def _start() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


@functools.cache
def features() -> frozenset[str]:
    """Instructions that this CPU has, by LLVM's names; none where LLVM cannot tell."""
    return frozenset(name for name, has in _host_features().items() if has)


@functools.cache
def _host_features() -> dict[str, bool]:
    """Every instruction set that LLVM knows for this architecture, and whether this CPU has it."""
    _start()
    try:
        return dict(binding.get_host_cpu_features().items())
    except RuntimeError:
        return {}


@functools.cache
def first_cache() -> int:
    """Bytes of a core's first cache of data, as Linux tells; 0 where nobody does."""
    told = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")
    try:
        return 1024 * int(told.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 0


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


class Code:
    """The functions of a module as machine code, which lives as long as this does.

    Made code is kept in the user's cache folder, beside XLA's, under the name of what it was made of.

    Args:
        name: of the module.
        build: adds its functions.

    Raises:
        NotImplementedError: the code needs functions that this process does not have.
    """

    def __init__(self, name: str, build: Callable[[ir.Module], None]):
        _start()
        # LLVM would rather have registers of 256 bits on CPUs that once ran slower with wider ones
        wide = ["-prefer-256-bit"] if is_x86() else []
        # a virtual machine may hide instructions that CPUs of this name have: LLVM has to be told of each
        known = sorted(_host_features().items())
        wanted = ",".join([*(f"{'+' if has else '-'}{feature}" for feature, has in known), *wide])
        target = binding.Target.from_default_triple()
        self._machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=wanted, opt=3)
        cpu = binding.get_host_cpu_name(), str(first_cache())
        key = "\n".join([name, wanted, *cpu, llvmlite.__version__, _sources()])
        made = _kept(hashlib.sha256(key.encode()).hexdigest(), lambda: self._made(name, build))
        # MCJIT ends the process over a name that it cannot resolve
        if names := symbols.unresolved(made):
            raise NotImplementedError(f"machine code needs {', '.join(names)}, which this process does not have")
        self._engine: Any = binding.create_mcjit_compiler(binding.parse_assembly(""), self._machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(made))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Of a function."""
        return self._engine.get_function_address(name)

    def _made(self, name: str, build: Callable[[ir.Module], None]) -> bytes:
        module = ir.Module(name)
        build(module)
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        passes = binding.create_pass_builder(self._machine, binding.create_pipeline_tuning_options(speed_level=3))
        passes.getModulePassManager().run(parsed, passes)
        return self._machine.emit_object(parsed)


@functools.cache
def _sources() -> str:
    """A hash of this package, whose functions build what is compiled; a new one each time where it has no sources."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(base.__file__)]
    held = b"\0".join(file.read_bytes() for file in files if file.suffix == ".py" and file.is_file())
    return hashlib.sha256(held or os.urandom(32)).hexdigest()


def _kept(key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, or returned another time on this machine. A damaged file is made again."""
    folder = programs_folder(f"llvmlite-{llvmlite.__version__}")
    if folder is None:
        return make()
    path, size = folder / f"{key}.o", hashlib.sha256().digest_size
    with contextlib.suppress(OSError):
        held = path.read_bytes()
        if hashlib.sha256(held[size:]).digest() == held[:size]:
            return held[size:]
    made = make()
    with contextlib.suppress(OSError), replacing(path) as file:
        file.write(hashlib.sha256(made).digest() + made)
    return made
