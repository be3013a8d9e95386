"""Rows of a job's output in the form that OpenAI's batch files have, for rows that came in that form.

What OpenAI counts in seconds or draws at random is fixed here, so that a job's output stays the same however often it
was interrupted.
"""

from typing import Any

from eagle_jax.jobs.rows import Refused, Row

KINDS = {"chat": ("chatcmpl", "chat.completion"), "completion": ("cmpl", "text_completion")}


def response_line(row: Row, record: dict[str, Any]) -> dict[str, Any]:
    """A finished row; what OpenAI has no field for is under `eagle`."""
    assert row.form is not None, "other rows have a form of their own"
    prefix, kind = KINDS[row.form]
    choice: dict[str, Any] = {"index": 0, "finish_reason": record["finish_reason"], "logprobs": None}
    if row.form == "chat":
        calls = {"tool_calls": record["tool_calls"]} if "tool_calls" in record else {}
        content = record["text"] or None if calls else record["text"]
        choice["message"] = {"role": "assistant", "content": content, "refusal": None, **calls}
    else:
        choice["text"] = record["text"]
    usage = record["usage"]
    body = {
        "id": f"{prefix}-{row.number}",
        "object": kind,
        "created": 0,
        "model": row.model,
        "choices": [choice],
        "usage": usage | {"total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]},
        "eagle": {name: record[name] for name in ("seed", "stats", "token_ids") if name in record},
    }
    return _line(row, 200, body) | {"error": None}


def error_line(row: Refused) -> dict[str, Any]:
    """A row that cannot be answered."""
    error = {"message": row.error, "type": "invalid_request_error", "param": None, "code": "invalid_request"}
    return _line(row, 400, {"error": error}) | {"error": {"code": "invalid_request", "message": row.error}}


def _line(row: Row | Refused, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req-{row.number}", "body": body}
    return {"id": f"batch_req-{row.number}", "custom_id": row.id, "response": response}
