from dataclasses import replace
from pathlib import Path

import pytest

from albert.reports import Report, build_report, write_report
from data.tokenization import WordPieceTokenizer
from tests.albert.report_samples import AUDITS, BASE, BETTER, CORPUS, EVENTS, comparison, model, pretraining
from tests.conftest import save_small_model
from tests.corpora import make_corpus


@pytest.fixture(scope="session")
def sample_shards(
    tmp_path_factory: pytest.TempPathFactory, samples: Path, vocabulary_file: Path
) -> tuple[Path, ...]:
    """Shards of both samples in one corpus."""
    texts = samples / "tea.jsonl", samples / "general.txt"
    return make_corpus(tmp_path_factory.mktemp("samples"), "c", texts, vocabulary_file)


@pytest.fixture(scope="session")
def tea_shards(
    tmp_path_factory: pytest.TempPathFactory, samples: Path, vocabulary_file: Path
) -> tuple[Path, ...]:
    """Shards of the domain sample alone."""
    return make_corpus(tmp_path_factory.mktemp("tea"), "tea", samples / "tea.jsonl", vocabulary_file)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: WordPieceTokenizer) -> Path:
    """A checkpoint of a model that is fine-tuned in seconds."""
    return save_small_model(tmp_path_factory.mktemp("model") / "small", tokenizer)


@pytest.fixture(scope="session")
def whole_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of everything."""
    folder = tmp_path_factory.mktemp("report")
    long_named = model("general-v1-tiny-df359d8f-茶叶-v2-aa7871e8/checkpoint-2000", [0.70, 0.72, 0.71])
    trained = replace(pretraining(folder, "general"), audits=AUDITS, events=EVENTS)
    return build_report(
        title="Did it help?",
        command="jixu end-to-end --demo",
        corpora=[CORPUS],
        bases=[pretraining(folder)],
        pretraining=trained,
        evaluations=[comparison(BASE, long_named, BETTER)],
        settings={"fine-tuning": {"epochs": 3}},
        checksums={"train.tsv": "cd" * 32},
    )


@pytest.fixture(scope="session")
def page(whole_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file."""
    return write_report(whole_report, tmp_path_factory.mktemp("reports") / "r")
