"""Upload a checkpoint to Hugging Face's Hub."""

from __future__ import annotations

import os
from pathlib import Path

from albert.checkpoints.loading import read_checkpoint
from albert.checkpoints.saving import POOLED_FILE
from albert.checkpoints.source import CONFIG_FILE, HUB_PREFIX
from data.errors import InputError
from data.tokenization import TOKENIZER_FILES

CARD_FILE = "README.md"
TASK_FILE = "task.json"  # what a fine-tuned model predicts


def push(folder: Path, name: str, /, *, public: bool = False) -> list[str]:
    """Upload a checkpoint's or fine-tuned model, its tokenizer and its card; return a line for the user.

    The state of its training stays here. HF_TOKEN, or the login of huggingface_hub, gives access; HF_ENDPOINT
    may name another Hub. Raises InputError, before anything is sent, for a checkpoint that is not whole or
    has no card that states a licence, and if the Hub refuses it.

    Args:
        folder: Checkpoint or fine-tuned model with a card that states a licence.
        name: Repository, hf:OWNER/NAME; it is made if it does not exist.
        public: Make a new repository public; by default it is private.
    """
    # its HTTPError is httpx's, or httpx2's as of version 2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, HTTPError, LocalTokenNotFoundError

    repository = name.removeprefix(HUB_PREFIX)
    if not name.startswith(HUB_PREFIX) or repository.count("/") != 1:
        raise InputError(f"{name!r} is no place to push to: write hf:OWNER/NAME")
    checkpoint = read_checkpoint(folder)
    checkpoint.check()
    _check_licence(checkpoint.source.folder)
    weights = [path.name for path in checkpoint.source.files]
    files = [CONFIG_FILE, *weights, *TOKENIZER_FILES, POOLED_FILE, TASK_FILE, CARD_FILE, "LICENSE*"]
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))  # huggingface_hub reads it only when imported
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=checkpoint.source.folder,
            allow_patterns=files,
            commit_message="Upload a checkpoint with jixu",
        )
    except (HTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise InputError(
            f"{folder} cannot be pushed to {name}: {' '.join(str(error).split())}; a token in HF_TOKEN needs "
            "the right to write"
        ) from None
    return [f"pushed {commit.commit_url}"]


def _check_licence(folder: Path) -> None:
    from huggingface_hub import ModelCard

    card = folder / CARD_FILE
    try:
        licence = ModelCard.load(card).data.license if card.is_file() else None
    except ValueError as error:
        raise InputError(f"{card} is not a model card: {' '.join(str(error).split())}") from None
    if not licence:
        raise InputError(
            f"{card} states no licence: write one with jixu checkpoint card {folder} --licence ID, such as "
            "apache-2.0, after removing it"
        )
