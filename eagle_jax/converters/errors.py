"""Sentences about what other libraries and long lists have to say."""

import re


def listed(names: list[str], limit: int = 3) -> str:
    """Returns the first few names, and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def first_sentence(error: BaseException) -> str:
    """Returns the first sentence of another library's message; the rest is advice that does not fit here."""
    return re.split(r"\. |\n", str(error))[0].rstrip(".")


def in_a_line(error: BaseException) -> str:
    """Returns the kind and first line of an error, which may be long."""
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {line[:200]}"
