"""One of two processes that generate together: port, what to load and to ask for, prompts, and which one it is."""

import json
import sys

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")

import eagle_jax  # noqa: E402  # after the settings of its devices
from eagle_jax.sharding import join  # noqa: E402

if __name__ == "__main__":
    port, cases, prompts, number = sys.argv[1:]
    join(f"127.0.0.1:{port}", 2, int(number), timeout=120)
    texts = []
    for loaded, asked in json.loads(cases):
        model = eagle_jax.load(**loaded, mesh="data:2,model:2")
        results = eagle_jax.generate(model, json.loads(prompts), **asked)
        texts.append([result.token_ids for result in results])
    print(json.dumps(texts))
