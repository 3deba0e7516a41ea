"""What every test shares: Triton interpreted without a GPU, Prefect in a folder of its own, real text."""

import atexit
import gc
import os
import shutil
import tempfile

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many processes as cores are at work already

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of a kernel
os.environ.pop("PREFECT_API_URL", None)
os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="jixu-prefect-")
# the databases of tests/flows/serving.py have the types of blocks already
os.environ["PREFECT_API_BLOCKS_REGISTER_ON_START"] = "false"
os.environ["PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION"] = "false"
os.environ["XDG_STATE_HOME"] = os.path.join(os.environ["PREFECT_HOME"], "state")
os.environ["JIXU_WORKSPACE"] = os.path.join(os.environ["PREFECT_HOME"], "no-workspace")

import json
import signal
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from unittest.mock import patch

import hypothesis
import pytest
from safetensors.torch import load_file, save_file

from albert.checkpoints import save_pretrained
from albert.model import AlbertConfig, PretrainingModel
from data.cleaning import split_sentences
from data.tokenization import WordPieceTokenizer
from data.tokenization.wordpiece import SPECIAL_TOKENS
from tests.corpora import Corpus
from tests.workers import PRELOADED, PreloadedContext

# to look for garbage among all that is imported, as often as Python does, takes 7% of the tests' time
gc.set_threshold(100_000, 20, 20)
# no time limits: the machine may be busy; in CI the same examples every time
hypothesis.settings.register_profile("jixu", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("jixu")
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)

# a shell starts background jobs, and nohup its command, with these ignored, which processes inherit
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

SAMPLES = Path(str(resources.files("data.samples")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: the flows' tests wait for a fifth of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the flows, which take longest, and end with what is quick: a worker tests whole files."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: ("flows" not in item.path.parts, item.path not in slow))


@pytest.fixture(scope="session")
def samples() -> Path:
    return SAMPLES


@pytest.fixture(scope="session", autouse=True)
def preloaded_workers() -> Iterator[None]:
    """Pools of this process begin their workers by a fork of one that has imported what they need."""
    context = PreloadedContext()
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.workers.get_context", lambda method: context)
        yield


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Take back the variables that a command sets for its process; draw the same numbers after any tests."""
    torch.manual_seed(0)
    with patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One server for the tests that do not ask how a command starts its own, as a command is told of it."""
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    from tests.flows.serving import add_database, free_port

    folder = tmp_path_factory.mktemp("prefect")
    add_database(folder, "prefect-test.db")
    given = {"mkdtemp": lambda: str(folder), "_find_available_port": free_port}
    there = patch.multiple("prefect.testing.utilities", **given)
    # to end the heartbeats of a command's run Prefect sleeps up to a second
    no_heartbeats = patch("flows.orchestration.command.HEARTBEAT_SECONDS", None)
    with no_heartbeats, there, prefect_test_harness(server_startup_timeout=300):
        yield {"PREFECT_API_URL": PREFECT_API_URL.value(), "PREFECT_HOME": os.environ["PREFECT_HOME"]}


def sample_texts() -> list[str]:
    lines = (SAMPLES / "tea.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def sample_sentences() -> list[str]:
    return [sentence for text in sample_texts() for sentence in split_sentences(text)]


@pytest.fixture(scope="session")
def tokenizer() -> WordPieceTokenizer:
    """A vocabulary with every Han character of the samples, a few Latin pieces, and marks."""
    general = (SAMPLES / "general.txt").read_text(encoding="utf-8")
    characters = sorted(set("".join([*sample_texts(), general])) - set(" \n"))
    plain = "abcdefghijklmnopqrstuvwxyz0123456789"
    latin = [*plain, *(f"##{c}" for c in plain)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "model", "##ing", *latin, *'.,!?()%"']
    return WordPieceTokenizer(list(dict.fromkeys([*words, *characters])))


@pytest.fixture(scope="session")
def vocabulary_file(tokenizer: WordPieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test vocabulary as a vocab.txt."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer.save(folder)
    return folder / "vocab.txt"


@pytest.fixture
def tea(tmp_path: Path, vocabulary_file: Path) -> Corpus:
    """The corpus tea, to be made of what a test puts into its folder."""
    return Corpus.begin(tmp_path, vocabulary_file)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file into the test's folder, text in UTF-8; returns its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def small_model(tokenizer: WordPieceTokenizer, **changes: object) -> PretrainingModel:
    """A random model that trains in seconds."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": tokenizer.vocab_size,
        "embedding_size": 32,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    return PretrainingModel(AlbertConfig(**{**shape, **changes}))


def save_small_model(folder: Path, tokenizer: WordPieceTokenizer, **changes: object) -> Path:
    """Save a `small_model` with its tokenizer; returns the folder."""
    save_pretrained(small_model(tokenizer, **changes), tokenizer, folder)
    return folder


def change_json(path: Path, **changes: object) -> None:
    """Give fields of a file's JSON object other values."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def change_tensors(folder: Path, change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]) -> None:
    """Replace each tensor of a checkpoint by those that `change` makes of it and its name."""
    path = folder / "model.safetensors"
    changed = [change(name, tensor.clone()) for name, tensor in load_file(path).items()]
    save_file({name: one for some in changed for name, one in some.items()}, path, {"format": "pt"})


def few_texts(folder: Path, field: str = "text") -> tuple[Path, Path]:
    """A little general text and some documents of the domain sample, in a field of its rows, as files."""
    general, domain = folder / "general.txt", folder / "domain.jsonl"
    general.write_text((SAMPLES / general.name).read_text(encoding="utf-8")[:6000], encoding="utf-8")
    lines = (SAMPLES / "tea.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    domain.write_text("".join(lines[:12]).replace('"text"', f'"{field}"'), encoding="utf-8")
    return general, domain


def few_examples(folder: Path, train: int = 48, dev: int = 30, test: int = 30) -> dict[str, Path]:
    """So many examples of each split of the sample task, as a job's options; short texts take less time."""
    paths = {}
    for name, count in (("train", train), ("dev", dev), ("test", test)):
        rows = (SAMPLES / f"tea_topics_{name}.tsv").read_text(encoding="utf-8").splitlines()[: count + 1]
        pairs = [row.split("\t") for row in rows]
        paths[name] = folder / f"{name}.tsv"
        paths[name].write_text("".join(f"{text[:12]}\t{label}\n" for text, label in pairs), encoding="utf-8")
    return paths


def copied(path: Path) -> Path:
    """The same examples as another file: two parts of a task may not be one file."""
    return Path(shutil.copy(path, path.with_name(f"copy of {path.name}")))


def copy_tensorflow_checkpoint(name: str, folder: Path) -> Path:
    """A checkpoint that TensorFlow wrote, of up to 16 positions, with a vocabulary of its size beside it."""
    shutil.copytree(Path(__file__).parent / "albert" / "tensorflow" / name, folder)
    tokens = [*SPECIAL_TOKENS, *"的一茶是有在叶水，。、不时和要中上大人后热香色杯好坏"]
    (folder / "vocab_chinese.txt").write_text("\n".join(tokens[:31]) + "\n", encoding="utf-8")
    return folder


def put_into_hub_cache(cache: Path, checkpoint: Path, repository: str = "org/albert-tea") -> Path:
    """Copy a checkpoint's files to where huggingface_hub keeps what it downloaded; returns the folder."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    return Path(shutil.copytree(checkpoint, folder / "snapshots" / commit))
