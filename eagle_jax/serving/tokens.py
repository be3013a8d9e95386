"""/tokenize and /detokenize, as vLLM has them: text and its tokens without an answer; and /version."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import eagle_jax
from eagle_jax.api import Engine, Text, decode, encode
from eagle_jax.serving.body import read_json
from eagle_jax.serving.errors import Json, Refused
from eagle_jax.serving.fields import Fields, flag, listed, text, whole
from eagle_jax.serving.protocol import LARGEST, chat_of
from eagle_jax.serving.service import Service


async def tokenize(request: Request) -> Response:
    """Token ids of a `prompt`, or of `messages` in the model's chat template."""
    fields, service = await _fields(request)
    engine = _engine(fields, service)
    if (prompt := fields.take("prompt", text, None)) is not None:
        asked: Any = Text(prompt, fields.take("add_special_tokens", flag, True))
    else:
        asked = chat_of(fields)
        fields.only({"add_special_tokens": [False]})
    as_text = fields.take("return_token_strs", flag, False)
    fields.end()
    try:
        ids = encode(engine.model.tokenizer, asked, engine.model.target.config.vocab_size, "the prompt")
    except (ValueError, TypeError) as error:
        raise Refused(400, str(error)) from None
    strings = engine.model.tokenizer.convert_ids_to_tokens(ids) if as_text else None
    return Json({"count": len(ids), "max_model_len": engine.max_tokens, "tokens": ids, "token_strs": strings})


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    fields, service = await _fields(request)
    engine = _engine(fields, service)
    last = engine.model.target.config.vocab_size - 1
    ids = [whole(0, min(last, LARGEST))(f"tokens[{i}]", id_) for i, id_ in enumerate(fields.must("tokens", listed))]
    fields.end()
    return Json({"prompt": decode(engine.model.tokenizer, ids)})


async def version(request: Request) -> Response:
    """The version of the package."""
    return Json({"version": eagle_jax.__version__})


async def _fields(request: Request) -> tuple[Fields, Service]:
    service: Service = request.app.state.service
    body = await read_json(request, service.limits.body_bytes, service.limits.body_seconds)
    return Fields(body, ignored=[] if service.ignore_unknown else None), service


def _engine(fields: Fields, service: Service) -> Engine:
    return service.engines[service.name_of(fields.take("model", text, None))]
