"""One of two processes that train together: port, folder, settings, and which of the two it is."""

import pathlib
import sys

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")

from chats import TOKENIZER, config  # noqa: E402  # after the settings of its devices
from toy import pair  # noqa: E402

from eagle_jax.sharding import join  # noqa: E402
from eagle_jax.training.run import run  # noqa: E402

if __name__ == "__main__":
    port, folder, *settings, number = sys.argv[1:]
    join(f"127.0.0.1:{port}", 2, int(number), timeout=120)
    finished = run(config(pathlib.Path(folder), *settings), pair()[0], TOKENIZER)
    print(f"Finished {finished.done}", flush=True)
