"""Runs the test's configuration in a process of its own and says what happens: `python kill_worker.py FOLDER`."""

import pathlib
import sys

from chats import TOKENIZER, config
from toy import pair

from eagle_jax.training import events
from eagle_jax.training.run import run


def tell(event: events.Event) -> None:
    if isinstance(event, events.Prepared | events.Updated | events.Measured):
        print(type(event).__name__, event.step, flush=True)


if __name__ == "__main__":
    run(config(pathlib.Path(sys.argv[1])), pair()[0], TOKENIZER, tell)
