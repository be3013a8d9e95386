"""What goes wrong at the door: every such request gets a 4xx in OpenAI's form, and the server goes on."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time

import pytest
from served import KEY, Served
from speller import SPELLED, asked
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from wrong_bodies import CHAT, COMPLETION, table

from eagle_jax.protocols.calls import Call
from eagle_jax.serving import Limits, create_app, server
from eagle_jax.serving.service import Service

HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


def error_in(body: bytes) -> dict:
    """The error that was sent, if it has OpenAI's form."""
    told = json.loads(body)
    assert set(told) == {"error"} and set(told["error"]) == {"message", "type", "param", "code"}, told
    message = told["error"]["message"]
    assert isinstance(message, str) and 10 < len(message) < 400 and "\n" not in message, message
    return told["error"]


def test_two_hundred_wrong_requests(served, client):
    rows, accepted, statuses = table(), [], set()
    assert len(rows) > 200
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    for path, body in rows:
        connection.request("POST", path, body, HEADERS)
        response = connection.getresponse()
        told = response.read()
        if not 400 <= response.status < 500:
            accepted.append((path, body[:200], response.status, told))
            continue
        error = error_in(told)
        statuses.add(response.status)
        assert error["type"] == "invalid_request_error", (body, error)
        assert response.headers["x-request-id"] and response.headers["content-type"] == "application/json"
    connection.close()
    assert not accepted
    assert statuses == {400, 404}
    assert still_serves(client)


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/v1/nothing", {}, None, 404),
        ("GET", "/v1/models/gpt-9", {}, None, 404),
        ("GET", "/%00%ff/../../etc/passwd", {}, None, 404),
        ("POST", "/v1/chat/completions/", {}, b"{}", 404),
        ("GET", CHAT, {}, None, 405),
        ("DELETE", "/v1/models", {}, None, 405),
        ("PATCH", COMPLETION, {}, b"{}", 405),
        ("POST", COMPLETION, {"content-type": "text/plain", "origin": "https://a.b"}, b'{"prompt": "a"}', 415),
        ("POST", COMPLETION, {"content-type": "", "origin": "null"}, b'{"prompt": "a"}', 415),
        ("POST", COMPLETION, {"content-type": "multipart/form-data; boundary=x"}, b"--x--", 400),
        ("POST", "/tokenize", {}, b'{"prompt": 7}', 400),
        ("POST", "/tokenize", {}, b"{}", 400),
        ("POST", "/detokenize", {}, b'{"tokens": [1, 999]}', 400),
        ("POST", "/tokenize", {"authorization": ""}, b'{"prompt": "a"}', 401),
        ("POST", COMPLETION, {}, b'{"prompt": "' + b"a" * 200_000 + b'"}', 413),
        ("POST", COMPLETION, {}, b"x" * 1_000_000, 413),
        ("POST", COMPLETION, {}, iter([b"x" * 50_000] * 6), 413),
        ("POST", COMPLETION, {"authorization": ""}, b'{"prompt": "a"}', 401),
        ("POST", COMPLETION, {"authorization": "Bearer"}, b'{"prompt": "a"}', 401),
        ("POST", COMPLETION, {"authorization": f"Basic {KEY}"}, b'{"prompt": "a"}', 401),
        ("POST", COMPLETION, {"authorization": f"Bearer {KEY}x"}, b'{"prompt": "a"}', 401),
        ("POST", COMPLETION, {"authorization": b"Bearer \xff\xfe"}, b'{"prompt": "a"}', 401),
        ("GET", "/metrics", {"authorization": "Bearer 1"}, None, 401),
        ("GET", "/metrics%0a", {"authorization": ""}, None, 401),
        ("POST", COMPLETION, {"content-length": "-5"}, None, 400),
        ("POST", COMPLETION, {"content-length": "many"}, None, 400),
        ("POST", COMPLETION, {"transfer-encoding": "gzip"}, b"x", 400),
        ("GET", "/v1/models", {"x": "y" * 1_000_000}, None, 400),
    ],
)
def test_wrong_addresses_keys_and_sizes(served, method, path, headers, body, status):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may be told before all is sent
        connection.request(method, path, body, HEADERS | headers)
    response = connection.getresponse()
    assert response.status == status
    error_in(response.read())
    connection.close()


HEAD = f"POST {COMPLETION} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
STALLED = {
    "says nothing": b"",
    "half a line": b"POST /v1/comp",
    "no end of the head": HEAD.encode(),
    "half a body": HEAD.encode() + b'content-length: 100\r\n\r\n{"prompt"',
    "no body": HEAD.encode() + b"content-length: 1000000000000\r\n\r\n",
    "half a chunk": HEAD.encode() + b"transfer-encoding: chunked\r\n\r\n40\r\nabc",
    "asks before it sends": HEAD.encode() + b"expect: 100-continue\r\ncontent-length: 10\r\n\r\n",
}
NO_HTTP = {
    "bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
    "words": b"hello server\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "bad chunk": HEAD.encode() + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
}


def test_slow_senders_are_told_so_and_hold_nobody_up(served, client):
    sockets = {name: socket.create_connection(("127.0.0.1", served.port), timeout=10) for name in STALLED}
    for name, sent in STALLED.items():
        sockets[name].sendall(sent)
    crowd = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(50)]
    dribbling = threading.Thread(target=_dribble, args=(served,))
    dribbling.start()
    assert still_serves(client)
    for name, stalled in sockets.items():
        with stalled:
            status, body = _response(stalled)
        assert status == 408, name
        error_in(body)
    for quiet in crowd:
        quiet.close()
    dribbling.join()


def _dribble(served) -> None:
    """A byte now and then, until the server has enough of it."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as slow, pytest.raises(OSError):
        for byte in STALLED["half a body"] * 3:
            slow.sendall(bytes([byte]))
            time.sleep(0.02)


@pytest.mark.parametrize("sent", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http(served, sent):
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as stranger:
        stranger.sendall(sent)
        status, body = _response(stranger)
    assert status == 400
    error_in(body)


def test_connections_that_break_off(served, client):
    body = json.dumps({"model": "random", "prompt": [1], "max_tokens": 47, "stream": True}).encode()
    whole = HEAD.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body
    for size in (5, len(whole) // 2, len(whole) - 3, len(whole)):
        for how in ("close", "shutdown", "reset"):
            broken = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            broken.sendall(whole[:size])
            if how == "shutdown":
                broken.shutdown(socket.SHUT_WR)
            if how == "reset":
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            broken.close()
    until = time.monotonic() + 30
    while any(engine.load.busy or engine.load.waiting for engine in served.engines.values()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert still_serves(client)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["closed", "half closed", "two requests"])
def test_who_reads_nothing_is_cut_off_some_time_after_the_end(engines, monkeypatch, how):
    async def large(request: Request) -> Response:
        return Response(b"x" * 50_000_000, headers={"connection": "close"} if how == "closed" else {})

    monkeypatch.setattr(server, "UNREAD_SECONDS", 0.2)
    served = Served(engines, routes=[Route("/large", large)], limits=Limits(answer_seconds=1.0))
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as idle:
        idle.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * (2 if how == "two requests" else 1))
        if how == "half closed":
            idle.shutdown(socket.SHUT_WR)
        assert idle.recv(1)
        until = time.monotonic() + 10
        while served.server.server_state.connections and time.monotonic() < until:
            time.sleep(0.01)
        left = len(served.server.server_state.connections)
    served.stop()
    assert not left


def test_nobody_is_refused_because_many_wait_for_one_form(engines, monkeypatch):
    """As when many clients with the same schema find a server that has just started."""
    service, made = Service(engines, Limits(), None), threading.Event()
    monkeypatch.setattr(service, "_submit", lambda engine, call: made.wait(30))
    nothing = dict(stream=False, include_usage=False, continuous_usage=False, reports_steps=False, ignored=())
    call = Call(model=None, prompts=["a"], samples=1, options={"regex": "a+"}, **nothing)

    async def all_of_them() -> list[bool]:
        asking = [asyncio.ensure_future(service.submit(engines["speller"], call)) for _ in range(100)]
        await asyncio.sleep(0.1)
        made.set()
        return await asyncio.gather(*asking)

    assert asyncio.run(all_of_them()) == [True] * 100


def test_a_key_may_have_any_letters(engines):
    for key, spelled in (("clé à", "utf-8"), ("clé à", "latin-1"), ("ключ", "utf-8")):
        service = Service(engines, Limits(), key)
        sent = key.encode(spelled)
        assert service.is_authorized(f"Bearer {sent.decode('latin-1')}"), (key, spelled)
        for wrong in (sent[:-1], sent + b"\xa0", b"?" * len(key)):
            assert not service.is_authorized(f"Bearer {wrong.decode('latin-1')}")


@pytest.mark.parametrize("prefix, root", [("", ""), ("/llm", ""), ("/v1", ""), ("", "/llm")])
def test_the_key_is_asked_for_wherever_the_application_is_mounted(engines, prefix, root):
    app = create_app(engines, api_key=KEY)
    whole = Starlette(routes=[Mount(prefix, app)]) if prefix else app
    client = TestClient(whole, root_path=root)
    for path in ("/v1/models", "/v1/models/speller", "/metrics"):
        assert client.get(prefix + path).status_code == 401, path
        assert client.get(prefix + path, headers=HEADERS).status_code == 200, path
    body = {"prompt": "a", "max_tokens": 1}
    assert client.post(prefix + COMPLETION, json=body).status_code == 401
    app.state.service.draining = True
    assert client.post(prefix + COMPLETION, json=body, headers=HEADERS).status_code == 503
    assert client.get(f"{prefix}/health").status_code == 503


def test_an_empty_key_opens_nothing(engines):
    with pytest.raises(ValueError, match="the API key is empty"):
        create_app(engines, api_key=" ")


def test_a_mistake_of_ours_is_told_numbered_and_counted(engines):
    async def broken(request: Request) -> Response:
        raise KeyError("nothing of this is told")

    served = Served(engines, routes=[Route("/broken", broken)])
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.request("GET", "/broken")
    response = connection.getresponse()
    assert response.status == 500 and response.headers["x-request-id"]
    error = error_in(response.read())
    assert error["type"] == "server_error" and "nothing" not in error["message"]
    connection.request("GET", "/metrics")
    assert b'eagle_jax_responses_total{path="other",status="500"} 1.0' in connection.getresponse().read()
    connection.close()
    served.stop()


def still_serves(client) -> bool:
    answer = client.chat.completions.create(model="speller", messages=asked("Spell!"), temperature=0)
    return answer.choices[0].message.content == SPELLED


def _response(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the last response, 100 Continue left out."""
    told = b""
    while piece := connection.recv(65536):
        told += piece
    head, _, body = (
        told.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        .removeprefix(b"HTTP/1.1 100 \r\n\r\n")
        .partition(b"\r\n\r\n")
    )
    return int(head.split()[1]), body
