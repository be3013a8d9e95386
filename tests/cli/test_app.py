"""What the commands have in common, and the two small ones."""

import json
import subprocess
import sys

import pytest
import typer.main

import eagle_jax
from eagle_jax.cli.app import app


@pytest.mark.parametrize("command", ["generate", "chat", "bench", "inspect", "models", "convert", "demo"])
def test_help_explains_and_shows_examples(run, command):
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert f"Usage: eagle-jax {command}" in shown.stdout or f" {command} " in shown.stdout
    assert f"eagle-jax {command}" in shown.stdout.split("Examples")[1]


def test_the_list_of_commands(run):
    shown = run("--help")
    assert all(
        command in shown.stdout for command in ("generate", "chat", "bench", "inspect", "models", "convert", "demo")
    )
    assert run().exit_code == 2  # no arguments: the same list


def test_whoever_changes_the_targets_config_may_change_the_heads():
    def commands(group):
        for name, command in group.commands.items():
            yield from commands(command) if hasattr(command, "commands") else [(name, command)]

    of = {
        name: {option for one in command.params for option in one.opts}
        for name, command in commands(typer.main.get_command(app))
    }
    changing = {name: options for name, options in of.items() if "--target-config" in options}
    assert len(changing) >= 10 and not [name for name, options in changing.items() if "--head-config" not in options]


def test_version(run):
    assert run("--version").stdout.startswith(f"eagle-jax {eagle_jax.__version__}, jax ")


def test_python_m_is_the_command():
    command = [sys.executable, "-m", "eagle_jax", "--version"]
    assert eagle_jax.__version__ in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_inspect_shows_facts(fake, run):
    shown = run("inspect", "folder")
    assert shown.exit_code == 0
    rows = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines() if len(line.split()) > 1)
    assert rows["kind"].strip() == "EAGLE-1/2 head" and rows["loads"].strip() == "yes"
    assert rows["parameters"].strip() == "1,234,567 in 9 tensors"
    assert rows["stored"].strip() == "as    bfloat16 (81%), float32 (19%)"
    assert rows["files"].strip() == "model.safetensors 2.5 MB"
    assert rows["rope.theta"].strip() == "10000.0" and "sliding_window" not in rows
    assert json.loads(run("inspect", "folder", "--json").stdout)["parameters"] == 1234567


def test_inspect_tells_why_a_folder_would_not_load(fake, run):
    fake.problem = "an EAGLE-3 head; expected EAGLE-1 or EAGLE-2"
    assert "no: an EAGLE-3 head; expected EAGLE-1 or EAGLE-2" in run("inspect", "folder").stdout


def test_inspect_of_nothing(fake, run):
    fake.error = FileNotFoundError("nowhere holds no config.json")
    shown = run("inspect", "nowhere")
    assert (shown.exit_code, shown.stderr) == (2, "eagle-jax: nowhere holds no config.json\n")


def test_demo_answers_from_the_published_model_in_both_ways(fake, run):
    shown = run("demo")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(f"eagle_jax {eagle_jax.__version__} on ")
    assert fake.loads == [("smollm2-135m-instruct", None, None)]
    assert shown.stdout.count("> ") == 3 and shown.stdout.count("Hello [b]world[/b].") == 6
    said = "plain 100 tokens/s, EAGLE 100 tokens/s (1.00 times), 3.00 tokens a step, identical texts: yes"
    assert shown.stdout.count(said) == 8 and shown.stdout.count(f"{said} (3 of 3)") == 2


def test_demo_says_where_texts_differ(fake, run):
    fake.plain_ids = [5, 6, 8]
    assert "identical texts: NO (0 of 3)" in run("demo").stdout


def test_demo_without_network_shows_the_toy(fake, run):
    fake.default = "toy"
    shown = run("demo")
    assert shown.exit_code == 0 and fake.loads == [("toy", None, None)]
    assert "> Tim works 6 hours" in shown.stdout


def test_demo_of_the_toy_downloads_nothing(fake, run):
    shown = run("demo", "--toy")
    assert shown.exit_code == 0 and fake.loads == [("toy", None, None)]
