"""The program of a process that makes automata of forms, one after another, within limits of memory and time.

It says that it is ready, reads (form, tokens, stop_ids) from its input, pickled, and writes the automaton over tokens
or the error; `tokens` None are those of before. A copy of the process makes each and says its number first: it can be
ended without starting Python again. None is written where it ended. The process ends with its input.

    python form_worker.py MEMORY SECONDS
"""

import contextlib
import os
import pathlib
import pickle
import signal
import sys
import types
from typing import Any

READY = "ready"  # what it writes first
NICENESS = 10  # answers under way go before forms that are still to be made


def main(memory: int, seconds: float) -> None:
    package = types.ModuleType("eagle_jax")  # without what the package's own module imports
    package.__path__ = [str(pathlib.Path(__file__).parents[1])]
    sys.modules["eagle_jax"] = package
    with contextlib.suppress(ImportError):
        import outlines_core  # noqa: F401  # once, and not in each copy
    from eagle_jax.text import token_automaton  # noqa: F401

    with contextlib.suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(AttributeError, OSError):
        os.nice(NICENESS)
    tokens: tuple[bytes, ...] = ()
    _write(READY)
    while True:
        try:
            form, own_tokens, stop_ids = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        tokens = tokens if own_tokens is None else own_tokens
        if not hasattr(os, "fork"):
            _write(os.getpid())
            _write(_answer(form, tokens, stop_ids))
            continue
        copy = os.fork()
        if not copy:
            signal.alarm(int(seconds) + 5)  # ends it where nobody is left who would
            _write(os.getpid())
            _write(_answer(form, tokens, stop_ids))
            os._exit(0)
        if os.waitpid(copy, 0)[1]:
            _write(None)


def _answer(form: Any, tokens: tuple[bytes, ...], stop_ids: tuple[int, ...]) -> object:
    from eagle_jax.text.token_automaton import token_automaton

    try:
        return token_automaton(form.automaton(), tokens, stop_ids)
    except (ValueError, ImportError) as error:
        return error
    except MemoryError:
        return None


def _write(answer: object) -> None:
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
