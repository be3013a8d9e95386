"""Shortens lists and other libraries' messages for error messages."""

import re


def listed(names: list[str], limit: int = 3) -> str:
    """Joins the first few names, with the number of the others."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def first_sentence(error: BaseException) -> str:
    """Returns the first sentence of another library's message; the rest is advice on that library."""
    return re.split(r"\. |\n", str(error))[0].rstrip(".")


def in_a_line(error: BaseException) -> str:
    """Returns an error's type and first line, shortened to 200 characters."""
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {line[:200]}"
