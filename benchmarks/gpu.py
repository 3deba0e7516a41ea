"""Measure the kernels and whole training steps on one NVIDIA GPU, after seeing that they are right.

    python -m benchmarks.gpu [--minutes 7] [--only WORD] [--dry-run] [--smoke]

Needs torch, triton and this repository; whole training steps need what `albert` imports, and are named as
skipped without. Rivals that are installed (transformers, flash-attn, Liger-Kernel) take part, the others are
named as absent. Correctness first: nothing is timed where a result is wrong. Writes
benchmarks/results/gpu.json and gpu.md. `--dry-run` lists the work; `--smoke` runs all of it once on a CPU at
a small size, without the kernels, to try the benchmark itself, and writes nothing. Exit status: 0 all is
right, 1 a result is wrong, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

import kernels
from benchmarks.gpu_cases import Scale, kernel_cases
from benchmarks.gpu_model import model_cases
from benchmarks.measure import Case, Result, measure, measure_ceilings, table
from kernels.dispatch import has_triton

RESULTS = Path(__file__).parent / "results"
SMALL = Scale(device="cpu", tokens=512, vocabulary=500)


def check_correctness() -> list[str]:
    """What is wrong, over the tests' grid in the dtypes a GPU has, and real sizes; empty if nothing is."""
    from tests.kernels import checks

    wrong: list[str] = []

    def claim(name: str, function, *arguments: object) -> None:
        try:
            function(kernels, *arguments)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            wrong.append(f"{name}{arguments}: {type(error).__name__}: {first}")

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        # every head dim in the dtype of training; compiling each in all three would take minutes
        for head_dim in (26, 28, 32, 64, 128, 256) if dtype == torch.bfloat16 else (26, 64):
            for lengths in ([1], [17, 0, 3, 128], [513, 1, 129, 64], [384, 512, 100]):
                claim("attention", checks.attention, lengths, head_dim, dtype)
            claim("attention", checks.attention, [70, 5, 128, 300], head_dim, dtype, 2, 0.1)
        for n, E, V in (
            (1, 128, 21128),
            (130, 128, 30000),
            (1000, 128, 21128),
            (65, 26, 1009),
            (70, 312, 21128),
        ):
            claim("mlm_loss", checks.mlm_loss, n, E, V, dtype)
        for layout in ("google", "bright", "bert"):
            claim("embed", checks.embed, 4096, 128, 312, layout, dtype, 21128, 0.12)
        for H in (312, 768, 1024, 4096):
            claim("add_layer_norm", checks.add_layer_norm, 1000, H, dtype)
            claim("add_layer_norm", checks.add_layer_norm, 1000, H, dtype, 0.1)
        for activation in ("gelu", "gelu_new", "relu"):
            claim("bias_gelu", checks.bias_gelu, 1000, 1248, activation, dtype)
    for long in (False, True):
        claim("attention_without_neighbours", checks.attention_without_neighbours, long)
    for sign in (1, -1):
        claim("extreme scores", checks.attention_of_extreme_scores, sign, [100, 3])
    return wrong


def machine() -> dict[str, object]:
    """What was measured on."""
    properties = torch.cuda.get_device_properties(0)
    import triton

    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def describe(case: Case) -> str:
    if case.skipped:
        return f"{case.name:52} skipped: {case.skipped}"
    return f"{case.name:52} {case.flops / 1e9:10.1f} GFLOP {case.bytes / 1e6:9.1f} MB"


def run_on_gpu(minutes: float, only: str) -> int:
    """The whole benchmark; returns the exit status."""
    start = time.monotonic()
    scale = Scale()
    print("correctness", flush=True)
    kernels.use("triton")
    wrong = check_correctness()
    for line in wrong:
        print(f"WRONG {line}", flush=True)
    ceilings = measure_ceilings()
    print(f"ceilings: {ceilings.flops / 1e12:.0f} TFLOP/s, {ceilings.bytes / 1e12:.2f} TB/s", flush=True)
    results: list[Result] = []
    # whole models first: they are the goal, and time may run out
    for case in [*model_cases(scale), *kernel_cases(scale)]:
        if only in case.name:
            # the kernels that are wrong are not worth a time
            if any(line.split("(")[0] == case.name.split()[0] for line in wrong):
                continue
            results.append(measure(case, deadline=start + 60 * minutes))
            timings = {name: round(t.milliseconds, 3) for name, t in results[-1].timings.items()}
            print(case.name, timings or f"skipped: {results[-1].absent}", flush=True)
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    kernels.use("auto")
    content = {
        "machine": machine(),
        "ceilings": asdict(ceilings),
        "seconds": round(time.monotonic() - start),
        "wrong": wrong,
        "results": [asdict(result) for result in results],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    heading = f"# {content['machine']['gpu']}\n\n" + "".join(f"WRONG: {line}\n" for line in wrong)
    (RESULTS / "gpu.md").write_text(heading + table(results, ceilings), encoding="utf-8")
    print(f"{len(results)} cases, {len(wrong)} wrong results; {RESULTS / 'gpu.md'}")
    return 1 if wrong else 0


def smoke(only: str) -> int:
    """Every case once, small, on a CPU and on torch's path: tries the benchmark, says nothing about speed."""
    broken = 0
    for case in [*model_cases(SMALL), *kernel_cases(SMALL)]:
        if only in case.name:
            result = measure(case, deadline=time.monotonic() + 600)
            failed = {n: r for n, r in result.absent.items() if "Error" in r}
            broken += len(failed)
            print(f"{case.name}: ran {', '.join(result.timings)}; absent {result.absent}")
    return 1 if broken else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=7, help="after which nothing new is timed (default 7)"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name has this word")
    parser.add_argument("--dry-run", action="store_true", help="list the work")
    parser.add_argument("--smoke", action="store_true", help="try the benchmark on a CPU")
    options = parser.parse_args(arguments)
    if options.dry_run:
        for case in [*model_cases(Scale()), *kernel_cases(Scale())]:
            if options.only in case.name:
                print(describe(case))
        return 0
    if options.smoke:
        return smoke(options.only)
    if not torch.cuda.is_available() or not has_triton:
        what = "no CUDA device" if has_triton else "no triton"
        print(f"{what} here, nothing measured: run this on a machine with an NVIDIA GPU", file=sys.stderr)
        return 2
    return run_on_gpu(options.minutes, options.only)


if __name__ == "__main__":
    sys.exit(main())
