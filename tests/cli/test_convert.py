"""`eagle-jax convert`: its arguments reach the api, and the real thing writes a folder."""

import json
import os
import pathlib
import signal
import time

import pytest

import eagle_jax
from eagle_jax.cli import console

SHIPPED = pathlib.Path(eagle_jax.__file__).parent / "pair" / "head_eagle3"


def test_arguments(fake, run):
    asked = (
        "convert",
        "src",
        "dst",
        "--to",
        "speculators",
        "-t",
        "owner/model",
        "--head-config",
        '{"rope_theta": 1e4}',
        "--dtype",
        "float16",
    )
    shown = run(*asked)
    assert (shown.exit_code, shown.stdout) == (0, "Wrote dst for speculators.\n")
    assert fake.conversions == [("src", "dst", "speculators", "owner/model", {"rope_theta": 10000.0}, "float16")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "gguf"], "'gguf' is not one of 'safeailab', 'sglang', 'speculators'"),
        ([], "a head is converted with --to safeailab, sglang, speculators or dflash"),
        (["--to", "sglang", "--head-config", "{"], "--head-config is not valid JSON"),
        (["--to", "sglang", "--head-config", "[" * 100_000], "--head-config is not valid JSON"),
        (["--dtype", "float32"], "a head is converted with --to safeailab, sglang, speculators or dflash"),
        (["--to", "sglang", "--dtype", "int8"], "'int8' is not one of 'float32', 'bfloat16', 'float16'"),
        (["--to", "sglang", "--head-config", "[1]"], "--head-config [1] is not a JSON object"),
    ],
)
def test_misuse(fake, run, arguments, sentence):
    shown = run("convert", "src", "dst", *arguments)
    assert (shown.exit_code, shown.stdout, fake.conversions) == (2, "", [])
    assert sentence in " ".join(shown.stderr.replace("│", " ").split())


def test_a_gguf_file(fake, run):
    shown = run("convert", "model.gguf", "dst", "--dtype", "float32")
    assert (shown.exit_code, shown.stdout) == (0, "Wrote dst.\n")
    run("convert", "model.gguf", "dst")
    assert fake.conversions == [("model.gguf", "dst", "float32"), ("model.gguf", "dst", "bfloat16")]
    shown = run("convert", "model.gguf", "dst", "--to", "sglang")
    assert shown.exit_code == 2 and "--to is for heads, and model.gguf is a GGUF file; leave it out" in shown.stderr


def test_a_folder(run, tmp_path):
    shown = run("convert", str(SHIPPED), str(tmp_path / "new"), "--to", "sglang")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads((tmp_path / "new" / "config.json").read_text())["architectures"] == ["LlamaForCausalLMEagle3"]
    again = run("convert", str(tmp_path / "nothing"), str(tmp_path / "new"), "--to", "sglang")
    assert again.exit_code == 2 and again.stderr.startswith("eagle-jax: there is no model folder ")


def test_an_empty_name_is_not_the_folder_one_is_in(run):
    for command in (["convert", str(SHIPPED), "", "--to", "sglang"], ["quantize", str(SHIPPED), ""]):
        shown = run(*command)
        assert (shown.exit_code, shown.stderr) == (2, "eagle-jax: DST is empty; name the folder to write to\n")


def test_sigterm_leaves_nothing_behind(fake, run):
    fake.error = None
    with console.writing("new", "Converting"), pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_datastore_says_what_it_left_out(fake, run):
    fake.unreadable = ["chats.jsonl:3", "chats.jsonl:9"]
    shown = run("datastore", "chats.jsonl", "--out", "store")
    assert shown.exit_code == 0 and shown.stdout == "1 texts, 1,200 tokens: store\n"
    assert shown.stderr == "Skipped 2 records, the first at chats.jsonl:3: not JSON.\n"
