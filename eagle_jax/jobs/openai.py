"""Lines of a job's output in the form of OpenAI's batch files, for rows that came in that form.

What OpenAI counts in seconds or draws at random is fixed here, so that a job's output stays the same however often it
was interrupted.
"""

from typing import Any

from eagle_jax.jobs.rows import Refused, Row


def response_line(row: Row, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the output line of a finished row."""
    return _line(row, 200, body) | {"error": None}


def error_line(row: Refused) -> dict[str, Any]:
    """Returns the output line of a row that cannot be answered."""
    error = {"message": row.error, "type": "invalid_request_error", "param": None, "code": "invalid_request"}
    return _line(row, 400, {"error": error}) | {"error": {"code": "invalid_request", "message": row.error}}


def _line(row: Row | Refused, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req-{row.number}", "body": body}
    return {"id": f"batch_req-{row.number}", "custom_id": row.id, "response": response}
