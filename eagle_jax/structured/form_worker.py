"""Program of the process that compiles forms to automata, one after another, within limits of memory and time.

It reads pickled (form, tokens, stop_ids, seconds) from stdin and writes the token automaton or the error; None for
`tokens` repeats the previous ones. Each form is compiled in a fork, which is killed after `seconds` of CPU time: the
answer is None then. The process ends when stdin does.

    python form_worker.py MEMORY NICENESS
"""

import contextlib
import os
import pathlib
import pickle
import signal
import sys
import threading
import types
from typing import Any


def main(memory: int, niceness: int) -> None:
    package = types.ModuleType("eagle_jax")  # avoids the imports of the package's __init__
    package.__path__ = [str(pathlib.Path(__file__).parents[1])]
    sys.modules["eagle_jax"] = package
    with contextlib.suppress(ImportError):
        import outlines_core  # noqa: F401  # once, not in each fork
    from eagle_jax.structured import token_automaton  # noqa: F401

    with contextlib.suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(AttributeError, OSError):
        os.nice(niceness)
    tokens: tuple[bytes, ...] = ()
    while True:
        try:
            form, new_tokens, stop_ids, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        tokens = tokens if new_tokens is None else new_tokens
        if not hasattr(os, "fork"):
            timer = threading.Timer(seconds, os._exit, (1,))
            timer.start()
            answer = _answer(form, tokens, stop_ids)
            timer.cancel()
            _write(answer)
            continue
        copy = os.fork()
        if not copy:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process even in native code
            answer = _answer(form, tokens, stop_ids)
            signal.setitimer(signal.ITIMER_PROF, 0)  # a truncated answer would be worse than a late one
            _write(answer)
            os._exit(0)
        if os.waitpid(copy, 0)[1]:
            _write(None)


def _answer(form: Any, tokens: tuple[bytes, ...], stop_ids: tuple[int, ...]) -> object:
    from eagle_jax.structured.token_automaton import token_automaton

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
    main(int(sys.argv[1]), int(sys.argv[2]))
