"""Runs the GPU benchmark's whole models and a claim as on a machine that has torch and triton alone."""

import sys


def main() -> None:
    sys.modules |= dict.fromkeys(["numpy", "safetensors", "yaml", "pyarrow", "tokenizers"])  # not importable
    import albert.model.batch
    import albert.model.heads  # noqa: F401
    from benchmarks.gpu import __main__ as gpu
    from benchmarks.gpu.correctness import Claim, check

    gpu.main(["--dry-run", "--only", "step"])
    print(check([Claim("add_layer_norm", "add_layer_norm", (3, 24))], float("inf")))


if __name__ == "__main__":
    main()
