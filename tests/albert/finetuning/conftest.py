"""What the tests of fine-tuning share."""

import pytest

from tests.conftest import save_small_model


@pytest.fixture(scope="package")
def model_folder(tmp_path_factory, tokenizer):
    """A checkpoint of a model that is fine-tuned in seconds."""
    return save_small_model(tmp_path_factory.mktemp("model") / "small", tokenizer)
