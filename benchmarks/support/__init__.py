"""Shared by the benchmarks: sources, timing in turns, result files."""
