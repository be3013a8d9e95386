"""Output lines in the format of OpenAI's batch files, for rows in that format.

Times and random ids of OpenAI's format are constants, so that a job's output does not depend on interruptions.
"""

from typing import Any

from eagle_jax.jobs.rows import RejectedRow, Row


def response_line(row: Row, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the output line of a finished row."""
    return _line(row, 200, body) | {"error": None}


def error_line(row: RejectedRow) -> dict[str, Any]:
    """Returns the output line of a rejected row."""
    error = {"message": row.error, "type": "invalid_request_error", "param": None, "code": "invalid_request"}
    return _line(row, 400, {"error": error}) | {"error": {"code": "invalid_request", "message": row.error}}


def _line(row: Row | RejectedRow, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req-{row.number}", "body": body}
    return {"id": f"batch_req-{row.number}", "custom_id": row.id, "response": response}
