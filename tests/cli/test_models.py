"""`eagle-jax models`: what it lists."""

import json

from eagle_jax import api


def test_the_table(run):
    shown = run("models")
    assert shown.exit_code == 0
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.strip()}
    assert {pair.name for pair in api.PAIRS} <= set(lines)
    vicuna = lines["vicuna-7b-v1.3"]
    assert "lmsys/vicuna-7b-v1.3" in vicuna and "6.74 + 0.24 B" in vicuna and "13.9 GB" in vicuna
    assert "16.4+ GB" in lines["qwen3-8b"]


def test_json(run):
    rows = {row["name"]: row for row in json.loads(run("models", "--json").stdout)}
    assert list(rows) == [pair.name for pair in api.PAIRS]
    row = rows["llama-3.1-8b-instruct"]
    assert (row["method"], row["head"]) == ("EAGLE-3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    assert (row["target_parameters"], row["head_parameters"]) == (8030261248, 424689664)
    assert set(row["memory"]) == {"bf16", "int8", "int4"} and rows["qwen3-8b"]["head_parameters"] is None
