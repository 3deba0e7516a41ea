"""What the benchmarks share: sources, timing in turns, result files."""
