"""The page's server: what it sends, what it refuses, and that what it tells of an answer is the answer."""

import asyncio
import dataclasses
import json
import pathlib
import re
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from served import KEY, Served
from speller import DYNAMIC, SPELLED, SPELLER, asked

import eagle_jax
from eagle_jax import api
from eagle_jax.api import Engine, generate
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.protocols.calls import chat_call
from eagle_jax.serving.errors import ErrorResponse
from eagle_jax.serving.ui import Page
from eagle_jax.serving.ui import engines as engines_module
from eagle_jax.serving.ui.engines import DraftMethod, Engines
from eagle_jax.serving.ui.routes import FILES

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "ui.md"
METHOD = DraftMethod("auto", DYNAMIC["tree"])
ASKED = {"messages": asked("Spell!"), "temperature": 0, "drafter": "eagle", "tree": list(METHOD.tree)}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Engine(SPELLER, rows=1, max_tokens=48, steps=1, record=True, **DYNAMIC) as engine:
        page = Page(engine, name="speller", device="a desk", **DYNAMIC)
        served = Served({"speller": engine}, api_key=KEY, routes=page.routes)
        yield served
        served.stop()


def ask(served: Served, path: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    how = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"} | headers
    return urllib.request.urlopen(urllib.request.Request(served.url + path, data, how), timeout=60)


def events(served: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    with ask(served, path, ASKED | body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [json.loads(told.removeprefix(b"data: ")) for told in answer.read().split(b"\n\n") if told]


def refusal(served: Served, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(served, path, body, **headers)
    with refused.value as error:
        return error.code, json.load(error)["error"]["message"]


@pytest.mark.proof
def test_the_page_loads_nothing_from_elsewhere(served):
    with ask(served, "/", Authorization="") as page:
        text, headers = page.read().decode(), page.headers
    assert page.url == served.url + "/ui" and headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in headers["content-security-policy"] and "unsafe" not in str(headers)
    assert headers["x-content-type-options"] == "nosniff"
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', text)
    for name in [*loaded, *(f"ui/{file.name}" for file in FILES.iterdir())]:
        with ask(served, f"/{name}", Authorization="") as file:
            code = file.read().decode()
        assert not re.search(r"https?://(?!www\.w3\.org/)|innerHTML|insertAdjacentHTML|document\.write", code), name
        for imported in re.findall(r'from "\./([^"]+)"', code):
            assert (FILES / imported).is_file()
    assert set(re.findall(r'\$\("([^"]+)"\)', "".join(f.read_text() for f in FILES.iterdir()))) <= set(
        re.findall(r'id="([^"]+)"', text)
    )


def test_the_page_is_told_what_the_model_has(served):
    with ask(served, "/ui/about") as answer:
        about = json.load(answer)
    names = [drafter["name"] for drafter in about["drafters"] if drafter["trees"]]
    assert names == ["eagle", "token-recycling", "hybrid"] and about["drafter"] == "eagle"
    assert {"medusa", "draft-model", "rest"}.isdisjoint(drafter["name"] for drafter in about["drafters"])
    assert (about["model"], about["device"], about["max_tokens"]) == ("speller", "a desk", 48)
    assert about["tree"] == list(METHOD.tree)


def test_a_chat_tells_each_token_and_each_tree(served):
    first, *steps, last = events(served, "/ui/chat")
    alone = generate(SPELLER, asked("Spell!"), max_new_tokens=40, **DYNAMIC)
    tokens = [token for told in (first, *steps) for token in told["tokens"]]
    assert "".join(token["text"] for token in tokens) == SPELLED
    assert [token["id"] for token in tokens] == alone.token_ids
    assert (first["drafted"], "tree" in first) == (0, False)
    assert [len(told["tokens"]) for told in steps] == alone.stats.accepted_lengths
    for told in steps:
        tree, sizes = told["tree"], (len(told["tokens"]) - 1, len(told["tokens"]))
        assert told["drafted"] == len(tree["accepted"]) - 1 == sizes[tree["drawn"] is None]
        assert tree["parents"][0] == -1 and all(above < node for node, above in enumerate(tree["parents"]))
        path = tree["accepted"]
        assert [tree["parents"][node] for node in path] == [-1, *path[:-1]]
    seconds = [told["seconds"] for told in steps]
    assert seconds == sorted(seconds) and seconds[0] > 0
    assert last["done"]["tokens"] == len(tokens) and last["done"]["steps"] == len(steps)
    assert last["done"]["reason"] == "stop"
    assert tree["texts"][tree["accepted"][-1]] == "<|end|>" and tree["drawn"] is None


def test_a_race_is_won_with_the_same_text(served):
    told = events(served, "/ui/race")
    assert told[0] == {"preparing": True}
    alone = generate(SPELLER, asked("Spell!"), max_new_tokens=40, **DYNAMIC)
    for lane in ("plain", "drafted"):
        mine = [event for event in told if event.get("lane") == lane]
        ids = [token["id"] for event in mine if "tokens" in event for token in event["tokens"]]
        assert ids == alone.token_ids and mine[-1]["done"]["tokens"] == len(ids)
    verdict = told[-1]["verdict"]
    assert verdict["identical"] and verdict["same"] == verdict["tokens"] == len(alone.token_ids)
    assert verdict["times"] > 0
    clocks = {"plain": 0.0, "drafted": 0.0}
    for event in told[1:-1]:
        if "tokens" in event:
            assert clocks[event["lane"]] == min(clocks.values()), "the one whose clock shows less goes next"
            clocks[event["lane"]] = event["seconds"]
        else:
            del clocks[event["lane"]]


def test_a_race_that_takes_too_long_ends_with_a_word(served, monkeypatch):
    service = served.app.state.service
    monkeypatch.setattr(service, "limits", dataclasses.replace(service.limits, answer_seconds=0.0))
    *_, last = events(served, "/ui/race")
    assert last["error"]["message"].startswith("the race exceeded the limit of 0 seconds")
    monkeypatch.undo()
    assert "verdict" in events(served, "/ui/race")[-1], "the next one runs"


def test_of_two_races_at_once_one_is_refused(served, monkeypatch):
    page = Page(served.engines["speller"], name="speller", device="a desk", **DYNAMIC)

    async def asked_for(request):
        return METHOD, chat_call({"messages": ASKED["messages"]})

    async def gone(*_):
        raise OSError("the client is gone")

    async def story() -> None:
        monkeypatch.setattr(page, "_parse_request", asked_for)
        request = types.SimpleNamespace(app=served.app)
        first, second = await asyncio.gather(page.race(request), page.race(request), return_exceptions=True)
        assert isinstance(second, ErrorResponse) and second.status == 429
        with pytest.raises(OSError, match="gone"):
            await first({"type": "http"}, gone, gone)
        await page.race(request)  # the next one may

    asyncio.run(story())


def test_what_is_wrong_is_one_sentence(served):
    assert refusal(served, "/ui/about", Authorization="")[0] == 401
    assert refusal(served, "/ui/chat", ASKED, Authorization="Bearer no")[0] == 401
    assert refusal(served, "/ui/chat", ASKED, **{"Content-Type": "text/plain", "Origin": "https://a.b"})[0] == 415
    assert refusal(served, "/ui/race", {"drafter": "eagle"}) == (400, "messages is missing")
    status, message = refusal(served, "/ui/chat", ASKED | {"tree": [1, 2.5]})
    assert (status, message) == (400, "tree is neither a word nor up to 256 whole numbers from -1 to 256")
    for path, wrong, said in (
        ("/ui/chat", {"drafter": "crystal ball"}, "drafter='crystal ball' is not known"),
        ("/ui/chat", {"drafter": "medusa"}, 'drafter="medusa" needs Medusa heads'),
        ("/ui/chat", {"tree": [60, 30, 10]}, "a tree of 60 nodes and depth 31; expected at most 256 and 16"),
        ("/ui/race", {"tree": "palm"}, "tree='palm' is not a tree"),
        ("/ui/chat", {"n": 2}, "n=2; the page shows one answer at a time"),
    ):
        status, message = refusal(served, path, ASKED | wrong)
        assert status == 400 and message.startswith(said), wrong
    for path in ("/ui/chat", "/ui/race"):
        *_, last = events(served, path, max_tokens=47)
        assert last["error"]["message"].startswith("the prompt has 8 tokens and its answer may have 47"), path
        *_, last = events(served, path, messages=asked("Spell! " * 20))
        assert last["error"]["message"].startswith("the prompt has 142 tokens"), path
    served.app.state.service.draining = True
    try:
        assert refusal(served, "/ui/chat", ASKED)[0] == 503
    finally:
        served.app.state.service.draining = False


class FakeEngine(Engine):
    """Takes no time to make, and no room but for one tree."""

    closed: list[str] = []

    def __init__(self, model: Any, *, drafter: str, tree: Any, **room: Any):
        if tree == [1, 1, 1]:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        self.name, self._closing, self._broken = drafter, False, ""

    def close(self, *, drain: bool = True) -> None:
        self.closed.append(self.name)


def test_engines_make_room_for_each_other(monkeypatch):
    monkeypatch.setattr(engines_module, "Engine", FakeEngine)
    monkeypatch.setattr(engines_module, "tree_shape", lambda *how: TreeShape(nodes=8, depth=3))
    monkeypatch.setattr(FakeEngine, "closed", [])

    async def story() -> None:
        engines = Engines(SPELLER, max_engines=3, first={METHOD: FakeEngine(SPELLER, drafter="first", tree=None)})
        methods = [engines.method(name, "auto") for name in ("none", "lookahead", "prompt-lookup")]
        assert engines.method("auto", METHOD.tree) in engines and methods[0] not in engines
        async with engines.acquire(methods[0]) as one, engines.acquire(methods[1]):
            assert isinstance(one, FakeEngine) and one.name == "none"
            with pytest.raises(ErrorResponse, match="the maximum number of draft methods is in use"):
                async with engines.acquire(methods[2]):
                    pass
        async with engines.acquire(methods[0]):  # used again, so that the other one is older
            pass
        async with engines.acquire(methods[2]):
            assert FakeEngine.closed == ["lookahead"] and methods[0] in engines and methods[1] not in engines
        with pytest.raises(
            ErrorResponse, match="there is not enough memory for another engine with eagle; choose another drafter"
        ):
            async with engines.acquire(engines.method("eagle", (1, 1, 1))):
                pass
        assert FakeEngine.closed == ["lookahead", "none", "prompt-lookup"]
        async with engines.acquire(methods[0]) as one:
            one._broken = "it ran out of memory"
        async with engines.acquire(methods[0]) as other:
            assert other is not one and FakeEngine.closed[-1] == "none"

    asyncio.run(story())


def test_the_documented_python_runs(served, monkeypatch):
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    engine = served.engines["speller"]
    monkeypatch.setattr(eagle_jax, "load", lambda name: SPELLER)
    monkeypatch.setattr(api, "Engine", lambda model, **how: engine)
    monkeypatch.setattr(engine, "close", lambda: None)
    names: dict[str, Any] = {}
    exec(compile(block, "ui.md", "exec"), names)
    assert "/ui/race" in [route.path for route in names["app"].routes]
