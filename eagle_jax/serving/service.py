"""The state that all requests share: engines, limits, the key, and whether the server is about to stop."""

import asyncio
import contextlib
import dataclasses
import hmac
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from eagle_jax.api import FORMATS, FORMS, REASONING_FORMATS, Engine, EngineClosed, QueueFull, Ticket, TooLong
from eagle_jax.protocols.base import AnswerFormats
from eagle_jax.protocols.calls import MAX_SEED, Call
from eagle_jax.serving.errors import ErrorResponse
from eagle_jax.serving.metrics import Metrics

# Requests whose forms are made, or wait for that; others are refused before they are read.
# Different forms are 22 at most (`structured.form_workers`), but many clients may begin with the same one.
FORM_THREADS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request.

    Attributes:
        body_bytes: maximum size of the body.
        head_seconds: time until the first line and headers have arrived.
        body_seconds: time until the body has arrived.
        answer_seconds: time until the answers end; then they are cut, as if for length.
        drain_seconds: time for answers under way after the server is asked to stop.
    """

    body_bytes: int = 4 << 20
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    answer_seconds: float = 600.0
    drain_seconds: float = 600.0


@dataclasses.dataclass(frozen=True)
class RequestTickets:
    """The tickets of one request.

    Attributes:
        tickets: for every prompt its samples, in order; OpenAI's choices.
        scores: for every prompt its own log-probabilities, where they are asked for. Where no answer is, these are the
            tickets too.
    """

    tickets: list[Ticket]
    scores: list[Ticket]

    @property
    def all_tickets(self) -> list[Ticket]:
        """`tickets` and `scores`."""
        return [*self.tickets, *self.scores]


class Service:
    """The state of a server.

    Attributes:
        engines: engines by the model names of requests; the first is used when none is named.
        draining: whether new requests are refused because the server is about to stop.
        open: requests that are being answered.
        ignore_unknown: whether unknown fields of requests are ignored.
        generation_config: whether requests that do not say are answered as a model's `generation_config.json`
            recommends, and not as OpenAI does.
        formats: how models write calls of functions and reasoning.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        limits: Limits,
        api_key: str | None,
        ignore_unknown: bool = False,
        generation_config: bool = False,
        formats: AnswerFormats | None = None,
    ):
        if not engines:
            raise ValueError("a server without an engine has nothing to say; give it one")
        if api_key is not None and not api_key.strip():
            raise ValueError("the API key is empty, which anyone can send; give one, or none at all")
        self.engines, self.limits = dict(engines), limits
        self.ignore_unknown, self.generation_config = ignore_unknown, generation_config
        self.formats = formats or AnswerFormats()
        for name, format, accepted in (
            ("tool_format", self.formats.tools, [*FORMATS]),
            ("reasoning_format", self.formats.reasoning, REASONING_FORMATS),
        ):
            if format is not None and format not in accepted:
                raise ValueError(f"{name}={format!r}; expected one of {', '.join(accepted)}")
        self.metrics, self.started = Metrics(), int(time.time())
        self.draining, self.open = False, 0
        self._making = 0  # requests with forms that are being submitted
        self._forms = ThreadPoolExecutor(FORM_THREADS, thread_name_prefix="eagle-jax forms")
        self._spellings = None if api_key is None else _spellings(api_key.strip())
        for name, engine in self.engines.items():
            self.metrics.watch(name, engine)

    @contextlib.contextmanager
    def open_request(self) -> Iterator[None]:
        """Counts a request as open for the block."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def drain(self) -> None:
        """Refuses new requests, and those whose forms are not made soon."""
        self.draining = True
        for engine in self.engines.values():
            engine.intake.stop_forms()

    @property
    def alive(self) -> bool:
        return not self.draining and all(engine.alive for engine in self.engines.values())

    def knows(self, authorization: str) -> bool:
        """Returns whether a request may come in; the time that this takes says nothing about the key.

        Args:
            authorization: the header, a character for each byte (latin-1), as Starlette reads it.
        """
        if self._spellings is None:
            return True
        kind, _, token = authorization.partition(" ")
        sent = token.encode("latin-1").strip()
        matches = [hmac.compare_digest(sent, key) for key in self._spellings]
        return kind.lower() == "bearer" and any(matches)

    def name_of(self, model: str | None) -> str:
        """Returns the model that a request means. Raises `ErrorResponse` if there is none of that name."""
        if model is None:
            return next(iter(self.engines))
        if model not in self.engines:
            names = ", ".join(self.engines)
            message = f"the model {model[:80]!r} does not exist here; expected one of {names}"
            raise ErrorResponse(404, message, param="model", code="model_not_found")
        return model

    async def submit(self, engine: Engine, call: Call) -> "RequestTickets":
        """Puts all answers that a request asks for into an engine's queue. Raises `ErrorResponse`."""
        prompts, max_answers = len(call.prompts), engine.max_queue
        if prompts * call.samples > max_answers:
            what = [f"{prompts} prompts"] * (prompts > 1) + [f"n={call.samples}"] * (call.samples > 1)
            message = (
                f"{' with '.join(what)}; expected {max_answers} answers at most in all, which is what may wait here"
            )
            raise ErrorResponse(400, message, param="n" if call.samples > 1 else "prompt")
        # making an automaton may take seconds, and has to leave threads to all others
        has_form = any(name in call.options for name in FORMS)
        if has_form and self._making >= FORM_THREADS:
            message = f"the server is busy: {self._making} other forms of answers are being made; ask again later"
            raise ErrorResponse(429, message, code="queue_full", headers={"retry-after": "2"})
        self._making += has_form
        loop = asyncio.get_running_loop()
        submitting = asyncio.ensure_future(
            loop.run_in_executor(self._forms if has_form else None, self._submit, engine, call)
        )
        submitting.add_done_callback(lambda _: self._form_made(has_form))
        try:
            return await asyncio.shield(submitting)
        except asyncio.CancelledError:  # the thread goes on; nobody waits for what it gets
            submitting.add_done_callback(_cancel_all)
            raise
        except QueueFull as error:
            seconds = max(1, min(60, round(engine.load.seconds_to_wait)))
            raise ErrorResponse(
                429, f"the server is busy: {error}", code="queue_full", headers={"retry-after": str(seconds)}
            ) from None
        except EngineClosed as error:
            raise ErrorResponse(503, str(error), code="unavailable", headers={"retry-after": "10"}) from None
        except TooLong as error:
            raise ErrorResponse(400, str(error), code="context_length_exceeded") from None
        except (ValueError, TypeError) as error:
            raise ErrorResponse(400, str(error)) from None

    def _form_made(self, has_form: bool) -> None:
        self._making -= has_form

    def _submit(self, engine: Engine, call: Call) -> "RequestTickets":
        top = call.prompt_top_logprobs
        scores = [] if top is None else engine.submit_scores(call.prompts, top_logprobs=top)
        if not call.generates_answer:
            return RequestTickets([ticket for ticket in scores for _ in range(call.samples)], scores)
        recommended = engine.model.generation if self.generation_config else {}
        followed = {name: value for name, value in recommended.items() if name != "max_new_tokens"}
        try:
            options = openai_defaults() | followed | call.options
            return RequestTickets(engine.submit_all(call.prompts, samples=range(call.samples), **options), scores)
        except Exception:
            for ticket in scores:
                ticket.cancel()
            raise


def openai_defaults() -> dict[str, Any]:
    """Returns OpenAI's defaults, where they are not `generate`'s; without a seed every request has its own."""
    return {"temperature": 1.0, "seed": secrets.randbelow(MAX_SEED)}


def _spellings(key: str) -> list[bytes]:
    """Returns how clients send a key: most in UTF-8, browsers and some libraries in latin-1."""
    spellings = [key.encode()]
    with contextlib.suppress(UnicodeEncodeError):  # latin-1 has no such character
        spellings.append(key.encode("latin-1"))
    return spellings


def _cancel_all(submitting: "asyncio.Future[RequestTickets]") -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        for ticket in submitting.result().all_tickets:
            ticket.cancel()


def models(service: Service) -> dict[str, Any]:
    """Returns the answer of /v1/models."""
    listed = [
        {
            "id": name,
            "object": "model",
            "created": service.started,
            "owned_by": "eagle_jax",
            "max_model_len": engine.max_tokens,
        }
        for name, engine in service.engines.items()
    ]
    return {"object": "list", "data": listed}
