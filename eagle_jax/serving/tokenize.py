"""vLLM's /tokenize and /detokenize, and Anthropic's /v1/messages/count_tokens."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from eagle_jax.api import Engine, Text
from eagle_jax.fields import Fields, flag, listed, text, whole_number
from eagle_jax.protocols.anthropic import count_tokens_call
from eagle_jax.protocols.calls import MAX_INT32, take_chat
from eagle_jax.protocols.messages import take_messages
from eagle_jax.serving.body import read_json
from eagle_jax.serving.endpoint import ignored_header
from eagle_jax.serving.errors import ErrorResponse, JsonResponse
from eagle_jax.serving.service import Service


async def tokenize(request: Request) -> Response:
    """Returns the token ids of a `prompt`, or of `messages` in the model's chat template."""
    fields, engine = await _parse_request(request)
    if (prompt := fields.take("prompt", text, None)) is not None:
        conversation: Any = Text(prompt, fields.take("add_special_tokens", flag, True))
    else:
        conversation, _ = take_chat(fields, take_messages(fields))
        fields.only({"add_special_tokens": [False]})
    as_text = fields.take("return_token_strs", flag, False)
    headers = ignored_header(fields.end())
    try:
        ids = await asyncio.to_thread(engine.encode, conversation)
    except (ValueError, TypeError) as error:
        raise ErrorResponse(400, str(error)) from None
    strings = engine.model.tokenizer.convert_ids_to_tokens(ids) if as_text else None
    body = {"count": len(ids), "max_model_len": engine.max_tokens, "tokens": ids, "token_strs": strings}
    return JsonResponse(body, headers=headers)


async def detokenize(request: Request) -> Response:
    """Returns the text of token ids, special tokens included."""
    fields, engine = await _parse_request(request)
    last, tokenizer = engine.model.target.config.vocab_size - 1, engine.model.tokenizer
    ids = [
        whole_number(0, min(last, MAX_INT32))(f"tokens[{i}]", id_)
        for i, id_ in enumerate(fields.require("tokens", listed))
    ]
    headers = ignored_header(fields.end())
    if tokenizer is None:
        raise ErrorResponse(400, "the model's folder has no tokenizer; add its tokenizer files to detokenize")
    prompt = await asyncio.to_thread(tokenizer.decode, ids, clean_up_tokenization_spaces=False)
    return JsonResponse({"prompt": prompt}, headers=headers)


async def count_tokens(request: Request) -> Response:
    """Returns the number of prompt tokens of a request to Anthropic's /v1/messages."""
    service: Service = request.app.state.service
    body = await read_json(request, service.limits.body_bytes, service.limits.body_seconds)
    call = count_tokens_call(body, service.ignore_unknown)
    engine = service.engines[service.model_name(call.model)]
    try:
        ids = await asyncio.to_thread(engine.encode, call.prompts[0])
    except (ValueError, TypeError) as error:
        raise ErrorResponse(400, str(error)) from None
    return JsonResponse({"input_tokens": len(ids)}, headers=ignored_header(call.ignored))


async def _parse_request(request: Request) -> tuple[Fields, Engine]:
    service: Service = request.app.state.service
    body = await read_json(request, service.limits.body_bytes, service.limits.body_seconds)
    fields = Fields(body, ignore_unknown=service.ignore_unknown)
    return fields, service.engines[service.model_name(fields.take("model", text, None))]
