"""Checkpoints of the Hugging Face Hub, by huggingface_hub: downloaded once, then read from its cache, which
also serves without a network.
"""

from __future__ import annotations

import os
from pathlib import Path

from data.records import InputError

HUB_PREFIX = "hf:"
_SMALL = ["*.json", "vocab*.txt", "*.model"]
_SAFE = ["*.safetensors"]
_PICKLE = ["pytorch_model*.bin"]


def download(name: str) -> Path:
    """The folder of "hf:REPO" or "hf:REPO@REVISION" in the Hub's cache, fetched if it is not there.

    Weights as safetensors where the repository has them, else as .bin. Raises InputError for what cannot be
    had, saying why.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise InputError(f"{name} needs huggingface_hub: pip install huggingface_hub") from None
    repository, _, revision = name.removeprefix(HUB_PREFIX).partition("@")
    # huggingface_hub reads the variable once, when it is imported
    cache = os.environ.get("HF_HUB_CACHE")
    wanted = {"repo_id": repository, "revision": revision or None, "cache_dir": cache}
    disable_progress_bars()
    try:
        for weights in (_SAFE, _PICKLE):
            folder = Path(snapshot_download(allow_patterns=[*_SMALL, *weights], **wanted))
            if any(path for pattern in weights for path in folder.glob(pattern)):
                return folder
    except HFValidationError:
        raise InputError(f"{name}: {repository!r} is no repository name; write hf:OWNER/NAME") from None
    except LocalEntryNotFoundError:
        raise InputError(
            f"{name} is not in the local cache and the Hub cannot be reached: download it where there is a "
            "network, or pass a folder"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        raise InputError(
            f"{name} cannot be downloaded (HTTP {status}): check the name; a private or gated repository "
            "needs HF_TOKEN"
        ) from None
    except OSError as error:
        raise InputError(f"{name} cannot be downloaded: {' '.join(str(error).split())}") from None
    raise InputError(f"{name} holds neither safetensors nor pytorch_model.bin: pass another repository")
