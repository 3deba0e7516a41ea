import pytest

from albert.pretraining import read_failure
from albert.pretraining.result import record_failure
from data.errors import ConfigError


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("two\n  lines"), "failed", "RuntimeError: two lines"),
        (ConfigError("use another"), "failed", "use another"),
        (KeyboardInterrupt(), "interrupted", "stopped at once"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_first_error_that_ends_a_training_is_recorded(tmp_path, error, status, reason):
    for raised in (error, RuntimeError("lost the others")):
        with pytest.raises(type(raised)), record_failure(tmp_path):
            raise raised
    kept = read_failure(tmp_path)
    assert kept.status == status and kept.reason.startswith(reason)
