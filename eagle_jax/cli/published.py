"""The published model that `demo` and `ui` show where it is at hand."""

from eagle_jax import api
from eagle_jax.cli.console import err, sentence

PUBLISHED = "smollm2-135m-instruct"


def published() -> str | None:
    """The name of the published pair once it is on this machine; None, after a sentence, if it cannot be had."""
    try:
        if not api.at_hand(PUBLISHED):
            err.print(f"Downloading {PUBLISHED}, once ...", style="dim")
        api.download(PUBLISHED)
    except (OSError, ValueError) as error:
        err.print(f"eagle-jax: {sentence(error)}; the toy pair of the package answers instead", markup=False)
        return None
    return PUBLISHED


def at_hand_or_toy(target: str | None, head: str | None) -> str | None:
    """The target as it is named; if neither is, the published one where it is on this machine. None is the toy pair."""
    return PUBLISHED if target is None and head is None and api.at_hand(PUBLISHED) else target
