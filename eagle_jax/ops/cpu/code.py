"""Helpers for building LLVM IR with llvmlite, and its compilation for this CPU."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding, ir

from eagle_jax.durable import atomic_write
from eagle_jax.ops import attention_call as base
from eagle_jax.ops.cpu import hardware, symbols
from eagle_jax.ops.cpu.hardware import is_arm, is_x86, l1_data_cache
from eagle_jax.platform import programs_folder

POINTER, VOID = ir.PointerType(), ir.VoidType()
I8, I16, I32, I64, F32 = *(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType()


class _BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


LANES = 16  # elements of a vector: a register of AVX-512, two of AVX2, four of NEON
FLOATS, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
PAIRS = ir.VectorType(_BFloat(), 2 * LANES)  # two bfloat16 in each lane
WORD = 4  # bytes of a lane
VECTOR = WORD * LANES
NULL = ir.Constant(POINTER, None)
AMX = frozenset({"amx-tile", "amx-int8", "amx-bf16", "avx512bf16", "avx512vnni"})  # the last two for what is too short
WITHOUT = "EAGLE_JAX_CPU_WITHOUT"  # instruction sets that are not used, as beginnings of LLVM's names: `avx512,amx`
LARGE_L1 = 48 * 1024  # bytes of an L1 data cache that has room for prefetched weights and the rows


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def constant(value: float) -> ir.Constant:
    """Returns a constant vector with the same value in every lane."""
    return ir.Constant(FLOATS, [value] * LANES)


def at(builder: ir.IRBuilder, base: ir.Value, offset: ir.Value | int, size: ir.Value | int = 1) -> ir.Value:
    """Returns the address `base + offset * size`, in bytes."""
    steps, each = (i64(number) if isinstance(number, int) else number for number in (offset, size))
    return builder.gep(base, [builder.mul(steps, each)], source_etype=I8)


def read(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Loads a value, aligned or not."""
    return builder.load(address, align=1, typ=kind)


def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetches a cache line, into L1 if that is `LARGE_L1`, else into L2; the address need not be valid."""
    kind = ir.FunctionType(VOID, [POINTER, I32, I32, I32])
    locality = 3 if l1_data_cache() >= LARGE_L1 else 2
    to_read, cache_level, data = (ir.Constant(I32, value) for value in (0, locality, 1))
    builder.call(declare(builder.module, "llvm.prefetch.p0", kind), [address, to_read, cache_level, data])


def compiler_barrier(builder: ir.IRBuilder) -> None:
    """Keeps LLVM from holding loaded values in registers across this point; no instruction."""
    nothing = ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True)
    builder.call(nothing, [])


def write(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, address, align=1)


def alloca(builder: ir.IRBuilder, size: int) -> ir.Value:
    """Returns the address of `size` bytes on the stack."""
    with builder.goto_entry_block():
        block = builder.alloca(ir.ArrayType(I8, size))
        block.align = VECTOR
        return builder.inttoptr(builder.ptrtoint(block, I64), POINTER)


def splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Returns a value in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    vector = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(vector, undefined, ir.Constant(INTEGERS, [0] * LANES))


def is_null(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    return builder.icmp_unsigned("==", builder.ptrtoint(pointer, I64), i64(0))


def minimum(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned("<", a, b), a, b)


def maximum(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_unsigned(">", a, b), a, b)


def clamp(builder: ir.IRBuilder, number: ir.Value, upper: ir.Value) -> ir.Value:
    """Returns an int32 clamped to `0..upper`, as int64."""
    count = builder.sext(number, I64)
    return minimum(builder, builder.select(builder.icmp_signed("<", count, i64(0)), i64(0), count), upper)


@contextlib.contextmanager
def forever(builder: ir.IRBuilder) -> Iterator[ir.Block]:
    """Builds `while True` around the instructions built inside; a branch to the yielded block leaves it."""
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    yield after
    builder.branch(body)
    builder.position_at_end(after)


def pause(builder: ir.IRBuilder) -> None:
    """Emits the CPU's hint that this is a spin loop."""
    if is_x86():
        builder.call(declare(builder.module, "llvm.x86.sse2.pause", ir.FunctionType(VOID, [])), [])
    elif is_arm():  # `yield` does nothing on most cores; this takes as long as x86's pause
        builder.call(declare(builder.module, "llvm.aarch64.isb", ir.FunctionType(VOID, [I32])), [ir.Constant(I32, 15)])


@contextlib.contextmanager
def for_range(
    builder: ir.IRBuilder, stop: ir.Value, start: ir.Value | None = None, step: int = 1
) -> Iterator[ir.Instruction]:
    """Builds `for index in range(start, stop, step)` around the instructions built inside; unsigned."""
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


def for_tiles(builder: ir.IRBuilder, count: ir.Value, max_size: int, build: Callable[[ir.Value, int], None]) -> None:
    """Calls `build(first, size)` for tiles of up to `max_size` rows; the last two have about equal sizes."""
    done = alloca(builder, 8)
    write(builder, i64(0), done)
    with forever(builder) as leave:
        first = read(builder, done, I64)
        left = builder.sub(count, first)
        with builder.if_then(builder.icmp_unsigned("==", left, i64(0))):
            builder.branch(leave)
        half = builder.lshr(builder.add(left, i64(1)), i64(1))
        several = builder.select(builder.icmp_unsigned("<", left, i64(2 * max_size)), half, i64(max_size))
        tile_size = builder.select(builder.icmp_unsigned("<=", left, i64(max_size)), left, several)
        write(builder, builder.add(first, tile_size), done)
        for size in range(1, max_size + 1):
            with builder.if_then(builder.icmp_unsigned("==", tile_size, i64(size))):
                build(first, size)


def field_values(record: Any) -> list[ir.Value]:
    """Returns the fields of a dataclass of values, in order, to pass as arguments of a generated function."""
    return [getattr(record, field.name) for field in dataclasses.fields(record)]


def declare(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """Declares an intrinsic of LLVM or a function of the C library."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def internal_function(module: ir.Module, name: str, kinds: list[ir.Type]) -> ir.Function:
    """Adds an internal function without a result, which is not inlined: so each can be profiled and read alone."""
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
    """Returns this CPU's instruction sets, by LLVM's names, but those of `WITHOUT`; empty if LLVM detects none."""
    return frozenset(name for name, has in _host_features().items() if has)


@functools.cache
def _host_features() -> dict[str, bool]:
    """Returns whether this CPU has each instruction set of its architecture, by LLVM's name, and it may be used.

    Raises:
        ValueError: `WITHOUT` names an unknown one.
    """
    _start()
    try:
        flags = dict(binding.get_host_cpu_features().items())
    except RuntimeError:
        flags = {}
    flags |= hardware.dot_products_of_arm()
    without = [name for name in os.environ.get(WITHOUT, "").split(",") if name]
    if unknown := [name for name in without if not any(feature.startswith(name) for feature in flags)]:
        raise ValueError(f"{WITHOUT} has {', '.join(unknown)}; expected beginnings of {', '.join(sorted(flags))[:150]}")
    return {name: has and not name.startswith(tuple(without)) for name, has in flags.items()}


def has_amx() -> bool:
    """Returns whether this CPU has AMX for bfloat16 and for bytes, and this process may use it."""
    return AMX <= features() and hardware.allows_amx()


class Code:
    """A compiled module. Its code is valid as long as this object lives.

    Object code is cached in the user's cache folder, next to XLA's, under a hash of everything that it depends on.

    Args:
        name: name of the module.
        build: adds the functions to the module.

    Raises:
        NotImplementedError: the code needs functions that this process does not have.
    """

    def __init__(self, name: str, build: Callable[[ir.Module], None]):
        _start()
        # LLVM prefers registers of 256 bits on CPUs that lower their clock with wider ones
        wide = ["-prefer-256-bit"] if is_x86() else []
        # a virtual machine may hide instructions that CPUs of this name have, so LLVM gets every feature explicitly
        host_features = sorted(_host_features().items())
        feature_string = ",".join([*(f"{'+' if has else '-'}{feature}" for feature, has in host_features), *wide])
        target = binding.Target.from_default_triple()
        self._machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=feature_string, opt=3)
        cpu = binding.get_host_cpu_name(), str(l1_data_cache()), str(has_amx())  # code from the disk needs it too
        key = "\n".join([name, feature_string, *cpu, llvmlite.__version__, _sources()])
        object_code = _cached_object(hashlib.sha256(key.encode()).hexdigest(), lambda: self._compile(name, build))
        # MCJIT ends the process over a name that it cannot resolve
        if names := symbols.unresolved(object_code):
            raise NotImplementedError(f"machine code needs {', '.join(names)}, which this process does not have")
        self._engine: Any = binding.create_mcjit_compiler(binding.parse_assembly(""), self._machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(object_code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Returns the address of a function."""
        return self._engine.get_function_address(name)

    def _compile(self, name: str, build: Callable[[ir.Module], None]) -> bytes:
        module = ir.Module(name)
        build(module)
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        passes = binding.create_pass_builder(self._machine, binding.create_pipeline_tuning_options(speed_level=3))
        passes.getModulePassManager().run(parsed, passes)
        return self._machine.emit_object(parsed)


@functools.cache
def _sources() -> str:
    """Returns a hash of the sources that build the IR; a random one where there are no sources."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(base.__file__)]
    content = b"\0".join(file.read_bytes() for file in files if file.suffix == ".py" and file.is_file())
    return hashlib.sha256(content or os.urandom(32)).hexdigest()


def _cached_object(key: str, make: Callable[[], bytes]) -> bytes:
    """Returns the object code cached under `key`, or that of `make`. Damaged files are replaced."""
    folder = programs_folder(f"llvmlite-{llvmlite.__version__}")
    if folder is None:
        return make()
    path, size = folder / f"{key}.o", hashlib.sha256().digest_size
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content[size:]).digest() == content[:size]:
            return content[size:]
    object_code = make()
    with contextlib.suppress(OSError), atomic_write(path) as file:
        file.write(hashlib.sha256(object_code).digest() + object_code)
    return object_code
