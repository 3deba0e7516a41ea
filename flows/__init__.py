"""Prefect orchestration of the four jobs, and their commands. Thin: the work is in `data` and `albert`."""
