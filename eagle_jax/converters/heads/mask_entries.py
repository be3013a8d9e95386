"""Parses the settings of a P-EAGLE head's mask rows: their token, and the number of tokens that a pass drafts.

Every engine has another key for the token; vLLM reads all of them. vLLM's server chooses the number of drafted tokens;
configs contain at most the number that the head was trained with.
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
# Settings of P-EAGLE's training.
IGNORED = frozenset({"down_sample_ratio", "down_sample_ratio_min", "max_anchors"})

NUM_DRAFTED = 8
"""Number of tokens drafted in a pass if no config states it: speculators' default of `num_depths`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskEntries:
    """The settings of a head's mask rows; None stands for keys that the config lacks.

    Attributes:
        parallel: whether the head drafts in one pass.
        token_id: token of the mask rows.
        num_drafted: number of tokens that a pass drafts.
    """

    parallel: bool | None = None
    token_id: int | None = None
    num_drafted: int | None = None


def read(entries: Mapping[str, Any], is_peagle: bool) -> MaskEntries:
    """Parses the mask settings of a config.

    Args:
        is_peagle: whether the config's class or method is P-EAGLE's.

    Raises:
        ValueError: invalid or contradictory values.
    """
    nested = entries.get(NESTED) or {}
    if not isinstance(nested, Mapping) or set(nested) - {"mask_token_id"}:
        raise ValueError(f"{NESTED} is {nested!r}; expected only mask_token_id in an EAGLE head")
    token_ids = {name: entries[name] for name in TOKENS if entries.get(name) is not None}
    if nested.get("mask_token_id") is not None:
        token_ids[f"{NESTED}.mask_token_id"] = nested["mask_token_id"]
    ids = {name: values.integer(token_ids, name) for name in token_ids}
    if len(set(ids.values())) > 1:
        raise ValueError(f"{ids} name different mask tokens; expected one")
    parallel = None if entries.get(PARALLEL) is None else values.flag(entries, PARALLEL, False)
    if is_peagle and parallel is False:
        raise ValueError(
            f"{PARALLEL}=False in the config of a P-EAGLE head; expected true, since it drafts in parallel only"
        )
    return MaskEntries(
        parallel=True if is_peagle else parallel,
        token_id=next(iter(ids.values()), None),
        num_drafted=_num_drafted(entries),
    )


def mask_config(info: Mapping[str, TensorInfo], entries: MaskEntries) -> MaskConfig | None:
    """Returns the mask rows of a head with these tensors; None if it drafts one token a pass.

    Raises:
        ValueError: tensors and config contradict each other, or the config has no token.
    """
    if MASK not in info:
        if entries.parallel:
            raise ValueError(
                f"the config describes a P-EAGLE head ({PARALLEL}), but the tensor {MASK} is missing; expected "
                "it, since the mask rows read it in place of features"
            )
        return None
    if entries.parallel is False:
        raise ValueError(
            f"{PARALLEL}=False in the config, but the weights have a tensor {MASK}, as only P-EAGLE heads do"
        )
    if entries.token_id is None:
        raise ValueError(
            f"the tensor {MASK} shows a P-EAGLE head, but the config has no mask token; add the one that it was "
            f"trained with, as {', '.join(TOKENS)} or {NESTED}.mask_token_id"
        )
    num_drafted = NUM_DRAFTED if entries.num_drafted is None else entries.num_drafted
    return MaskConfig(token_id=entries.token_id, num_drafted=num_drafted)


def _num_drafted(entries: Mapping[str, Any]) -> int | None:
    """Returns the number of drafted tokens: the trained depth, else the number that speculators proposes."""
    if entries.get(DEPTHS) is not None:
        return values.integer(entries, DEPTHS)
    outer = entries.get("speculators_config") or {}
    proposals = (outer.get("proposal_methods") or [{}]) if isinstance(outer, Mapping) else None
    if not isinstance(proposals, list) or not isinstance(proposals[0], Mapping):
        raise ValueError(f"speculators_config is {outer!r}; expected an object with a list proposal_methods of objects")
    proposed = proposals[0].get("speculative_tokens")
    return proposed if type(proposed) is int and proposed > 0 else None
