"""vLLM with an EAGLE-3 head, one request at a time, run by a Python that has vLLM: the other side of `vllm_steps`.

Each line of its input is a request, `[token ids, most new tokens]`; each line of its output an answer, `[token ids,
steps]`, in which a step is one pass of the target that checks drafted tokens.
"""

import json
import os
import sys
from typing import Any


def main(target: str, head: str, drafted: int, context: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes where errors go
    from vllm import LLM, SamplingParams

    drafting = dict(method="eagle3", model=head, num_speculative_tokens=drafted)
    # Eager and without its prefix cache: the same prompt then gives the same bits however often it is asked.
    how: dict[str, Any] = dict(dtype="bfloat16", enforce_eager=True, enable_prefix_caching=False, max_model_len=context)
    model = LLM(model=target, speculative_config=drafting, disable_log_stats=False, **how)
    before = 0
    print("true", file=answers, flush=True)
    for line in sys.stdin:
        prompt, new_tokens = json.loads(line)
        sampling = SamplingParams(temperature=0, max_tokens=new_tokens)
        (request,) = model.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        drafts = next(one.value for one in model.get_metrics() if one.name == "vllm:spec_decode_num_drafts")
        print(json.dumps([list(request.outputs[0].token_ids), drafts - before]), file=answers, flush=True)
        before = drafts


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
