"""The folder of a run: its settings, and one file of answers per method."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle_jax.checks import check_same_settings
from eagle_jax.durable import PART, atomic_write, lock_file
from eagle_jax.evaluation.answers import Conversation, from_line, to_record
from eagle_jax.jsonl import JsonLines, Read, complete_lines

RUN, TRACES, LOCK = "run.json", "traces.json", ".lock"


@dataclasses.dataclass(frozen=True)
class Answers:
    """Content of a file of answers.

    Attributes:
        conversations: conversations of all complete lines.
        unfinished: number of bytes of an incomplete last line, left by a crash.
    """

    conversations: list[Conversation]
    unfinished: int


def read_answers(path: str | Path) -> Answers:
    """Reads a file of answers, without an incomplete last line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not an answer, or two answer the same question; the message names it.
    """
    path = Path(path)
    lines = list(complete_lines(path, _reader(path)))
    size = sum(len(line) for _, line in lines)
    return Answers([conversation for conversation, _ in lines], path.stat().st_size - size)


def _reader(path: Path) -> Read[Conversation]:
    ids = set[int | str]()

    def read(line: bytes, number: int) -> Conversation | None:
        if not line.endswith(b"\n"):
            return None
        conversation = from_line(line, f"{path}:{number}")
        if conversation.id in ids:
            raise ValueError(f"{path}:{number}: question_id {conversation.id!r} came before; delete one of the lines")
        ids.add(conversation.id)
        return conversation

    return read


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Creates the folder and locks it for the block. Raises ValueError if another process has locked it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        lock_file(lock, folder)
        yield


class Folder:
    """A run's folder, new or continued with the same settings; the settings may change until there are answers.

    Args:
        path: path of the folder, created if it does not exist.
        settings: settings that all answers share, stored in `run.json`; `settings["methods"]` has methods by name.
        about: further facts about the run: its command, versions.

    Attributes:
        conversations: existing conversations by method name.
        notes: sentences on what was repaired.

    Raises:
        ValueError: the folder has answers with other settings, or other content. Nothing is changed then.
    """

    def __init__(self, path: Path, settings: dict[str, Any], about: dict[str, Any]):
        self.path, self.notes = path, list[str]()
        path.mkdir(parents=True, exist_ok=True)
        exists = (path / RUN).exists()
        if exists and any(path.glob("*.jsonl")):
            saved_settings = _flat(read_run(path)["settings"])
            check_same_settings(path, saved_settings, _flat(settings), "name another folder")
        elif not exists and any(file.name != LOCK and file.suffix != PART for file in path.iterdir()):
            raise ValueError(f"{path} has files but no {RUN}, so it is not a run to continue; name another folder")
        else:
            if exists:
                read_run(path)  # raises for another file of this name, which is not replaced
            (path / TRACES).unlink(missing_ok=True)
            write_json(path / RUN, {"settings": settings, **about})
        paths = {name: answer_file(path, name) for name in settings["methods"]}
        self._files = {name: _open(file) for name, file in paths.items() if file.exists()}
        for name, file in self._files.items():
            if file.cut:
                self.notes.append(
                    f"{paths[name]} ended within a line, as after a crash; its {len(file.entries)} complete lines are "
                    "kept, and that question is asked again."
                )
        self.conversations = {name: file.entries for name, file in self._files.items()}

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    @property
    def answered(self) -> set[tuple[str, int | str]]:
        """(method, question id) of all existing conversations."""
        return {
            (name, conversation.id)
            for name, conversations in self.conversations.items()
            for conversation in conversations
        }

    def append(self, conversation: Conversation) -> None:
        """Writes and syncs one line."""
        method = conversation.method
        if method not in self._files:
            self._files[method] = _open(answer_file(self.path, method))
        self._files[method].append(to_record(conversation))


def _open(path: Path) -> JsonLines[Conversation]:
    return JsonLines(path, _reader(path))


def answer_file(folder: Path, method: str) -> Path:
    """Returns the path of a method's file: `eagle_60_7_10.jsonl` for `eagle:60,7,10`."""
    return folder / (re.sub(r"[:,@/\\]", "_", method) + ".jsonl")


def read_run(folder: Path) -> dict[str, Any]:
    """Reads `run.json`. Raises ValueError if the folder has no valid one."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"{folder} has no {RUN}; expected a folder written by `eagle-jax eval --out`")
    run = read_json(path)
    settings = run.get("settings") if isinstance(run, dict) else None
    methods = settings.get("methods") if isinstance(settings, dict) else None
    if not isinstance(methods, dict) or not methods or not all(map(_is_shape, methods.values())):
        raise ValueError(f"{path} was not written by `eagle-jax eval`; give the folder of a run")
    return run


def _is_shape(tree: Any) -> bool:
    return isinstance(tree, dict) and all(isinstance(tree.get(name), int) for name in ("nodes", "depth"))


def read_json(path: Path) -> Any:
    """Reads a JSON file. Raises ValueError if it is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=1).encode())


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Flattens groups of settings, with methods and their trees as one text, for comparison."""
    flattened: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "methods":
            flattened[name] = ", ".join(
                f"{method} ({tree['nodes']} x {tree['depth']})" for method, tree in value.items()
            )
        else:
            flattened |= value if isinstance(value, dict) else {name: value}
    return flattened
