"""Every mask, scale and correction of the kernels is needed: removing one from the source fails a claim.

A mutant is the package's source with one term changed, imported under another name and put through `checks`.
"""

import contextlib
import difflib
import faulthandler
import importlib
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import kernels
from tests.kernels import checks, operand_checks
from tests.kernels.addresses import masked_sites, watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a mutant may write outside of its tensors"),
]
SOURCE = Path(kernels.__file__).parent


def attention(package: ModuleType) -> None:
    """Check sequences within a tile, then over several."""
    for lengths in ([20, 0, 33], [70, 0, 3]):
        checks.attention(package, lengths, 26, heads=1)
        checks.attention(package, lengths, 26, dropout_p=0.3)
        for sign in (1, -1):
            checks.attention_of_extreme_scores(package, sign, lengths)
    checks.attention_without_neighbours(package, long=False)
    checks.attention_without_neighbours(package, long=True)


def mlm_loss(package: ModuleType) -> None:
    checks.mlm_loss_of_equal_logits(package, 600, 300.0)
    checks.mlm_loss_of_equal_logits(package, 600, -300.0)
    checks.mlm_loss_of_dirty_padding(package)
    checks.mlm_loss(package, 11, 26, 700)
    checks.mlm_loss(package, 70, 20, 37)
    checks.mlm_loss(package, 3, 16, 1100)
    checks.mlm_loss(package, 520, 16, 37)


def add_layer_norm(package: ModuleType) -> None:
    checks.add_layer_norm(package, 5, 40)
    checks.add_layer_norm(package, 33, 40, dropout_p=0.3, numbered=True)


def bias_gelu(package: ModuleType) -> None:
    for activation in ("gelu", "gelu_new", "relu"):
        checks.bias_gelu(package, 70, 40, activation)


def embed(package: ModuleType) -> None:
    for layout in ("google", "bright", "bert"):
        checks.embed(package, 150, 26, 40, layout)
    for E in (26, 3):
        checks.embed(package, 150, E, 40, "google", V=3, hot=1.0)
    checks.embed_without_neighbours(package)
    operand_checks.scatter_of_one_id(package)
    operand_checks.scatter_without_neighbours(package)


CLAIMS = (attention, mlm_loss, add_layer_norm, bias_gelu, embed)


def read_mutations() -> list[tuple[str, str, str, str]]:
    """Read claims, file, old text and new text of every mutation."""
    mutations = []
    for block in (Path(__file__).parent / "mutations.txt").read_text(encoding="utf-8").split("\n@ ")[1:]:
        head, _, changes = block.partition("\n")
        for change in re.findall(r"(?:^-.*\n)+(?:^\+.*\n?)+", changes, re.M):
            lines = change.splitlines()
            old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
            mutations.append((*head.split(), old, new))
    return mutations


MUTATIONS = read_mutations()
# so that each program has several tiles of rows, each part several blocks of the vocabulary
FEW = [(stem, "PROGRAMS") for stem in ("layer_norm", "bias_gelu", "embedding")] + [("mlm_loss", "MOST_PARTS")]


def changed_lines(file: str, old: str, new: str) -> list[int]:
    """List the lines of a kernel that differ in a mutant."""
    lines = (SOURCE / f"{file}.py").read_text(encoding="utf-8").split("\n")
    mutant = "\n".join(lines).replace(old, new).split("\n")
    blocks = difflib.SequenceMatcher(None, lines, mutant, autojunk=False).get_opcodes()
    return [n + 1 for tag, start, end, *_ in blocks if tag != "equal" for n in range(start, end)]


def load(folder: Path, name: str, file: str, old: str, new: str) -> ModuleType:
    """Import the package with one change, under another name that its operators get too."""
    shutil.copytree(SOURCE, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / name).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.stem == file and old:
            assert old in text, f"{file}.py has no {old!r}"
            text = text.replace(old, new)
        text = text.replace("from kernels.", f"from {name}.").replace('"jixu::', f'"{name}::')
        path.write_text(text, encoding="utf-8")
    package = importlib.import_module(name)
    package.use("triton")
    for stem, constant in FEW:
        setattr(sys.modules[f"{name}.{stem}"], constant, 2)
    return package


def outcome(claims: Callable[[ModuleType], None], *source: object) -> str:
    """Check claims about a mutant in a process of its own: they hold, fail, crash or break.

    A mutant may write past its tensors and crash the process, which counts as noticed.
    """
    child = os.fork()
    if not child:
        status = 2
        with contextlib.suppress(Exception):
            faulthandler.disable()  # crashes are expected
            torch.set_num_threads(1)  # the threads of the parent are not in the child
            # another heap for another name
            _ballast = [bytearray(64 * n) for n in range(zlib.crc32(str(source[1]).encode()) % 500)]
            sys.path.insert(0, str(source[0]))
            package = load(*source)
            try:
                claims(package)
                status = 0
            except AssertionError:
                status = 1
            except Exception as error:  # the interpreter wraps the AddressError
                status = 1 if re.search("outside of its tensors|an address", str(error)) else 2
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "crashes" if status < 0 else ("holds", "fails", "breaks")[status]


@pytest.mark.parametrize("claims", CLAIMS[2:])
def test_the_unchanged_source_holds(tmp_path, claims):
    """The others hold in the test below."""
    assert outcome(claims, tmp_path, "mutant", "", "", "") == "holds"


def test_every_mask_of_a_kernel_is_needed(triton):
    """A mask excludes an address outside of the tensors, or is one of the mutations below."""
    changed = {(file, line) for _, file, old, new in MUTATIONS for line in changed_lines(file, old, new)}
    with watched(SOURCE) as watch, pytest.MonkeyPatch.context() as patch:
        for stem, constant in FEW:
            patch.setattr(sys.modules[f"kernels.{stem}"], constant, 2)
        for claims in CLAIMS:
            claims(kernels)
    needed = watch.needed | changed
    sites = list(masked_sites(SOURCE))
    spare = [
        f"{file}.py:{first}"
        for (file, first), last in sites
        if not any((file, line) in needed for line in range(first, last + 1))
    ]
    assert len(sites) > 50 and not spare, " ".join(spare)


@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=lambda n: f"{MUTATIONS[n][1]}-{n}")
def test_a_removed_term_is_noticed(tmp_path, number):
    name, *change = MUTATIONS[number]
    (claims,) = [c for c in CLAIMS if c.__name__ == name]
    # a write outside of a tensor is noticed only where it hits something: try other heaps
    tries = (outcome(claims, tmp_path, f"mutant{attempt}", *change) for attempt in range(4))
    assert any(result in ("fails", "crashes") for result in tries)
