"""Memory of training on a CPU stays where it is; GPUs that the kernels do not support are named."""

import sys
from argparse import Namespace

import pytest
import torch

from albert.runtime import notice_of_operators
from benchmarks.gpu.__main__ import refusal
from kernels.dispatch import has_triton, runs_kernels
from tests.commands import output_of

GROWTH = """
import sys
import torch
from albert.runtime import bound_caches, give_back

def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024

if "bounded" in sys.argv:
    bound_caches()
layer = torch.nn.Linear(312, 1248).bfloat16()
for tokens in (256, *range(301, 601)):
    layer(torch.zeros(tokens, 312, dtype=torch.bfloat16)).sum().backward()
    if tokens == 256:
        before = held()
give_back(0)
print(held() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, as Linux has it")
@pytest.mark.skipif(not torch.cpu.get_capabilities().get("avx512_f"), reason="oneDNN needs it for bf16")
def test_products_of_many_shapes_are_not_all_remembered():
    grown = {way: int(output_of("-c", GROWTH, way)) for way in ("bounded", "as it is")}
    # with AVX-512 but without instructions for bf16 either may be small
    assert grown["bounded"] < max(grown["as it is"] / 2, 100), grown


@pytest.mark.skipif(not has_triton, reason="triton has wheels for Linux only")
def test_a_gpu_that_runs_torchs_operators_is_named_and_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "V100")
    options = Namespace(device="cuda", tiny=False)
    for capability, hip in (((7, 5), None), ((9, 4), "6.4"), ((8, 0), None), ((8, 6), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        monkeypatch.setattr(torch.version, "hip", hip)
        runs_kernels.cache_clear()
        told = [notice_of_operators(torch.device("cuda", 0)), refusal(options)]
        named = ["V100 runs torch's operators: ", "V100 does not run the kernels: "]
        found = [text and text.partition(": ")[0] + ": " for text in told]
        assert found == ([None, None] if capability[0] == 8 else named)
    runs_kernels.cache_clear()
    assert notice_of_operators(torch.device("cpu")) is None
