"""`eagle-jax models`: what it lists."""

import json

from eagle_jax import api


def test_the_table(run):
    shown = run("models")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    first = lines.index(["vicuna-7b-v1.3", "(EAGLE-1/2)", "13.9", "7.1", "4.6"])
    assert lines[first + 1 : first + 3] == [["lmsys/vicuna-7b-v1.3", "6.74"], ["yuhuili/EAGLE-Vicuna-7B-v1.3", "0.24"]]
    assert ["qwen3-8b", "(EAGLE-3)", "16.4+", "8.8+", "6.2+"] in lines
    unknown = lines.index(["gpt-oss-20b", "(EAGLE-3)"])
    assert lines[unknown + 1] == ["openai/gpt-oss-20b", "?"]


def test_names_stay_whole_in_a_narrow_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = run("models").stdout.split()
    assert {pair.name for pair in api.PAIRS} <= set(words)


def test_json(run):
    rows = {row["name"]: row for row in json.loads(run("models", "--json").stdout)}
    assert list(rows) == [pair.name for pair in api.PAIRS]
    row = rows["llama-3.1-8b-instruct"]
    assert (row["method"], row["head"]) == ("EAGLE-3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    assert (row["target_parameters"], row["head_parameters"]) == (8030261248, 424689664)
    assert set(row["memory"]) == {"bf16", "int8", "int4"} and rows["qwen3-8b"]["head_parameters"] is None
    assert rows["kimi-k2.6"]["target_parameters"] is rows["kimi-k2.6"]["memory"] is None
