"""Two replicas of the server behind one address: the `openai` client gets the engine's texts, whole and streamed."""

import functools
import os
import pathlib
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import openai
import pytest
from small_engine import ENGINE

import eagle_jax
from eagle_jax.api import Engine, EngineClosed, Model
from eagle_jax.serving import bound

ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed: make ray")
pytest.importorskip("ray.data", reason="Ray Data is not installed: make ray")

from ray.data import Dataset  # noqa: E402

from eagle_jax.integrations.ray.arguments import check_load  # noqa: E402
from eagle_jax.integrations.ray.data import answer  # noqa: E402
from eagle_jax.integrations.ray.serve import _Replica, deployment  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
NAME, KEY, REQUESTS = "tiny", "a key", 24
HOW = dict(prompt="Tom has", temperature=1.0, max_tokens=24)
# Functions here are sent to replicas as they are: these cannot import the tests.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def load_and_sign(load: Callable[[], Model], folder: pathlib.Path) -> Model:
    """The model, from a process that leaves its number, and another whenever its engine takes a request."""
    (folder / str(os.getpid())).touch()
    submit = Engine.submit_all

    def signed(engine, *given, **how):
        (folder / f"{os.getpid()}-answered").touch()
        return submit(engine, *given, **how)

    Engine.submit_all = signed
    return load()


@pytest.fixture(scope="module")
def signs(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def address(load, started, signs) -> Iterator[str]:
    (listening,) = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    listening.close()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    one_of = functools.partial(load_and_sign, load, signs)
    app = deployment(one_of, NAME, engine=ENGINE, server={"api_key": KEY}, num_replicas=2)
    serve.run(app, name=NAME, route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.fixture
def client(address) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=60.0) as client:
        yield client


def expected(model: Model, seeds: list[int]) -> list[str]:
    prompts, how = [HOW["prompt"]] * len(seeds), dict(batch_size=4, tree=ENGINE["tree"])
    how |= dict(temperature=HOW["temperature"], max_new_tokens=HOW["max_tokens"])
    return [one.text for one in eagle_jax.generate(model, prompts, seed=seeds, **how)]


def test_both_replicas_answer_with_the_engines_texts(client, model, signs):
    """At once, so that one replica alone is not enough, half of them as streams."""
    texts: dict[int, str] = {}
    pieces: list[int] = []

    def ask(seed: int) -> None:
        asked = dict(model=NAME, seed=seed, **HOW)
        if seed % 2:
            chunks = list(client.completions.create(stream=True, **asked))
            texts[seed] = "".join(chunk.choices[0].text for chunk in chunks)
            pieces.append(len(chunks))
        else:
            texts[seed] = client.completions.create(**asked).choices[0].text

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(REQUESTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts.get(seed) for seed in range(REQUESTS)] == expected(model, list(range(REQUESTS)))
    assert len(set(texts.values())) > REQUESTS / 2, "texts that are all the same would prove nothing"
    assert max(pieces) > 2, "nothing came in pieces"
    assert len(list(signs.glob("*-answered"))) == 2, "one replica answered all"


def test_other_seeds_would_be_seen(client, model):
    """The negative control of the test above."""
    text = client.completions.create(model=NAME, seed=REQUESTS + 1, **HOW).choices[0].text
    assert [text] == expected(model, [REQUESTS + 1]) and [text] != expected(model, [REQUESTS + 2])


def test_errors_keys_and_health_are_the_servers(address, client):
    with urllib.request.urlopen(f"{address}/health", timeout=30) as response:
        assert b'"status":"ok"' in response.read()
    with pytest.raises(openai.BadRequestError, match="temperature=-1; expected a number from 0 to 2"):
        client.completions.create(model=NAME, prompt="a", temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another").models.list()
    assert [one.id for one in client.models.list()] == [NAME]


def test_what_no_engine_takes_is_refused_before_anything_starts():
    said = "engine has 'row', which is not an option of an engine; expected rows, max_tokens, drafter"
    with pytest.raises(TypeError, match=said):
        deployment(print, NAME, engine={"row": 4})
    with pytest.raises(TypeError, match=said):
        answer(object.__new__(Dataset), print, engine={"row": 4})
    said = "load='folder'; expected a function without arguments that returns a model, such as functools"
    with pytest.raises(TypeError, match=said):  # not by the rooms' own functions, whose types the suite checks itself
        check_load("folder")


def test_a_replica_whose_engine_is_gone_is_not_healthy(model):
    replica = _Replica(lambda: model, NAME, ENGINE, {})
    replica.check_health()
    replica._engine.close()
    with pytest.raises(EngineClosed, match="takes no more requests"):
        replica.check_health()


def test_an_answer_under_way_is_ended_before_its_replica(client):
    """Last, for it stops the application: what streams goes on to its end, and what is new is refused."""
    long = HOW | {"max_tokens": 240, "seed": 3, "extra_body": {"ignore_eos": True}}
    came: list[float] = []
    reasons: list[str | None] = []

    def follow() -> None:
        for chunk in client.completions.create(model=NAME, stream=True, **long):
            came.append(time.monotonic())
            reasons.append(chunk.choices[0].finish_reason)

    following = threading.Thread(target=follow)
    following.start()
    while not came:
        time.sleep(0.001)
    told = time.monotonic()
    serve.delete(NAME)
    following.join()
    assert reasons[-1] == "length" and came[-1] > told, "it was over before the replica was told to stop"
    with pytest.raises(openai.APIStatusError):
        client.completions.create(model=NAME, **HOW)
