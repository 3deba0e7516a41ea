"""Prefect orchestration of the four jobs, and their commands. Thin: the work is in `data` and `albert`."""

import os

# Before torch is loaded. libgomp's threads spin for up to 25 ms after each operator; beside another busy
# process they spend whole time slices so. On two cores, one of them taken, ALBERT-tiny trained at 6,200
# tokens/s with this, and under 1,200 without; on idle cores both gave 22,000.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
