"""Every code block of the README and of the documentation runs, here or in a test that is named here, or it is said why
it cannot; so do the examples in docstrings, which the API reference shows. The api and the loop are the real ones, only
the models are not: in the folder where a page runs, every name that it uses leads to one tiny random pair, which also
takes the shipped pair's place.
"""

import dataclasses
import doctest
import importlib
import inspect
import json
import pathlib
import re
import shlex
import shutil
import typing

import jax
import pytest
import yaml
from test_documented import PAGES, ROOT, blocks, shell

import eagle_jax
from eagle_jax.converters import PAIRS, save_head, save_target
from eagle_jax.converters.hub import pairs
from eagle_jax.loading import folders as model_folders
from eagle_jax.testing import TINY, synthetic_pair
from eagle_jax.training.config import TrainConfig

GGUF = "tests/converters/gguf/test_gguf.py::"
# Lines that do not run here, by their beginning: the test that runs them, or why none does.
APART = {
    "make ": "sets up an environment of its own; CI and tests/cli/test_documented.py see to the targets",
    ".ci/run": "is what runs this test",
    "python -m benchmarks.": "takes minutes, and some of them the TPU compiler",
    "benchmarks/gpu.sh": "needs a GPU; tests/benchmarks/gpu/test_gpu_sh.py rehearses it",
    "hf auth login": "asks for a token",
    "lm_eval ": "needs a server that runs; tests/serving/test_echo.py sends what it sends",
    "pip install ": "installs into the environment that the test runs in",
    "eagle-jax serve": "does not end by itself; tests/serving/test_drain.py has one that runs",
    "eagle-jax ui": "does not end by itself; tests/serving/test_page.py has its page",
    "eagle-jax train ": "tests/cli/test_train.py::test_the_documented_settings_train_a_head_that_decodes",
    "eagle-jax eval ": "tests/cli/test_real.py::test_an_evaluation_with_its_report",
    "eagle-jax datastore chats.jsonl --target smollm2-135m-instruct": "downloads a model; other lines make datastores",
    "eagle-jax profile": "tests/inspection/test_profiling.py::test_a_cycle_of_a_real_loop",
    "eagle-jax tune": "tests/tuning/test_tuning.py::test_the_command_finds_keeps_and_tells",
    "eagle-jax generate --target ./SmolLM2-135M-Instruct-Q8_0.gguf": f"{GGUF}test_generation",
    "eagle-jax generate --target ./Llama-3.1-8B-Instruct-Q4_K_M.gguf": f"{GGUF}test_generation",
    "eagle-jax quantize ./Llama-3.1-8B-Instruct-Q4_K_M.gguf": f"{GGUF}test_a_folder_of_integers_is_made_of_it",
    "eagle-jax inspect ./SmolLM2-135M-Instruct-Q8_0.gguf": f"{GGUF}test_the_command_tells_what_became_of_the_types",
    "eagle-jax convert ./SmolLM2-135M-Instruct-Q8_0.gguf": f"{GGUF}test_a_folder_of_it",
    "eagle-jax convert ./model-Q8_0.gguf": f"{GGUF}test_a_folder_of_it",
}
# Pages whose Python another test runs as a whole.
OWN_TEST = {
    "own-model.md": "tests/loading/test_own_model.py::page",
    "extending.md": "tests/drafters/test_extending.py::test_the_drafter_of_the_docs_drafts",
    "serving.md": "tests/serving/test_serving_page.py::test_the_pages_python_runs",
    "scaling.md": "tests/integrations/test_ray_page.py::test_the_pages_python_runs",
    "ui.md": "tests/serving/test_page.py::test_the_documented_python_runs",
}
# Blocks of Python, by page and beginning, that need what a test does not have.
NEEDS_MORE = {
    ("sharding.md", 'model = eagle_jax.load("llama-3.1-8b-instruct", mesh="data:2,model:4")'): "eight devices",
    ("sharding.md", "from jax import P"): "eight devices",
    ("api.md", "tools = api.read_tools(my_tools)"): "a template with tools; tests/text/test_tool_answer.py has one",
    ("sharding.md", "jax.distributed.initialize()"): "other processes; tests/test_hosts.py starts two",
}
# Modules whose docstrings show examples.
SHOWING = [path for path in sorted((ROOT / "eagle_jax").rglob("*.py")) if ">>> " in path.read_text()]
TARGETS = ("llama", "Llama-3.1-8B-Instruct", "path/to/target", "path/to/folder", *(pair.target for pair in PAIRS))
HEADS = ("eagle", "eagle-head", "my-head", "EAGLE3-LLaMA3.1-Instruct-8B", "path/to/head", "runs/first/head")
HEADS += tuple(pair.head for pair in PAIRS)
GIVEN = {
    "prompt.txt": "Tom has 3 apples.",
    "manual.txt": "Two dozen eggs are 24 eggs.",
    "question.jsonl": json.dumps({"question_id": 1, "category": "math", "turns": ["What is 2 + 3?"]}),
    "prompts.jsonl": json.dumps({"prompt": "What is 2 + 3?"}),
    "chats.jsonl": json.dumps({"instruction": "What is 2 + 3?", "response": "It is 5."}),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> pathlib.Path:
    """A folder with `target` and `head`."""
    folder = tmp_path_factory.mktemp("pair")
    sizes = dict(hidden_size=128, intermediate_size=128, head_dim=32)  # 128 inputs are a group of int4-128
    target, head = synthetic_pair(dataclasses.replace(TINY, vocab_size=2048, num_hidden_layers=1, **sizes))
    save_target(target, folder / "target")
    save_head(head, folder / "head", target=target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model_folders.PAIR / "target" / name, folder / "target")
    return folder


@pytest.fixture
def there(pair, tmp_path, monkeypatch) -> pathlib.Path:
    """The folder where a page runs."""
    for names, kind in ((TARGETS, "target"), (HEADS, "head")):
        for name in dict.fromkeys(names):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            if not (tmp_path / name).exists():
                (tmp_path / name).symlink_to(pair / kind)
    for name, text in GIVEN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pairs, "PACKAGE", tmp_path / "eagle_jax")
    monkeypatch.setattr(model_folders, "PAIR", pair)
    monkeypatch.setattr(model_folders, "SHIPPED_HEADS", {"eagle1": pair / "head"})
    return tmp_path


def lines_here(page: pathlib.Path) -> list[str]:
    """What is typed on a page and runs here."""
    typed = dict.fromkeys(shell(page))
    return [line for line in typed if not re.sub(r"^([A-Z_]+=\S+ )+", "", line).startswith(tuple(APART))]


def python_here(page: pathlib.Path) -> list[str]:
    """A page's blocks of Python that run here."""
    apart = tuple(begin for name, begin in NEEDS_MORE if name == page.name)
    code = [] if page.name in OWN_TEST else blocks(page.read_text(), "python")
    return [block for block in code if not block.startswith(apart or ("\0",))]


@pytest.mark.proof
@pytest.mark.parametrize("page", [page for page in PAGES if lines_here(page)], ids=lambda page: page.stem)
def test_what_a_page_has_typed_runs(run, there, page):
    for line in lines_here(page):
        given, pipe, command = line.rpartition(" | ")
        assert command.startswith("eagle-jax ") and (not pipe or given.startswith("cat ")), f"who runs this? {line}"
        typed = (there / given.split()[1]).read_text() if pipe else "Hi.\n"
        shown = run(*shlex.split(command)[1:], input=typed)
        assert shown.exit_code == 0, f"{line}\n{shown.output}"


@pytest.mark.proof
@pytest.mark.parametrize("page", [page for page in PAGES if python_here(page)], ids=lambda page: page.stem)
def test_a_pages_python_runs(there, page):
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    model = eagle_jax.load(dtype="float32")
    names = {"eagle_jax": eagle_jax, "jax": jax, "model": model, "prompt": question, "prompts": [question]}
    names |= {"new_params": eagle_jax.weights_of(model).target, "__name__": "page"}
    for block in python_here(page):
        if re.search(r"\*, ", block):
            _is_the_signature(block)
        else:
            exec(compile(block, f"{page.name}: {block.splitlines()[0]}", "exec"), names)


def _is_the_signature(block: str) -> None:
    """A call with all arguments and their defaults, as reference pages show it."""
    name, inside = re.fullmatch(r"\w+ = eagle_jax\.(\w+)\((.*)\)\n", block, flags=re.DOTALL).groups()
    written = eval(f"lambda {' '.join(inside.split())}: 0")
    shown, real = (inspect.signature(function).parameters for function in (written, getattr(eagle_jax, name)))
    assert [(p.name, p.default) for p in shown.values()] == [(p.name, p.default) for p in real.values()]


@pytest.mark.proof
@pytest.mark.parametrize("path", SHOWING, ids=lambda path: path.stem)
def test_the_examples_in_docstrings_run(there, path):
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_every_block_is_of_a_kind_that_runs_or_is_read():
    read = {"json": json.loads, "yaml": yaml.safe_load, "text": str}  # text: formulas and pictures
    for page in PAGES:
        fences = re.findall(r"^ *```(.*)$", page.read_text(), flags=re.MULTILINE)
        unknown = set(fences[::2]) - {"", "sh", "python", *read}
        assert not unknown and not any(fences[1::2]), f"{page.name} has blocks that nobody reads: {unknown}"
        for language, reader in read.items():
            for block in blocks(page.read_text(), language):
                for part in block.splitlines() if language == "json" else [block]:
                    reader(part)


def test_what_runs_elsewhere_or_not_at_all_is_on_a_page():
    typed = [line for page in PAGES for line in shell(page)]
    for begin in APART:
        assert any(line.startswith(begin) for line in typed), f"no page has {begin}"
    for name, begin in NEEDS_MORE:
        assert any(block.startswith(begin) for block in blocks((ROOT / "docs" / name).read_text(), "python")), begin
    for test in (*(test for test in APART.values() if "::" in test), *OWN_TEST.values()):
        file, name = test.split("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), flags=re.MULTILINE), f"there is no {test}"


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference.md").read_text()
    shown = re.findall(r"^::: eagle_jax\.[\w.]*?(\w+)$", page, flags=re.MULTILINE)
    settings = [kind for kind in typing.get_type_hints(TrainConfig).values() if dataclasses.is_dataclass(kind)]
    assert set(eagle_jax.__all__) <= set(shown)
    members = re.findall(r"\w+", *re.findall(r"members: \[(.*)\]", page))
    assert {kind.__name__ for kind in settings} <= {*shown, *members}
