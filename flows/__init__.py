"""Prefect orchestration of the jobs, and their commands. Thin: the work is in `data` and `albert`."""

import os

from data.cores import cores, share

# Before torch is loaded. libgomp's threads spin 300,000 times before they sleep; beside another busy process
# they take its core and one another's. On two cores, one of them taken, ALBERT-tiny trained at 6,200 tokens/s
# with this, and without at 2,900 or fewer in two trials; on idle cores at 22,000 with and without.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# A container that may use a share of the cores has a thread of torch's for each that it sees.
if share():
    os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
# Prefect sends nothing anywhere and asks nothing.
_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_CLI_PROMPT": "false",
}
os.environ.update(_QUIET | os.environ)
