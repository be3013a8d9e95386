"""`eagle-jax serve`: what it starts, and what it says."""

import sys

import pytest

from eagle_jax import api, serving
from eagle_jax.serving import bound


def test_it_says_where_it_is_and_what_it_does(fake, run):
    shown = run(
        "serve", "--slots", "4", "--max-tokens", "300", "--max-queue", "9", "--max-seconds", "60", "--tree", "6,3,2"
    )
    assert (shown.exit_code, shown.stdout) == (0, ""), shown.stderr
    assert "Serving smollm2-135m-instruct: 4 slots of 512 tokens, trees of 6 nodes, on " in shown.stderr
    assert "more than" not in shown.stderr
    assert "http://127.0.0.1:8000/v1" in shown.stderr and "api-key" not in shown.stderr
    how = dict(rows=4, max_tokens=300, max_queue=9, prefix_cache_bytes=1 << 30, drafter="auto", tree=(6, 3, 2))
    assert fake.engines == [how, "closed"]
    ((names, served),) = fake.served
    assert served["tool_format"] is None
    assert names == ["smollm2-135m-instruct"] and served["limits"].answer_seconds == 60.0 and served["api_key"] is None


def test_the_memory_for_prefixes_is_given_to_the_engine(fake, run):
    run("serve", "--prefix-cache-bytes", "0")
    assert fake.engines[0]["prefix_cache_bytes"] == 0


def test_it_says_what_became_of_what_was_asked_for(fake, run):
    shown = run("serve", "--max-tokens", "4096", "--tool-format", "hermes")
    assert fake.served[0][1]["tool_format"] == "hermes"
    assert "  --max-tokens 4096 is more than the model's context of 512\n" in shown.stderr
    assert "no drafting" in shown.stderr


def test_it_warns_of_open_doors(fake, run):
    open_door = run("serve", "--host", "0.0.0.0", "--drafter", "none", "--name", "mine")
    assert "Serving mine: 8 slots" in open_door.stderr and "no drafting" in open_door.stderr
    assert "there is no --api-key" in open_door.stderr
    assert "there is no --api-key" not in run("serve", "--host", "0.0.0.0", "--api-key", "k").stderr
    assert "there is no --api-key" not in run("serve", "--host", "::1").stderr


def test_addresses_in_brackets_are_no_markup(fake, run):
    assert "  http://[fd00::1]:8000/v1 " in run("serve", "--host", "[fd00::1]").stderr


def test_a_taken_port_is_known_before_anything_is_loaded(fake, run, monkeypatch):
    monkeypatch.setattr(serving, "bound", bound)
    (taken,) = bound("127.0.0.1", 0)  # as of a server that still loads, and does not listen yet
    shown = run("serve", "--port", str(taken.getsockname()[1]))
    taken.close()
    assert shown.exit_code == 2 and "address already in use; choose another host or port" in shown.stderr
    assert "cannot bind nothing.invalid, port 8000" in run("serve", "--host", "nothing.invalid").stderr
    assert not fake.engines and not fake.loads


def test_the_key_may_be_in_the_environment(fake, run, monkeypatch):
    monkeypatch.setenv("EAGLE_JAX_API_KEY", "secret")
    shown = run("serve")
    assert fake.served[0][1]["api_key"] == "secret" and "secret" not in shown.output


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--port", "70000"), "'--port'"),
        (("--slots", "0"), "'--slots'"),
        (("--prefix-cache-bytes", "-1"), "'--prefix-cache-bytes'"),
        (("--max-tokens", "1"), "'--max-tokens'"),
        (("--tree", "x"), "--tree 'x'"),
        (("--tool-format", "xml"), "--tool-format 'xml' is none of harmony, mistral-args,"),
        (("--reasoning-format", "xml"), "--reasoning-format 'xml' is none of harmony, gemma4,"),
    ],
)
def test_misuse(fake, run, options, sentence):
    shown = run("serve", *options)
    assert shown.exit_code == 2 and sentence in shown.stderr and not fake.engines


def test_without_the_extra_it_says_what_to_install(fake, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "eagle_jax.serving", None)
    monkeypatch.delattr("eagle_jax.serving")
    shown = run("serve")
    assert shown.exit_code == 2 and "install the extra: pip install 'eagle-jax[serve]'" in shown.stderr


def test_what_was_fastest_is_kept(fake, run, monkeypatch):
    assert run("serve").exit_code == 0 and fake.kept == ["a finding"]
    assert run("serve", "--tree", "6,3,2").exit_code == 0 and len(fake.kept) == 1

    def full(found):
        raise OSError("no room on /cache")

    monkeypatch.setattr(api, "keep_budgets", full)
    shown = run("serve")
    assert shown.exit_code == 0 and "The fastest trees are not saved: no room on /cache" in shown.stderr
