"""Reads the config entries on a P-EAGLE head's mask rows: the token that they read, and the number of draft tokens.

Every engine has its own key for the token; vLLM reads them all. In vLLM the server chooses the number of draft tokens;
configs state only the number of the head's training, if any.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.heads import MaskConfig
from eagle_jax.converters.heads.eagle_formats import MASK
from eagle_jax.converters.hf import values
from eagle_jax.converters.tensor_file import TensorInfo

PARALLEL, NESTED, DEPTHS = "parallel_drafting", "dflash_config", "num_depths"
TOKENS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
READ = frozenset({PARALLEL, NESTED, DEPTHS, *TOKENS})
# Settings of P-EAGLE's training, without effect on drafting.
IGNORED = frozenset({"down_sample_ratio", "down_sample_ratio_min", "max_anchors"})

NUM_DRAFTED = 8
"""Default number of draft tokens in a forward pass: speculators' default of `num_depths`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatedMask:
    """The entries of a config; None for a missing one.

    Attributes:
        parallel: whether the head drafts in one forward pass.
        token_id: token of the mask rows.
        num_drafted: number of draft tokens in a forward pass.
    """

    parallel: bool | None = None
    token_id: int | None = None
    num_drafted: int | None = None


def read(entries: Mapping[str, Any], is_peagle: bool) -> StatedMask:
    """Reads the entries of a config.

    Args:
        is_peagle: whether the config's class or method is P-EAGLE's.

    Raises:
        ValueError: entries that are invalid or disagree.
    """
    nested = entries.get(NESTED) or {}
    if not isinstance(nested, Mapping) or set(nested) - {"mask_token_id"}:
        raise ValueError(f"{NESTED} is {nested!r}; expected no more in an EAGLE head than its mask_token_id")
    stated = {name: entries[name] for name in TOKENS if entries.get(name) is not None}
    if nested.get("mask_token_id") is not None:
        stated[f"{NESTED}.mask_token_id"] = nested["mask_token_id"]
    ids = {name: values.integer(stated, name) for name in stated}
    if len(set(ids.values())) > 1:
        raise ValueError(f"{ids} name different mask tokens; expected them to agree")
    parallel = None if entries.get(PARALLEL) is None else values.flag(entries, PARALLEL, False)
    if is_peagle and parallel is False:
        raise ValueError(f"{PARALLEL}=False in the config of a P-EAGLE head, which drafts in no other way")
    return StatedMask(
        parallel=True if is_peagle else parallel,
        token_id=next(iter(ids.values()), None),
        num_drafted=_num_drafted(entries),
    )


def mask_config(info: Mapping[str, TensorInfo], stated: StatedMask) -> MaskConfig | None:
    """Returns the mask rows of a head with these tensors; None if the head drafts one token after another.

    Raises:
        ValueError: the tensors disagree with the config, or the config names no token.
    """
    if MASK not in info:
        if stated.parallel:
            raise ValueError(
                f"the config is that of a P-EAGLE head ({PARALLEL}), and there is no tensor {MASK}; expected it, since "
                "the rows after the text read it in place of features"
            )
        return None
    if stated.parallel is False:
        raise ValueError(f"{PARALLEL}=False in the config, and a tensor {MASK}; expected it in P-EAGLE heads alone")
    if stated.token_id is None:
        raise ValueError(
            f"a P-EAGLE head, by its tensor {MASK}, and no mask token; expected one as {', '.join(TOKENS)} or "
            f"{NESTED}.mask_token_id, the one that it was trained with"
        )
    num_drafted = NUM_DRAFTED if stated.num_drafted is None else stated.num_drafted
    return MaskConfig(token_id=stated.token_id, num_drafted=num_drafted)


def _num_drafted(entries: Mapping[str, Any]) -> int | None:
    """Returns the number of draft tokens: `num_depths`, else the number in `speculators_config`."""
    if entries.get(DEPTHS) is not None:
        return values.integer(entries, DEPTHS)
    outer = entries.get("speculators_config") or {}
    proposals = (outer.get("proposal_methods") or [{}]) if isinstance(outer, Mapping) else None
    if not isinstance(proposals, list) or not isinstance(proposals[0], Mapping):
        raise ValueError(f"speculators_config is {outer!r}; expected an object with a list proposal_methods of objects")
    proposed = proposals[0].get("speculative_tokens")
    return proposed if type(proposed) is int and proposed > 0 else None
