"""Promises of the package as a whole: imports go downwards, heavy libraries stay in their rooms, importing is cheap."""

import ast
import graphlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import eagle_jax

ROOT = pathlib.Path(eagle_jax.__file__).parent

# A module may import from rows above its own and from its own row.
LAYERS = (
    ("platform", "struct", "durable", "workarounds", "starting", "checks", "fields"),
    ("jsonl",),
    ("configs", "head_kinds", "sharding"),
    ("ops",),
    ("decoding", "models"),
    ("drafters", "converters", "testing"),
    ("loop",),
    ("text",),
    ("structured",),
    ("chat", "training"),
    ("loading",),
    ("requests", "methods"),
    ("scheduling",),
    ("inspection",),
    ("tuning",),
    ("protocols",),
    ("jobs",),
    ("api",),
    ("serving",),
    ("evaluation", "cli", "integrations"),
)
# Folders that can be deleted: nothing imports them but by name, where they are chosen, and they know little themselves.
BACKENDS = ("ops.cpu", "ops.tpu", "ops.gpu")
KNOWN_TO_BACKENDS = ("ops", "sharding", "struct", "platform", "durable", "workarounds")
# Rooms of one row that must not know each other.
STRANGERS = (("drafters", "converters"), ("decoding.verify", "models"), ("decoding.tree", "models"))

# Library -> the only room that may import it, and whether inside functions only.
HOMES = {
    "flax": ("models", False),
    "llvmlite": ("ops.cpu", False),
    "torch": ("converters", True),
    "outlines_core": ("structured", True),
    "starlette": ("serving", False),
    "uvicorn": ("serving", False),
    "prometheus_client": ("serving", False),
    "ray": ("integrations.ray", False),
    "pyarrow": ("integrations.ray", False),
}


def modules() -> list[pathlib.Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: pathlib.Path) -> str:
    """`decoding.tree` for eagle_jax/decoding/tree.py, `decoding` for its __init__, "" for the package's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> int:
    rows = [(len(room), row) for row, rooms in enumerate(LAYERS) for room in rooms if within(module, room)]
    if not rows:
        raise AssertionError(f"eagle_jax.{module} has no layer; give it one in LAYERS")
    return max(rows)[1]


def within(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"{room}.")


def imports(path: pathlib.Path) -> Iterator[tuple[str, ast.stmt]]:
    """Full names of everything a file imports, with the statement; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def test_imports_go_downwards():
    for path in modules():
        module = name_of(path)
        if not module or path.name == "__main__.py":  # the front doors may import anything
            continue
        for imported, node in imports(path):
            if not imported.startswith("eagle_jax."):
                continue
            other = imported.removeprefix("eagle_jax.")
            if other.startswith("__"):
                continue
            assert layer(other) <= layer(module), f"{path}:{node.lineno}: {module} is below {other}"
            for one, two in STRANGERS:
                for a, b in ((one, two), (two, one)):
                    assert not (within(module, a) and within(other, b)), f"{path}:{node.lineno}: {a} must not know {b}"


def test_no_two_rooms_import_each_other():
    """Rooms of one row, too, have an order: `graphlib` would name a circle."""
    graph: dict[str, set[str]] = {}
    for path in modules():
        room = name_of(path).split(".")[0]
        imported = {name.split(".")[1] for name, _ in imports(path) if name.startswith("eagle_jax.")}
        if room and path.name != "__main__.py":
            graph.setdefault(room, set()).update(imported - {room, "__version__"})
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_backends_are_guests():
    for path in modules():
        module = name_of(path)
        own = next((backend for backend in BACKENDS if within(module, backend)), None)
        for imported, node in imports(path):
            other = imported.removeprefix("eagle_jax.")
            if other == imported:
                continue
            for backend in BACKENDS:
                assert backend == own or not within(other, backend), f"{path}:{node.lineno}: {module} imports {other}"
            if own is not None:
                assert any(within(other, room) for room in KNOWN_TO_BACKENDS), f"{path}:{node.lineno} knows {other}"


def test_libraries_stay_in_their_rooms():
    for path in modules():
        outermost = ast.parse(path.read_text()).body
        top_lines = {node.lineno for node in outermost if isinstance(node, ast.Import | ast.ImportFrom)}
        for imported, node in imports(path):
            library = imported.split(".")[0]
            if library in HOMES:
                room, lazily = HOMES[library]
                assert within(name_of(path), room), f"{path}:{node.lineno}: only {room}/ may import {library}"
                assert not (lazily and node.lineno in top_lines), f"{path}:{node.lineno}: import it where it is used"


def test_the_commands_see_only_the_api():
    for path in modules():
        if not any(within(name_of(path), room) for room in ("serving", "evaluation", "cli", "integrations")):
            continue
        for imported, node in imports(path):
            if imported.startswith("eagle_jax."):
                other = imported.removeprefix("eagle_jax.")
                allowed = ("api", "serving", "evaluation", "cli", "integrations")
                allowed += ("checks", "durable", "fields", "jsonl")
                allowed += ("protocols",) if within(name_of(path), "serving") else ()
                allowed += ("load", "generate", "stream", "__version__")
                assert any(within(other, room) for room in allowed), f"{path}:{node.lineno}: {imported} is not the api"


def test_importing_is_cheap():
    heavy = ("torch", "transformers", "tokenizers", "flax.nnx", "orbax", "optax", "typer", "huggingface_hub")
    heavy += ("starlette", "uvicorn", "prometheus_client", "ray", "pyarrow")
    code = f"import sys, eagle_jax; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.strip() == "[]"


def test_importing_leaves_the_signals_of_a_program_alone():
    """A program may leave Ctrl-C to the system, and may import in a thread, where signals cannot be set."""
    code = (
        "import importlib, signal, threading; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        "thread = threading.Thread(target=importlib.import_module, args=('eagle_jax',)); thread.start(); thread.join();"
        "import eagle_jax.api; print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.strip() == "True" and "Traceback" not in shown.stderr, shown.stderr


def test_what_windows_lacks_is_not_needed():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('fcntl', 'grp', 'pwd', 'resource', 'termios')); import eagle_jax.cli"
    )
    code += "; model = eagle_jax.load(); print(eagle_jax.generate(model, 'One', max_new_tokens=3).text != '')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert shown.stdout.strip() == "True", shown.stderr


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert eagle_jax.__version__ == version("eagle-jax")


def test_the_shipped_pair_is_there_and_small():
    files = [path for path in (ROOT / "pair").rglob("*") if path.is_file()]
    assert {"target/model.safetensors", "head/model.safetensors", "target/tokenizer.json"} <= {
        path.relative_to(ROOT / "pair").as_posix() for path in files
    }
    assert sum(path.stat().st_size for path in files) <= 25e6, "the pair may take 25 MB in the wheel"
