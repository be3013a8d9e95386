"""The Python of docs/serving.md runs as it stands there, with a tiny model in the shipped pair's place."""

import pathlib
import re
from collections.abc import Iterator

import pytest
from caller import CALLER
from served import KEY, Served
from speller import DYNAMIC, SPELLER

import eagle_jax
from eagle_jax import api, serving

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def served(engines) -> Iterator[Served]:
    """A server with a model that calls functions too."""
    with api.Engine(CALLER, rows=2, max_tokens=48, steps=2, **DYNAMIC) as caller:
        served = Served(engines | {"caller": caller}, api_key=KEY)
        yield served
        served.stop()


def test_the_pages_python_runs(served, monkeypatch, capsys):
    apps, made, real = [], [], api.Engine

    def engine(model, **how):
        made.append(real(model, rows=2, max_tokens=56, steps=2, **DYNAMIC))
        return made[-1]

    monkeypatch.setattr(eagle_jax, "load", lambda: SPELLER)
    monkeypatch.setattr(api, "Engine", engine)
    monkeypatch.setattr(serving.Server, "run", lambda server: apps.append(server.config.app))
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    here = {
        "http://127.0.0.1:8000": served.url,
        'api_key="-"': 'api_key="a key"',
        '"smollm2-135m-instruct"': '"speller"',
    }
    here |= {'"qwen"': '"caller"', '"weather"': '"look"'}
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        for there, instead in here.items():
            block = block.replace(there, instead)
        exec(compile(block, "serving.md", "exec"), names)
    said = capsys.readouterr().out
    assert 'look {"at": "sea"}\n' in said
    for prompt, tokens in ((names["question"], 15), ("Tom has 3 apples.", 32)):
        result = api.generate(SPELLER, prompt, temperature=1.0, seed=7, max_new_tokens=tokens, batch_size=1, **DYNAMIC)
        assert result.text in said, prompt
    assert names["result"].token_ids == result.token_ids
    (app,) = apps
    assert list(app.state.service.engines) == ["eagle", "plain"] and app.routes[-1].path == "/"
    names["client"].close()
    for one in made:
        one.close()
