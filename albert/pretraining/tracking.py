"""Send the records of a run to TensorBoard, MLflow or Weights & Biases; each is an optional extra."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from albert.pretraining.settings import PretrainSettings
from data.errors import ConfigError
from data.files import write_text

_PROJECT = "jixu"
_MLFLOW_RUN = "mlflow_run"  # file in the run's folder with the id that MLflow gave it


class _Sink(NamedTuple):
    """How a tracker takes the values of a step, and how it ends."""

    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


class Tracker:
    """The named tracker of a run, or none. At its first failure it is switched off, with a notice."""

    def __init__(
        self, name: str | None, settings: PretrainSettings, first_step: int, say: Callable[[str], object]
    ):
        """Records begin at `first_step`: what an earlier attempt logged from there on was lost."""
        self.name, self.say = name, say
        openers = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
        self.sink: _Sink | None = self._try(openers[name], settings, first_step) if name else None

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self.sink is not None:
            self._try(self.sink.log, values, step)

    def close(self) -> None:
        if self.sink is not None:
            self._try(self.sink.close)
        self.sink = None

    def _try(self, work: Callable[..., Any], *arguments: object) -> Any:
        try:
            return work(*arguments)
        except Exception as error:  # no failure of a tracker, of any class, may end a training
            self.sink = None
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.say(f"{self.name} is left out from now on, metrics.jsonl has every record: {lines[0][:200]}")


def check_tracker(settings: PretrainSettings) -> None:
    """Raise ConfigError if the run's tracker is not installed."""
    name = settings.running.tracker
    if name is not None and importlib.util.find_spec(name) is None:
        raise ConfigError(f"{name} is not installed: pip install 'jixu[{name}]'")


def _tensorboard(settings: PretrainSettings, first_step: int) -> _Sink:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(settings.run_folder / "tensorboard"), purge_step=first_step)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return _Sink(log, writer.close)


def _mlflow(settings: PretrainSettings, first_step: int) -> _Sink:
    # by default a server that does not answer holds the training up for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import mlflow
    from mlflow.entities import Metric

    client, run_file = mlflow.MlflowClient(), settings.run_folder / _MLFLOW_RUN
    if first_step and run_file.is_file():
        run = run_file.read_text(encoding="utf-8")
        client.update_run(run, status="RUNNING")
    else:
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)).experiment_id
        run = client.create_run(experiment, run_name=settings.run_folder.name).info.run_id
        write_text(run_file, run)

    def log(values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        # MLflow allows no @, which is before a corpus's name
        metrics = [Metric(name.replace("@", "/"), value, now, step) for name, value in values.items()]
        client.log_batch(run, metrics=metrics)

    return _Sink(log, lambda: client.set_terminated(run))


def _wandb(settings: PretrainSettings, first_step: int) -> _Sink:
    import wandb

    folder = settings.run_folder.absolute()
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=folder.name,
        id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
        resume="allow" if first_step else None,
        dir=folder,
        config=to_jsonable_python(settings),
    )
    return _Sink(lambda values, step: run.log(dict(values), step=step), run.finish)
