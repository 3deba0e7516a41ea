"""Continued pretraining: from a checkpoint or random weights, over a list of shards, resumable at every
checkpoint.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from albert.batching import InstanceStream
from albert.checkpoints import LoadReport, find_source, new_model
from albert.config import ConfigError
from albert.config.shape import Share
from albert.diagnostics import LayerChange, layer_changes
from albert.growth import grow
from albert.heads import PretrainingModel, PretrainingOutput, initialize
from albert.optim import adamw, default_learning_rate, linear_schedule
from albert.probe import PROBE_RULE, PROBE_SENTENCES, Probe, probe
from albert.trainer_state import (
    MANIFEST_FILE,
    TrainerState,
    is_whole,
    list_checkpoints,
    load_trainer_state,
    remove_old_checkpoints,
    save_checkpoint,
)
from data.files import sha256, write_text
from data.records import InputError
from data.tokenization import find_tokenizer, vocabulary_of

SETTINGS_FILE, METRICS_FILE = "settings.json", "metrics.jsonl"
_FREE_TO_CHANGE = ("log_every", "checkpoint_every", "keep_checkpoints", "resume", "activation_checkpointing")


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """What to train, on what, and how. Paths are of the run's own folder, shards and tokenizer."""

    run_folder: Path
    shards: tuple[Path, ...]
    tokenizer_folder: Path | None = None  # its files go into every checkpoint
    init: str = "tiny"  # a preset's name (random weights), a checkpoint, or hf:REPO
    share: Share | None = None  # give layers parameters of their own; None: as the start has it
    num_hidden_layers: int | None = None  # more layers, tiled from the start's; None: as many
    steps: int = 1000
    batch_tokens: int = 4096
    learning_rate: float | None = None  # None: by the batch size and the kind of start
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    masking: Literal["dynamic", "static"] = "dynamic"
    precision: Literal["bf16", "fp32"] = "bf16"
    activation_checkpointing: bool = False  # less memory, a third more operations
    held_out_share: float = 0.02
    held_out_tokens: int = 16_384  # at most, to an evaluation
    evaluate_every: int | None = None  # steps; None: eight times in the run
    checkpoint_every: int | None = None  # steps; None: with every evaluation
    log_every: int = 10
    keep_checkpoints: int = 2
    resume: Literal["auto", "never"] = "auto"
    seed: int = 0

    def __post_init__(self):
        ranges = [
            ("steps", 1, 10**9),
            ("batch_tokens", 128, 10**8),
            ("warmup_share", 0, 1),
            ("weight_decay", 0, 1),
            ("clip_norm", 1e-6, 1e6),
            ("held_out_share", 1e-6, 0.9),
            ("held_out_tokens", 1, 10**9),
            ("log_every", 1, 10**9),
            ("keep_checkpoints", 1, 10**6),
            ("seed", 0, 2**31),
        ]
        for name, low, high in ranges:
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be from {low:g} to {high:g}")
        for name in ("learning_rate", "evaluate_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value}: it must be more than 0")
        if self.precision not in ("bf16", "fp32"):
            raise ConfigError(f"precision={self.precision!r}: choose bf16 or fp32")

    @property
    def evaluation_interval(self) -> int:
        return self.evaluate_every or max(1, math.ceil(self.steps / 8))

    @property
    def checkpoint_interval(self) -> int:
        return self.checkpoint_every or self.evaluation_interval


@dataclass(frozen=True, kw_only=True)
class PretrainResult:
    """What a run left behind."""

    run_folder: Path
    checkpoint: Path  # the newest, in transformers' format
    status: Literal["completed", "interrupted"]
    steps: int
    tokens: int
    tokens_per_second: float
    resumed_from: int  # step the run went on from; 0 for a fresh start
    history: list[dict[str, float]]
    notices: tuple[str, ...]
    learning_rate: float
    parameters: int
    layers: tuple[LayerChange, ...] = ()  # of the trained model, on a held-out batch

    @property
    def probe(self) -> Probe | None:
        """What the checkpoint that training began from knew; None for random weights."""
        return Probe.from_record(self.history[0]) if self.history else None

    def evaluations(self) -> list[dict[str, float]]:
        """Held-out records, the first before any step."""
        return [record for record in self.history if "held_out_mlm_loss" in record]


def check_start(settings: PretrainSettings) -> tuple[PretrainingModel, LoadReport | None, InstanceStream]:
    """The model and the data of a run. Raises ConfigError or InputError if they cannot work together."""
    stream = InstanceStream(
        settings.shards,
        batch_tokens=settings.batch_tokens,
        seed=settings.seed,
        held_out_share=settings.held_out_share,
        masking=settings.masking,
    )
    model, report = new_model(settings.init, stream.info.vocab_size, seed=settings.seed)
    grown = grow(model, share=settings.share, num_hidden_layers=settings.num_hidden_layers)
    if report is None and grown is not model:  # random weights: copies would be the same in every layer
        torch.manual_seed(settings.seed)
        initialize(grown, grown.config.initializer_range)
    model = grown
    config, info = model.config, stream.info
    if report is not None and settings.tokenizer_folder is not None:
        _check_same_vocabulary(settings.init, settings.tokenizer_folder)
    if info.max_seq_length > config.max_position_embeddings:
        raise ConfigError(
            f"the corpus has sequences of up to {info.max_seq_length} tokens, the model {settings.init} has "
            f"{config.max_position_embeddings} positions: refresh the corpus with "
            f"--max-seq-length {config.max_position_embeddings} or less"
        )
    if info.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the corpus was made with a vocabulary of {info.vocab_size:,} entries, the model "
            f"{settings.init} has "
            f"{config.vocab_size:,}: refresh the corpus with the checkpoint's own tokenizer"
        )
    return model, report, stream


def _check_same_vocabulary(init: str, tokenizer_folder: Path) -> None:
    """Raise ConfigError when the checkpoint has a vocabulary beside it, and it is not the corpus's."""
    try:
        theirs = find_tokenizer(str(find_source(init).folder))
        ours = find_tokenizer(str(tokenizer_folder))
    except InputError:
        return  # the checkpoint, or the workspace as yet, has none
    if sha256(theirs) != sha256(ours) and vocabulary_of(theirs) != vocabulary_of(ours):
        raise ConfigError(
            f"the corpus was made with {ours}, which is not the vocabulary of {init} ({theirs.name}): "
            "refresh "
            "the corpus with the checkpoint's own tokenizer"
        )


def pretrain(
    settings: PretrainSettings,
    on_checkpoint: Callable[[TrainerState, Path, str], None] = lambda state, folder, status: None,
) -> PretrainResult:
    """Train until `settings.steps`, going on from the newest whole checkpoint of the run if there is one.

    `on_checkpoint` is called after each checkpoint with the state, its folder and the run's status. SIGTERM
    and Ctrl-C end the run after the step in hand, with a checkpoint; the result's status says so.
    """
    model, report, stream = check_start(settings)
    notices = list(report.notices()) if report else []
    rate = settings.learning_rate or default_learning_rate(
        settings.batch_tokens, from_checkpoint=report is not None
    )
    settings.run_folder.mkdir(parents=True, exist_ok=True)
    _check_same_run(settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, optimizer, state, resumed_notices = _start_or_resume(settings, model, rate, device)
    notices += resumed_notices
    resumed_from = state.step
    model.encoder.activation_checkpointing = settings.activation_checkpointing
    warmup = round(settings.steps * settings.warmup_share)
    batches = stream.training_batches(state.cursor)
    log = _ProgressLog(settings, state)

    def checkpoint(status: str) -> Path:
        folder = save_checkpoint(settings.run_folder, model, optimizer, state, settings.tokenizer_folder)
        remove_old_checkpoints(settings.run_folder, settings.keep_checkpoints)
        on_checkpoint(state, folder, status)
        return folder

    if not state.history:
        known = {}
        if report is not None:
            start = probe(model, stream.probe_batches(PROBE_RULE, PROBE_SENTENCES))
            log.say(start.describe())
            known = start.to_record()
        log.record({"step": 0, **evaluate(model, stream, settings, device), **known})
    began = Probe.from_record(state.history[0])
    if began is not None and (warning := began.warning()):
        notices.append(warning)
    newest = next(iter(list_checkpoints(settings.run_folder)), None)
    status: Literal["completed", "interrupted"] = "completed"
    with _stop_requested() as stopping:
        while state.step < settings.steps:
            batch, state.cursor = next(batches)
            scale = linear_schedule(state.step, settings.steps, warmup)
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            step_started = time.perf_counter()
            with _autocast(settings, device):
                output = model(batch.to(device))
            optimizer.zero_grad(set_to_none=True)
            output.loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            if not math.isfinite(float(norm)):
                raise ConfigError(
                    f"the gradient is not finite at step {state.step + 1} (learning rate "
                    f"{rate * scale:.2g}): the newest "
                    f"checkpoint is whole; start again with a lower --learning-rate"
                )
            optimizer.step()
            state.step += 1
            state.tokens += batch.tokens
            state.seconds += time.perf_counter() - step_started
            log.step(batch.tokens, output, float(norm), rate * scale)
            at_end = state.step == settings.steps
            if at_end or state.step % settings.evaluation_interval == 0:
                log.record({"step": state.step, **evaluate(model, stream, settings, device)})
            if at_end or stopping.is_set() or state.step % settings.checkpoint_interval == 0:
                status = "interrupted" if stopping.is_set() and not at_end else "completed"
                newest = checkpoint(status if at_end or stopping.is_set() else "running")
            if stopping.is_set():
                break
    log.close()
    with _autocast(settings, device):
        held_out = next(stream.held_out_batches(settings.held_out_tokens)).to(device)
        layers = layer_changes(model.encoder, held_out)
    return PretrainResult(
        run_folder=settings.run_folder,
        checkpoint=newest,
        status=status,
        steps=state.step,
        tokens=state.tokens,
        tokens_per_second=state.tokens / max(state.seconds, 1e-9),
        resumed_from=resumed_from,
        history=state.history,
        notices=tuple(notices),
        learning_rate=rate,
        parameters=sum(p.numel() for p in model.parameters()),
        layers=layers,
    )


def read_settings(run_folder: Path) -> dict[str, object]:
    """The settings a run was begun with, as it keeps them."""
    return json.loads((run_folder / SETTINGS_FILE).read_text(encoding="utf-8"))


def checkpoint_digest(folder: Path) -> str:
    """sha256 of a checkpoint's manifest, which holds that of each of its files."""
    return sha256(folder / MANIFEST_FILE)


def _autocast(settings: PretrainSettings, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")


@torch.no_grad()
def evaluate(
    model: PretrainingModel, stream: InstanceStream, settings: PretrainSettings, device: torch.device
) -> dict[str, float]:
    """Losses and accuracies on held-out documents, always the same ones with the same masks."""
    model.eval()
    totals = dict.fromkeys(
        ("mlm_loss", "mlm_correct", "mlm_count", "sop_loss", "sop_correct", "sop_count"), 0.0
    )
    for batch in stream.held_out_batches(settings.held_out_tokens):
        with _autocast(settings, device):
            output = model(batch.to(device))
        totals["mlm_loss"] += output.mlm_loss.item() * output.mlm_count
        totals["mlm_correct"] += int(output.mlm_correct)
        totals["mlm_count"] += output.mlm_count
        if output.sop_loss is not None:
            count = int(output.sop_count)
            totals["sop_loss"] += output.sop_loss.item() * count
            totals["sop_correct"] += int(output.sop_correct)
            totals["sop_count"] += count
    model.train()
    if not totals["mlm_count"]:
        raise InputError(
            "no held-out document in the corpus: raise held_out_share, or give it more documents"
        )
    result = {
        "held_out_mlm_loss": totals["mlm_loss"] / totals["mlm_count"],
        "held_out_mlm_accuracy": totals["mlm_correct"] / totals["mlm_count"],
    }
    if totals["sop_count"]:
        result["held_out_sop_loss"] = totals["sop_loss"] / totals["sop_count"]
        result["held_out_sop_accuracy"] = totals["sop_correct"] / totals["sop_count"]
    return result


def _check_same_run(settings: PretrainSettings) -> None:
    """Keep the run's settings beside it; a run is not gone on with under others."""
    asked = json.loads(json.dumps(asdict(settings), default=str))
    path = settings.run_folder / SETTINGS_FILE
    if settings.resume == "auto" and path.is_file() and list_checkpoints(settings.run_folder):
        known = read_settings(settings.run_folder)
        changed = [
            f"{name} {known.get(name)!r} -> {asked[name]!r}"
            for name in asked
            if name not in (*_FREE_TO_CHANGE, "shards") and known.get(name) != asked[name]
        ]
        if known.get("shards") != asked["shards"]:
            changed.append("the corpus version")
        if changed:
            raise ConfigError(
                f"{settings.run_folder} was begun with other settings ({'; '.join(changed)}): "
                "give this run another --run name, or --resume never to begin anew"
            )
    write_text(path, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")


def _start_or_resume(
    settings: PretrainSettings, model: PretrainingModel, rate: float, device: torch.device
) -> tuple[PretrainingModel, torch.optim.Optimizer, TrainerState, list[str]]:
    """The model on its device, and what trains it: as the newest whole checkpoint has them, or new."""
    notices = []
    torch.manual_seed(settings.seed)  # of every device's generator, whichever of them a checkpoint holds
    if settings.resume == "auto":
        for folder in list_checkpoints(settings.run_folder):
            if is_whole(folder):
                model, _ = new_model(str(folder), model.config.vocab_size, seed=settings.seed)
                # before its optimiser, whose state is loaded to where the parameters are
                optimizer = adamw(model.to(device), rate, settings.weight_decay)
                return model, optimizer, load_trainer_state(folder, optimizer), notices
            notices.append(f"{folder.name} is damaged: going on from the one before it")
    return model, adamw(model.to(device), rate, settings.weight_decay), TrainerState(), notices


@contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """Set by SIGTERM or Ctrl-C while the block runs; a second one acts as it always does."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def request(number: int, frame: object) -> None:
        event.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, request)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ProgressLog:
    """Keeps the history, writes it to metrics.jsonl, and shows a bar on a terminal or plain lines
    elsewhere.
    """

    def __init__(self, settings: PretrainSettings, state: TrainerState):
        self.settings, self.state = settings, state
        self.path = settings.run_folder / METRICS_FILE
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in state.history))
        self.on_terminal = sys.stderr.isatty()
        self.bar = tqdm(total=settings.steps, initial=state.step, unit="step", disable=not self.on_terminal)
        self._reset()

    def _reset(self) -> None:
        self.tokens, self.mlm_loss, self.mlm_correct, self.mlm_count = 0, 0.0, 0, 0
        self.sop_correct, self.sop_count, self.seconds = 0, 0, self.state.seconds

    def step(self, tokens: int, output: PretrainingOutput, norm: float, rate: float) -> None:
        self.tokens += tokens
        self.mlm_loss += output.mlm_loss.item() * output.mlm_count
        self.mlm_correct += int(output.mlm_correct)
        self.mlm_count += output.mlm_count
        if output.sop_count is not None:
            self.sop_correct += int(output.sop_correct)
            self.sop_count += int(output.sop_count)
        self.bar.update()
        if self.state.step % self.settings.log_every and self.state.step != self.settings.steps:
            return
        record = {
            "step": self.state.step,
            "mlm_loss": self.mlm_loss / self.mlm_count,
            "mlm_accuracy": self.mlm_correct / self.mlm_count,
            "gradient_norm": norm,
            "learning_rate": rate,
            "tokens_per_second": self.tokens / (self.state.seconds - self.seconds),
        }
        if self.sop_count:
            record["sop_accuracy"] = self.sop_correct / self.sop_count
        self.record(record)
        self._reset()

    def record(self, record: dict[str, float]) -> None:
        self.state.history.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        shown = {name: value for name, value in record.items() if name != "step" and "probe_" not in name}
        line = "  ".join(f"{name} {_short(value)}" for name, value in shown.items())
        if self.on_terminal:
            self.bar.set_postfix_str(line)
        if not self.on_terminal or "held_out_mlm_loss" in record:
            self.say(f"step {record['step']}/{self.settings.steps}  {line}")

    def say(self, line: str) -> None:
        self.bar.write(line, file=sys.stderr)

    def close(self) -> None:
        self.bar.close()


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
