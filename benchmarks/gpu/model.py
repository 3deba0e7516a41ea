"""Whole training steps: jixu eager, as a CUDA graph and on torch, and transformers' ALBERT, on the
same sequences; and what a model takes in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch.autograd import DeviceType

from albert.model import AlbertConfig, Batch, PretrainingModel, measure_sizes
from benchmarks.gpu.scale import Scale, lengths_of
from benchmarks.gpu.timing import Case, Run, attempt, rival
from benchmarks.support.steps import random_batch, training_flops, training_step

# so that a step takes tens of milliseconds, and the activations of "large" fit
TOKENS = {"tiny": 65536, "base": 32768, "large": 16384, "bert-large": 16384}
THEIRS = ("transformers", "transformers compiled")


def config_of(name: str, scale: Scale) -> AlbertConfig:
    """A preset without dropout: transformers' ALBERT and jixu's then do the same work."""
    return AlbertConfig.preset(
        name, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, vocab_size=scale.vocabulary
    )


def model_cases(scale: Scale) -> Iterator[Case]:
    """Yield steps, of few tokens too: there the GPU waits for the host, unless a graph launches them."""
    works = [("tiny", 128, "full", scale.tokens), ("tiny", 128, "mixed", scale.tokens)]
    if not scale.is_small:
        names = ("tiny", "base", "large")
        shapes = product(names, (128, 512), ("full", "mixed"))
        works = [(name, longest, mix, min(TOKENS[name], scale.tokens)) for name, longest, mix in shapes]
        works += [(name, 128, "mixed", 4096) for name in names]
        works.append(("bert-large", 128, "full", min(TOKENS["bert-large"], scale.tokens)))
    for name, longest, mix, tokens in works:
        config, lengths = config_of(name, scale), lengths_of(mix, longest, tokens)
        yield Case(
            f"step {name} T={longest} {mix} {tokens} tokens",
            partial(_runners, scale, name, config, lengths),
            flops=training_flops(config, lengths, int(0.15 * tokens)),
            tokens=tokens,
        )


def _model(scale: Scale, config: AlbertConfig) -> PretrainingModel:
    with torch.device(scale.device):
        torch.manual_seed(0)
        return PretrainingModel(config)


def _batch(scale: Scale, lengths: list[int]) -> Batch:
    return random_batch(lengths, scale.vocabulary, scale.device)


def _step(scale: Scale, model: PretrainingModel, batch: Batch) -> Run:
    return partial(training_step(model, half=not scale.is_small), batch)


def _graphed(scale: Scale, model: PretrainingModel, batch: Batch) -> Run:
    """Capture a whole step, optimiser included; on a CPU there is nothing to capture it in."""
    if scale.is_small:
        return _step(scale, model, batch)
    step = partial(training_step(model, capturable=True), batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles kernels and allocates states outside of the capture
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_writes_to: object = step) -> None:  # what it writes to lives as long as it
        graph.replay()

    return replay


def _runners(scale: Scale, name: str, config: AlbertConfig, lengths: list[int]) -> dict[str, Run | str]:
    batch = _batch(scale, lengths)
    runners: dict[str, Run | str] = {
        "jixu": _step(scale, _model(scale, config), batch),
        "jixu graph": attempt(_graphed, scale, _model(scale, config), batch),
    }
    if config.layout == "bert":
        return runners | dict.fromkeys(THEIRS, "measured for ALBERT only")
    eager = rival("transformers", _transformers, scale, config, batch, False)
    compiled: Run | str = "compiled on a GPU, for tiny and base at T=128 full only"
    if not scale.is_small and name in ("tiny", "base") and set(lengths) == {128}:
        compiled = rival("transformers", _transformers, scale, config, batch, True)
    return runners | dict(zip(THEIRS, (eager, compiled), strict=True))


def _transformers(scale: Scale, config: AlbertConfig, batch: Batch, compile_it: bool) -> Run:
    """Make a step of transformers' ALBERT on the same sequences, padded."""
    from benchmarks.support.transformers_albert import padded, their_config, transformers

    with torch.device(scale.device):
        model = transformers.AlbertForPreTraining(their_config(config)).train()
        inputs = padded(batch)
    forward = torch.compile(model) if compile_it else model
    return partial(training_step(model, forward, half=not scale.is_small), **inputs)


def profile(scale: Scale, name: str) -> dict[str, object]:
    """The kernels of a step and the host's calls, the longest first: how many and their milliseconds."""
    batch = _batch(scale, lengths_of("mixed", 128, min(TOKENS[name], scale.tokens)))
    step = _step(scale, _model(scale, config_of(name, scale)), batch)
    step()
    kind = torch.profiler.ProfilerActivity
    activities = [kind.CPU] if scale.is_small else [kind.CPU, kind.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        if not scale.is_small:
            torch.cuda.synchronize()

    def longest(attribute: str, kind: DeviceType) -> dict[str, tuple[int, float]]:
        # a call of the host has the time of the kernels that it launched, too: they would count twice
        own = [e for e in profiler.key_averages() if e.device_type == kind and not e.is_user_annotation]
        events = sorted(own, key=lambda e: -getattr(e, attribute))[:40]
        return {e.key[:120]: (e.count, round(getattr(e, attribute) / 1e3, 4)) for e in events}

    return {
        "model": name,
        "tokens": batch.tokens,
        "host": longest("self_cpu_time_total", DeviceType.CPU),
        "kernels": longest("self_device_time_total", DeviceType.CUDA),
    }


def memory(scale: Scale, name: str) -> dict[str, object]:
    """What a model takes: parameters, bytes of the optimiser and of an all-reduce, peak and activations."""
    config = config_of(name, scale)
    parameters = measure_sizes(config).total
    record: dict[str, object] = {
        "model": name,
        "parameters": parameters,
        "optimizer_bytes": 8 * parameters,  # AdamW's two moments
        "all_reduce_bytes": 4 * parameters,  # gradients in fp32
    }
    if scale.is_small:
        return record
    batch = _batch(scale, lengths_of("full", 128, min(TOKENS[name], scale.tokens)))
    step = _step(scale, _model(scale, config), batch)
    step()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return {**record, "held_bytes": held, "peak_bytes": peak, "tokens": batch.tokens}
