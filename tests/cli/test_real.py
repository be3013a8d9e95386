"""The commands over the real api, on a tiny random pair with the shipped tokenizer; nothing here is a stand-in."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import eagle_jax
from eagle_jax.converters import save_head, save_target
from eagle_jax.testing import TINY, synthetic_pair

TOKENIZER = pathlib.Path(eagle_jax.__file__).parent / "pair" / "target"
SHORT = ("--max-new-tokens", "12", "--tree", "6,2,2")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, ...]:
    """The options that name the pair."""
    folder = tmp_path_factory.mktemp("pair")
    target, head = synthetic_pair(dataclasses.replace(TINY, vocab_size=2048))
    save_target(target, folder / "target")
    save_head(head, folder / "head", target=target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, folder / "target")
    return ("--target", str(folder / "target"), "--head", str(folder / "head"))


def test_eagle_writes_what_plain_decoding_writes(run, pair):
    asked = ("generate", "Tom has 3 apples.", *pair, "--json", *SHORT, "--temperature", "1", "--seed", "5")
    plain, eagle = (json.loads(run(*asked, "--drafter", name).stdout) for name in ("none", "eagle"))
    assert eagle["token_ids"] == plain["token_ids"] and len(eagle["token_ids"]) > 0
    assert plain["stats"]["mean_accepted_length"] in (1.0, None)
    assert eagle["stats"]["steps"] <= plain["stats"]["steps"]


def test_streaming_writes_the_same_text(run, pair):
    asked = ("generate", "Tom has 3 apples.", *pair, *SHORT)
    whole = json.loads(run(*asked, "--json").stdout)["text"]
    streamed = run(*asked)
    assert streamed.stdout == whole + "\n" and " steps, " in streamed.stderr


def test_the_bench_finds_identical_texts(run, pair, tmp_path):
    questions = [
        {"question_id": 1, "category": "math", "turns": ["What is 2 + 2?", "And 3 + 3?"]},
        {"question_id": 2, "category": "long", "turns": ["word " * 600]},
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, questions)))
    shown = run("bench", "--questions", str(tmp_path / "q.jsonl"), *pair, *SHORT, "--json")
    report = json.loads(shown.stdout)
    eagle = report["categories"][-1]["methods"]["eagle"]
    assert eagle["answers"] == eagle["identical"] == 2 and report["skipped"] == [2]
    assert eagle["tokens_per_second"] > 0 and eagle["mean_accepted_length"] >= 1


def test_an_evaluation_with_its_report(run, pair, tmp_path):
    question = {"question_id": 1, "category": "math", "turns": ["What is 2 + 2?"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(question))
    folder = tmp_path / "run"
    asked = ("eval", str(tmp_path / "q.jsonl"), "--methods", "plain,eagle:6,2,2", "--out", str(folder), *pair[:2])
    shown = run(*asked, "--head", pair[3], "--max-new-tokens", "12")
    assert shown.exit_code == 0, shown.output
    report = json.loads(run("eval", "report", str(folder), "--json").stdout)
    plain, eagle = (report["tasks"][-1]["methods"][name] for name in ("plain", "eagle:6,2,2"))
    assert eagle["identical"] == eagle["answers"] == 1 and eagle["tokens"] == plain["tokens"]
    assert plain["mean_accepted_length"] == 1.0 <= eagle["mean_accepted_length"] and eagle["steps"] <= plain["steps"]
    assert set(report["traces"]["parts"]) == {"plain", "eagle:6,2,2"} and len(report["traces"]["tree"]["parents"]) == 6
    assert run("eval", "compare", str(folder / "plain.jsonl"), str(folder / "eagle_6_2_2.jsonl")).exit_code == 0


def test_a_conversation(run, pair):
    questions = [f"{'What is 2 + 2, and why? ' * 8}{turn}" for turn in range(3)]
    texts, messages, model = [], [], eagle_jax.load(*pair[1::2])
    for question in questions:
        messages.append({"role": "user", "content": question})
        texts.append(eagle_jax.generate(model, messages, max_new_tokens=12, tree=(6, 2, 2)).text)
        messages.append({"role": "assistant", "content": texts[-1]})
    for memory in ("1000000", "0"):
        typed = "\n".join([*questions, "/stats", "/quit"])
        shown = run("chat", *pair, *SHORT, "--prefix-cache-bytes", memory, input=f"{typed}\n")
        assert shown.exit_code == 0, shown.stderr
        assert shown.stdout.startswith("\n".join(texts) + "\n3 answers, ")


def test_inspect(run, pair):
    _, target, _, head = pair
    assert "llama" in run("inspect", target).stdout
    assert "EAGLE-1/2 head" in run("inspect", head).stdout


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--temperature", "-1"), "temperature=-1.0 is negative"),
        (("--top-p", "0"), "top_p=0.0 is outside (0, 1]"),
        (("--top-p", "1.5"), "top_p=1.5 is outside (0, 1]"),
        (("--min-p", "2"), "min_p=2.0 is outside [0, 1]"),
        (("--top-k", "-3"), "top_k=-3"),
        (("--max-new-tokens", "0"), "max_new_tokens=0"),
        (("--num-samples", "0"), "num_samples=0"),
        (("--stop", ""), "stop string ''"),
        (("--tree", "-1,5,0"), "parents"),
        (("--tree", "0,0,0"), "a dynamic tree of 0 nodes"),
        (("--head", "no/such/folder"), "there is no model folder no/such/folder"),
        (("--target", "no/such/folder"), "there is no model folder no/such/folder"),
    ],
)
def test_misuse_is_one_sentence(run, pair, options, sentence):
    shown = run("generate", "hi", *pair, *options)
    assert shown.exit_code == 2 and shown.stdout == "", shown.output
    assert shown.stderr.startswith(f"eagle-jax: {sentence}") and shown.stderr.count("\n") == 1, shown.stderr


def test_a_prompt_longer_than_the_context(run, pair):
    shown = run("generate", "word " * 600, *pair)
    assert shown.exit_code == 2 and "the model's context is 512" in shown.stderr


def test_ctrl_c_while_the_command_starts():
    """Before there is anybody to catch it: nothing but the signal ends the process."""
    command = [sys.executable, "-X", "importtime", "-m", "eagle_jax", "models"]
    # a shell lets what it starts in the background ignore the signal, and so does what that starts
    heeding = f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv({command[0]!r}, {command!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", heeding], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    next(line for line in process.stderr if line.rstrip().endswith("jaxlib.version"))  # it imports jax now
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in said


def test_ctrl_c_in_a_terminal(pair):
    """A signal while text is streaming: what was written stays, and nothing is said about it."""
    command = [sys.executable, "-m", "eagle_jax", "generate", "hi", *pair, "--max-new-tokens", "400", "--tree", "6,2,2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) in ((130, b""), (0, said))  # 0: it was done before the signal came
