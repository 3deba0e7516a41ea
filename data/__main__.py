"""`jixu corpus`: look at corpora, tidy them, find new words of a field, copy a workspace to and from S3."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from data import catalog, locks, publication, refresh, segmentation, sources
from data.errors import InputError, masked
from data.files import check_output
from data.segmentation import MIN_COHESION, MIN_COUNT, MIN_FREEDOM
from data.storage import RemoteFolder
from data.terminal import make_app, run_app
from data.workspace import Workspace, local_folder

corpus = make_app(
    "corpus", "Look at corpora, tidy them, find new words of a field, copy a workspace to and from S3."
)
_READING = sources.SourceRules()


@corpus.command(name="list")
def list_versions(*, workspace: str | None = None) -> None:
    """List the versions of every corpus, the newest first.

    Args:
        workspace: Folder or URL of the workspace.
    """
    columns = "corpus, version, documents, instances, tokens, strftime(created_at, '%Y-%m-%d %H:%M')"
    with (
        publication.working_copy(workspace, read_only=True) as copy,
        catalog.open_workspace(copy.root) as statistics,
    ):
        versions = statistics.versions().project(columns).fetchall()
    for name, version, documents, instances, tokens, created in versions:
        sizes = f"{documents:,} documents, {instances:,} instances, {tokens:,} tokens"
        print(f"{name} version {version}: {sizes}, {created}")


@corpus.command
def dropped(corpus: str, /, *, each: int = 3, workspace: str | None = None) -> None:
    """Show some of the documents that a corpus left out, by reason.

    Args:
        corpus: Name of the corpus.
        each: Largest number for each reason.
        workspace: Folder or URL of the workspace.
    """
    if each < 1:
        raise InputError(f"each={each}: it must be 1 or more")
    with (
        publication.working_copy(workspace, read_only=True) as copy,
        catalog.open_workspace(copy.root) as statistics,
    ):
        shown = statistics.dropped(corpus, each).fetchall()
    for place, _, reason, characters, beginning in shown:
        size = f", {characters:,} characters" if characters else ""
        text = f": {' '.join(beginning.split())}" if beginning else ""
        print(f"{reason}\t{masked(place)}{size}{text}")


@corpus.command
def gc(*, keep: int = 1, dry_run: bool = False, workspace: str | None = None) -> None:
    """Remove old versions, and files that no version uses.

    Args:
        keep: Newest versions of each corpus to keep.
        dry_run: Print what would be removed, and remove nothing.
        workspace: Folder or URL of the workspace.
    """
    with publication.working_copy(workspace, read_only=dry_run) as copy:
        gone = catalog.collect_garbage(copy, keep=keep, dry_run=dry_run)
    done = "would go" if dry_run else "gone"
    for corpus, version in gone.versions:
        print(f"{corpus} version {version} {done}")
    print(f"{len(gone.versions)} version(s), {len(gone.files)} file(s), {gone.bytes:,} bytes {done}")


@corpus.command
def remove(corpus: str, /, *, workspace: str | None = None) -> None:
    """Remove a corpus; models and reports made from it stay.

    Args:
        corpus: Name of the corpus.
        workspace: Folder or URL of the workspace.
    """
    with publication.working_copy(workspace) as copy:
        runs = catalog.remove_corpus(copy, corpus)
    print(f"{corpus} is gone" + (f"; models pretrained on it stay: {', '.join(runs)}" if runs else ""))


@corpus.command
def compact(*, corpus: str, workspace: str | None = None) -> None:
    """Merge a corpus's small shards.

    Args:
        corpus: Name of the corpus.
        workspace: Folder or URL of the workspace.
    """
    with publication.working_copy(workspace) as copy:
        version = catalog.compact(copy, corpus)
    print(f"{corpus} version {version.version}: the same, in fewer shards" if version else "nothing to merge")


@corpus.command
def words(
    *,
    corpus: str | None = None,
    source: tuple[str, ...] = (),
    reading: sources.SourceRules = _READING,
    dictionary: tuple[Path, ...] = (),
    output: Path = Path("words.txt"),
    min_count: int = MIN_COUNT,
    min_cohesion: float = MIN_COHESION,
    min_freedom: float = MIN_FREEDOM,
    limit: int = 1000,
    workspace: str | None = None,
) -> None:
    """Find new words of a field in a corpus or in raw text.

    Args:
        corpus: A corpus of the workspace.
        source: Or raw text: a file, folder, glob or URL (repeatable).
        reading: How raw text is read.
        dictionary: Words already known, in jieba's format (repeatable).
        output: The dictionary to write; a .tsv with counts and examples goes beside it.
        min_count: Least occurrences of a word.
        min_cohesion: Least cohesion of a word, in bits.
        min_freedom: Least entropy of the characters on either side of a word, in bits.
        limit: Maximum number of words to write.
        workspace: Folder or URL of the workspace.
    """
    if bool(corpus) == bool(source):
        raise InputError("give either --corpus or --source")
    if limit < 1:
        raise InputError(f"limit={limit}: it must be 1 or more")
    if output.suffix == ".tsv" or output.is_dir():
        raise InputError(f"--output {output}: name a .txt file; the table beside it ends in .tsv")
    check_output(output)
    left_out: Counter[str] = Counter()
    with ExitStack() as stack:
        if corpus:
            copy = stack.enter_context(publication.working_copy(workspace, read_only=True))
            texts = stack.enter_context(catalog.open_workspace(copy.root)).texts(corpus)
        else:
            loopback = reading.allow_loopback
            files = [uri for name in source for uri in sources.find_files(name, allow_loopback=loopback)]
            texts = (text for uri in files for text in refresh.read_sentences(uri, left_out, reading))
        new = segmentation.discover_words(
            texts,
            segmenter=segmentation.Segmenter(dictionary),
            min_count=min_count,
            min_cohesion=min_cohesion,
            min_freedom=min_freedom,
            limit=limit,
        )
    table = segmentation.write_dictionary(new, output)
    for word in new[:20]:
        print(f"{word.word}\t{word.count}\t{word.example}")
    if left_out:
        print(refresh.describe_reasons(left_out.most_common())[0])
    print(f"{len(new):,} words in {output}, with counts and examples in {table}")


@corpus.command
def pull(url: str, /, *, workspace: str | None = None) -> None:
    """Make a copy on this machine equal to the published workspace.

    Args:
        url: The published workspace, such as s3://bucket/workspace.
        workspace: Folder of the copy; by default the one that commands use.
    """
    copy = Workspace(local_folder(workspace or url))
    print(_describe(publication.pull(RemoteFolder(url), copy), copy))


@corpus.command
def push(url: str, /, *, workspace: str | None = None) -> None:
    """Publish a folder.

    Args:
        url: Where to publish it, such as s3://bucket/workspace.
        workspace: Folder to publish; by default the copy of this URL that commands work in.
    """
    copy, store = Workspace(local_folder(workspace or url)), RemoteFolder(url)
    if not catalog.has_catalog(copy) and not copy.tokenizers.is_dir():
        raise InputError(f"nothing to publish in {copy.root}: pass --workspace with the folder to publish")
    with locks.writer_lock(store):
        print(_describe(publication.publish(store, copy), copy))


@corpus.command
def unlock(url: str, /) -> None:
    """Allow writing again after a writer died on another machine.

    Args:
        url: The published workspace, such as s3://bucket/workspace.
    """
    store = RemoteFolder(url)
    locks.unlock(store)
    print(f"{store.url} can be written to")


def _describe(manifest: publication.Manifest, workspace: Workspace) -> str:
    size = sum(entry.size for entry in manifest.files.values())
    return (
        f"publication {manifest.number}: {len(manifest.files)} file(s), {size:,} bytes, in {workspace.root}"
    )


if __name__ == "__main__":
    sys.exit(run_app(corpus))
