"""Takes the GPU benchmark's whole models and a claim as on a machine that has torch and triton alone."""

import sys


def main() -> None:
    missing = ("numpy", "safetensors", "yaml", "pyarrow", "tokenizers", "pydantic")
    sys.modules |= dict.fromkeys(missing)  # not importable
    from benchmarks.gpu import __main__ as gpu
    from benchmarks.gpu.correctness import Claim, tasks
    from benchmarks.gpu.scale import Scale
    from benchmarks.gpu.workers import run_tasks

    steps = [case for case in gpu.all_cases(Scale()) if case.name.startswith("step ")]
    assert len(steps) == 16, len(steps)
    (outcome,) = run_tasks(tasks([Claim("add_layer_norm", "add_layer_norm", (3, 24))]), float("inf"))
    assert outcome == (0, None), outcome


if __name__ == "__main__":
    main()
