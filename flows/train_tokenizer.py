"""train-tokenizer: a corpus or raw text -> a vocabulary in the workspace, ready for refresh-corpus."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from data.catalog import Version, open_workspace
from data.errors import InputError
from data.files import TEMPORARY_SUFFIX
from data.refresh import describe_reasons, read_sentences
from data.tokenization import Tokenizer, find_tokenizer, load_tokenizer
from data.tokenization import train_tokenizer as learn
from flows.orchestration import TokenizerOptions, begin_progress, job, run_as_command, say, step

learn_vocabulary = step("learn-vocabulary")
describe = str  # the outcome is a line


@job(describe, run_name="train {kind} tokenizer")
def train_tokenizer(options: TokenizerOptions, sources: list[str] | Version) -> str:
    """Learn a vocabulary from cleaned sentences; returns a line about it."""
    name = options.name or f"{options.kind}-{options.vocab_size}"
    folder = options.place.tokenizers / name
    move = begin_progress(name, "share of the text read; learning follows")
    sentences = iterate_sentences(sources, options, move)
    tokenizer = learn_vocabulary(
        name, lambda: learn(sentences, kind=options.kind, vocab_size=options.vocab_size, on_notice=say)
    )
    refuse_another(folder, tokenizer)
    tokenizer.save(folder)
    return f"{options.kind} vocabulary of {tokenizer.vocab_size:,} entries in {folder}"


def refuse_another(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise InputError if a folder holds a different vocabulary: corpora may have been made with it."""
    if all(path.suffix == TEMPORARY_SUFFIX for path in folder.glob("*")):  # none, or a killed writer's
        return
    if tokenizer.vocabulary != load_tokenizer(find_tokenizer(str(folder))).vocabulary:
        raise InputError(
            f"{folder} holds another vocabulary, which corpora may have been made with: pass another --name"
        )


def iterate_sentences(
    sources: list[str] | Version, options: TokenizerOptions, move: Callable[[float], None]
) -> Iterator[str]:
    """Cleaned sentences of raw files or of a corpus's current version; `move` gets the share read."""
    if isinstance(sources, list):
        left_out: Counter[str] = Counter()
        for number, path in enumerate(sources, 1):
            yield from read_sentences(path, left_out, options.reading)
            move(number / len(sources))
        if left_out:
            say("\n".join(describe_reasons(left_out.most_common())))
        return
    with open_workspace(options.workspace) as statistics:
        for number, text in enumerate(statistics.texts(sources.corpus), 1):
            yield from text.split("\n")
            move(number / sources.documents)


if __name__ == "__main__":
    run_as_command(__file__)
