"""How long does making the automata of random JSON schemas take, in CPU seconds, and how many are refused?

The schemas have random bounds, lengths and nestings; a few are larger than anybody's.

    python -m benchmarks.decode.making_forms
"""

import json
import random
import statistics
import time

import eagle_jax
from benchmarks.common.command import begin, parser
from benchmarks.common.schemas import bounded_schema
from benchmarks.common.tables import progress, show
from eagle_jax.structured.forms import Form
from eagle_jax.structured.token_automaton import token_automaton
from eagle_jax.text.token_bytes import token_bytes

LONG = 2.0  # CPU seconds


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", default="toy", help="whose tokens: folder, name or hub name (%(default)s)")
    arguments.add_argument("--schemas", type=int, default=2000, help="%(default)s")
    arguments.add_argument("--depth", type=int, default=3, help="how deep they nest at most (%(default)s)")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target)
    tokens = token_bytes(model.tokenizer, model.target.config.vocab_size)
    seconds: list[float] = []
    refused = 0
    for seed in range(options.schemas):
        form = Form("json_schema", json.dumps(bounded_schema(random.Random(seed), options.depth)))
        start = time.process_time()
        try:
            token_automaton(form.automaton(), tokens, model.stop_ids)
        except ValueError:
            refused += 1
        seconds.append(time.process_time() - start)
        progress(seed + 1, options.schemas)
    rows = [
        ("made", len(seconds) - refused),
        ("refused", refused),
        ("median, CPU seconds", statistics.median(seconds)),
        ("99th percentile, CPU seconds", statistics.quantiles(seconds, n=100)[98]),
        ("slowest, CPU seconds", max(seconds)),
        (f"that took more than {LONG:g} CPU seconds", sum(one > LONG for one in seconds)),
    ]
    title = f"{options.schemas} random schemas, over {len(tokens):,} tokens of {options.target}"
    show(title, ("schemas", "figure"), rows)


if __name__ == "__main__":
    begin(main)
