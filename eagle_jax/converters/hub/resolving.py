"""Resolves model names: folders, and repositories on the HuggingFace hub, which are downloaded to its cache once."""

import pathlib
from typing import Any

from eagle_jax.converters.errors import first_sentence
from eagle_jax.converters.files import WEIGHT_FILES, check_folder, is_gguf, read_entries, read_json
from eagle_jax.converters.tensor_file import GGUF

METADATA = ("*.json", "*.jinja", "tokenizer*", "*.model", "vocab.txt", "merges.txt")
SAFETENSORS = ("model*.safetensors", "*_lm_head.safetensors")
PICKLES = ("pytorch_model*.bin", "*_lm_head.pt")


def resolve(name: str | pathlib.Path) -> pathlib.Path:
    """Returns the local folder (or GGUF file) of a model: `name` itself, or the hub's repository `owner/name`.

    From a repository that has both, safetensors are downloaded and PyTorch files are not.

    Raises:
        FileNotFoundError: no such folder, and the hub gave no such repository (unknown, not allowed, or no network).
    """
    folder = pathlib.Path(name).expanduser()
    if folder.exists() or not _could_be_repository(str(name)):
        check_folder(folder)
        return folder
    return _fetch(str(name))


def cached(name: str) -> pathlib.Path | None:
    """Returns the folder of a repository `owner/name` in the hub's cache; None if it was not downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = pathlib.Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, OSError):
        return None
    return folder if any((folder / file).exists() for file in WEIGHT_FILES) else None


def read_config(name: str | pathlib.Path) -> dict[str, Any]:
    """Returns the `config.json` of a model, without its weights.

    Raises:
        FileNotFoundError: no such folder, no config in it, or the hub gave no such repository.
        ValueError: it is not valid JSON.
    """
    folder = pathlib.Path(name).expanduser()
    if folder.is_dir() or is_gguf(folder) or not _could_be_repository(str(name)):
        return read_entries(folder)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return read_json(pathlib.Path(hf_hub_download(str(name), "config.json")))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise _download_error(str(name), error) from error


def _could_be_repository(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not name.endswith(GGUF)


def _fetch(name: str) -> pathlib.Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = pathlib.Path(snapshot_download(name, allow_patterns=[*METADATA, *SAFETENSORS]))
        if not any((folder / file).exists() for file in WEIGHT_FILES if "safetensors" in file):
            folder = pathlib.Path(snapshot_download(name, allow_patterns=[*METADATA, *PICKLES]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise _download_error(name, error) from error
    return folder


def _download_error(name: str, error: Exception) -> FileNotFoundError:
    remedy = "download it elsewhere and give its folder"
    if "/" not in name:  # more likely a misspelt pair than one of the hub's few repositories without an owner
        remedy = "give a folder, owner/name, or a name that `eagle-jax models` lists"
    return FileNotFoundError(
        f"there is no folder {name!r}, and the HuggingFace hub did not give a model of that name ({reason(error)}); "
        f"{remedy}"
    )


def reason(error: BaseException) -> str:
    """Returns the kind of an error and the first sentence of its message."""
    return f"{type(error).__name__}: {first_sentence(error)}"
