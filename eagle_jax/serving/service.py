"""The state that all requests share: engines, limits, the API key, and whether the server is shutting down."""

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

# Requests whose forms may be compiled or wait at a time. At most 22 of these forms are distinct
# (`structured.form_workers`), but many clients may start with the same form.
FORM_THREADS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request.

    Attributes:
        body_bytes: maximum size of the body.
        head_seconds: time until the first line and headers have arrived.
        body_seconds: time until the body has arrived.
        answer_seconds: time until the answers end; then they are truncated, with finish reason "length".
        drain_seconds: time for running answers after the server is asked to stop.
    """

    body_bytes: int = 4 << 20
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    answer_seconds: float = 600.0
    drain_seconds: float = 600.0


@dataclasses.dataclass(frozen=True)
class RequestTickets:
    """The tickets of one HTTP request.

    Attributes:
        tickets: the samples of each prompt, in order; OpenAI's choices. Without an answer, the scores.
        scores: one ticket per prompt for the prompt's own log-probabilities, if requested.
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
        engines: engines by model name; the first serves requests that name no model.
        draining: whether new requests are rejected because the server is shutting down.
        open: number of requests that are being answered.
        ignore_unknown: whether unknown fields of requests are ignored.
        generation_config: whether default sampling options come from the model's `generation_config.json`.
        formats: how models write tool calls and reasoning.
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
            raise ValueError("there is no engine to serve; give at least one")
        if api_key is not None and not api_key.strip():
            raise ValueError("the API key is empty, which anyone can send; give a key, or None")
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
        self._num_compiling = 0  # requests whose forms are being compiled
        self._forms = ThreadPoolExecutor(FORM_THREADS, thread_name_prefix="eagle-jax forms")
        self._key_encodings = None if api_key is None else _key_encodings(api_key.strip())
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
        """Rejects new requests, and those whose forms are not nearly compiled."""
        self.draining = True
        for engine in self.engines.values():
            engine.intake.stop_forms()

    @property
    def alive(self) -> bool:
        return not self.draining and all(engine.alive for engine in self.engines.values())

    def is_authorized(self, authorization: str) -> bool:
        """Returns whether the key is correct, in time that does not depend on the key.

        Args:
            authorization: the header, decoded as latin-1, as Starlette reads it.
        """
        if self._key_encodings is None:
            return True
        scheme, _, token = authorization.partition(" ")
        key_bytes = token.encode("latin-1").strip()
        matches = [hmac.compare_digest(key_bytes, key) for key in self._key_encodings]
        return scheme.lower() == "bearer" and any(matches)

    def model_name(self, model: str | None) -> str:
        """Returns the name of the model that serves a request. Raises `ErrorResponse` if it does not exist."""
        if model is None:
            return next(iter(self.engines))
        if model not in self.engines:
            names = ", ".join(self.engines)
            message = f"the model {model[:80]!r} does not exist here; expected one of {names}"
            raise ErrorResponse(404, message, param="model", code="model_not_found")
        return model

    async def submit(self, engine: Engine, call: Call) -> "RequestTickets":
        """Submits all answers of a request to an engine. Raises `ErrorResponse`."""
        prompts, max_answers = len(call.prompts), engine.max_queue
        if prompts * call.samples > max_answers:
            counts = [f"{prompts} prompts"] * (prompts > 1) + [f"n={call.samples}"] * (call.samples > 1)
            message = f"{' with '.join(counts)}; expected at most {max_answers} answers in total, the size of the queue"
            raise ErrorResponse(400, message, param="n" if call.samples > 1 else "prompt")
        # compiling an automaton may take seconds and must not occupy the threads of other requests
        has_form = any(name in call.options for name in FORMS)
        if has_form and self._num_compiling >= FORM_THREADS:
            message = f"the server is busy: it compiles {self._num_compiling} other forms of answers; ask again later"
            raise ErrorResponse(429, message, code="queue_full", headers={"retry-after": "2"})
        self._num_compiling += has_form
        loop = asyncio.get_running_loop()
        future = asyncio.ensure_future(
            loop.run_in_executor(self._forms if has_form else None, self._submit, engine, call)
        )
        future.add_done_callback(lambda _: self._form_compiled(has_form))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:  # the thread continues, but nobody waits for its tickets
            future.add_done_callback(_cancel_all)
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

    def _form_compiled(self, has_form: bool) -> None:
        self._num_compiling -= has_form

    def _submit(self, engine: Engine, call: Call) -> "RequestTickets":
        top = call.prompt_top_logprobs
        scores = [] if top is None else engine.submit_scores(call.prompts, top_logprobs=top)
        if not call.generates_answer:
            return RequestTickets([ticket for ticket in scores for _ in range(call.samples)], scores)
        recommended = engine.model.generation if self.generation_config else {}
        generation_options = {name: value for name, value in recommended.items() if name != "max_new_tokens"}
        try:
            options = openai_defaults() | generation_options | call.options
            return RequestTickets(engine.submit_all(call.prompts, samples=range(call.samples), **options), scores)
        except Exception:
            for ticket in scores:
                ticket.cancel()
            raise


def openai_defaults() -> dict[str, Any]:
    """Returns OpenAI's defaults that differ from those of `generate`; the seed is random."""
    return {"temperature": 1.0, "seed": secrets.randbelow(MAX_SEED)}


def _key_encodings(key: str) -> list[bytes]:
    """Returns the encodings in which clients send a key: UTF-8, in browsers and some libraries latin-1."""
    spellings = [key.encode()]
    with contextlib.suppress(UnicodeEncodeError):  # latin-1 has no such character
        spellings.append(key.encode("latin-1"))
    return spellings


def _cancel_all(future: "asyncio.Future[RequestTickets]") -> None:
    if not future.cancelled() and future.exception() is None:
        for ticket in future.result().all_tickets:
            ticket.cancel()


def models_body(service: Service) -> dict[str, Any]:
    """Returns the response body of /v1/models."""
    data = [
        {
            "id": name,
            "object": "model",
            "created": service.started,
            "owned_by": "eagle_jax",
            "max_model_len": engine.max_tokens,
        }
        for name, engine in service.engines.items()
    ]
    return {"object": "list", "data": data}
