"""The folder of a run: its settings, and one file of answers per method, to which whole lines are appended."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle_jax.checks import check_same_settings
from eagle_jax.durable import PART, hold, replacing
from eagle_jax.evaluation.answers import Conversation, from_line, to_record
from eagle_jax.jsonl import JsonLines, Read, complete_lines

RUN, TRACES, LOCK = "run.json", "traces.json", ".lock"


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a file of answers holds.

    Attributes:
        conversations: of all whole lines.
        unfinished: bytes of a last line without its end, left by a kill.
    """

    conversations: list[Conversation]
    unfinished: int


def read_answers(path: str | Path) -> Answers:
    """Reads a file of answers; a last line that was not finished is counted and ignored.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a finished line is no answer, or two answer the same question; the message names it.
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
def alone(folder: Path) -> Iterator[None]:
    """Makes the folder if need be, and keeps others out while the block runs; a lock ends with its process.

    Raises:
        ValueError: another process is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        hold(lock, folder)
        yield


class Folder:
    """A run's folder, new or begun by an earlier run with the same settings.

    Args:
        path: made if it is not there.
        settings: what every answer depends on; kept in `run.json`. `settings["methods"]` lists names with their trees.
        about: further facts about the run: its command, versions.

    Attributes:
        conversations: what is there, by method's name.
        notes: sentences on what was repaired.

    Raises:
        ValueError: the folder was begun with other settings, or holds something else. Nothing is changed then. Settings
            that nothing was answered with yet are replaced, and what was timed under them is taken away.
    """

    def __init__(self, path: Path, settings: dict[str, Any], about: dict[str, Any]):
        self.path, self.notes = path, list[str]()
        path.mkdir(parents=True, exist_ok=True)
        begun = (path / RUN).exists()
        if begun and any(path.glob("*.jsonl")):
            begun_with = _flat(read_run(path)["settings"])
            check_same_settings(path, begun_with, _flat(settings), "name another folder")
        elif not begun and any(file.name != LOCK and file.suffix != PART for file in path.iterdir()):
            raise ValueError(f"{path} holds files but no {RUN}, so it is no run to go on with; name another folder")
        else:
            if begun:
                read_run(path)  # raises if the file is no run's, which is not to be replaced
            (path / TRACES).unlink(missing_ok=True)
            write_json(path / RUN, {"settings": settings, **about})
        paths = {name: answer_file(path, name) for name in settings["methods"]}
        self._files = {name: _open(file) for name, file in paths.items() if file.exists()}
        for name, file in self._files.items():
            if file.cut:
                self.notes.append(
                    f"{paths[name]} ended within a line, as after a kill; its {len(file.entries)} whole lines are "
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
        """(method, question id) of all that is there."""
        return {
            (name, conversation.id)
            for name, conversations in self.conversations.items()
            for conversation in conversations
        }

    def append(self, conversation: Conversation) -> None:
        """Writes one line and waits until it is on the disk."""
        method = conversation.method
        if method not in self._files:
            self._files[method] = _open(answer_file(self.path, method))
        self._files[method].append(to_record(conversation))


def _open(path: Path) -> JsonLines[Conversation]:
    return JsonLines(path, _reader(path))


def answer_file(folder: Path, method: str) -> Path:
    """Returns the file of a method: `eagle_60_7_10.jsonl` for `eagle:60,7,10`."""
    return folder / (re.sub(r"[:,@/\\]", "_", method) + ".jsonl")


def read_run(folder: Path) -> dict[str, Any]:
    """Reads `run.json`. Raises ValueError if the folder is no run's."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"{folder} holds no {RUN}; expected a folder that `eagle-jax eval --out` made")
    run = read_json(path)
    settings = run.get("settings") if isinstance(run, dict) else None
    methods = settings.get("methods") if isinstance(settings, dict) else None
    if not isinstance(methods, dict) or not methods or not all(map(_is_shape, methods.values())):
        raise ValueError(f"{path} is not what `eagle-jax eval` writes; give the folder of a run")
    return run


def _is_shape(tree: Any) -> bool:
    return isinstance(tree, dict) and all(isinstance(tree.get(name), int) for name in ("nodes", "depth"))


def read_json(path: Path) -> Any:
    """Returns the JSON value that a file holds. Raises ValueError if it holds none."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """Writes a whole file or none."""
    with replacing(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=1).encode())


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings by name, each a printable value: methods with their trees, groups one by one."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "methods":
            flat[name] = ", ".join(f"{method} ({tree['nodes']} x {tree['depth']})" for method, tree in value.items())
        else:
            flat |= value if isinstance(value, dict) else {name: value}
    return flat
