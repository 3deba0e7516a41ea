"""refresh-corpus: raw text -> cleaned documents -> instance shards -> a new corpus version in the catalog."""

from flows.cli import run_if_main

run_if_main(__name__)

from typing import Annotated, Literal

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from data import planning, refresh
from data.planning import Changes
from data.refresh import RefreshResult
from data.workspace import Workspace, default_workspace
from flows.artifacts import publish_refresh, publish_words
from flows.forms import documented
from flows.settings import refresh_settings
from flows.steps import step

read_source = step("read-source", retries=1)
build_shard = step("build-shard", retries=1)
divide = step("divide")
find_similar = step("similar-words")
commit = step("commit")
find_words = step("discover-words")


@flow(
    name="refresh-corpus", flow_run_name="refresh {corpus}", task_runner=ThreadPoolTaskRunner(max_workers=32)
)
@documented
def refresh_corpus(
    corpus: Annotated[str | None, Field(description="Name of the corpus (语料名)")] = None,
    source: Annotated[
        list[str] | None, Field(description="Files, folders, globs or URLs of raw text (原始文本)")
    ] = None,
    recipe: Annotated[
        str | None, Field(description="YAML file with settings (配方); what is set here goes before it")
    ] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = str(
        default_workspace()
    ),
    tokenizer: Annotated[
        str | None, Field(description="vocab.txt, spiece.model, or a name in the workspace")
    ] = None,
    objective: Annotated[
        Literal["albert", "roberta", "macbert", "spanbert"] | None,
        Field(description="What is masked and how; albert if empty"),
    ] = None,
    max_seq_length: Annotated[
        int | None, Field(ge=16, le=512, description="Tokens to an instance at most; 128 if empty")
    ] = None,
    sop: Annotated[
        Literal["auto", "on", "off"] | None, Field(description="Sentence-order prediction (句序预测)")
    ] = None,
    text_format: Annotated[
        Literal["auto", "bert", "document"] | None,
        Field(description="Of .txt files: bert has a sentence a line and empty lines between documents"),
    ] = None,
    text_field: Annotated[str | None, Field(description="Field or column with the text")] = None,
    simplify: Annotated[bool | None, Field(description="Traditional to simplified (繁体转简体)")] = None,
    scrub: Annotated[
        list[Literal["url", "email", "id_card", "bank_card", "phone"]] | None,
        Field(description="Personal data to put placeholders for (脱敏)"),
    ] = None,
    min_characters: Annotated[
        int | None, Field(ge=1, description="Shorter documents are dropped (最短字数); 5 if empty")
    ] = None,
    min_han_share: Annotated[
        float | None,
        Field(ge=0, le=1, description="Documents with less Chinese are dropped (汉字占比); 0.3 if empty"),
    ] = None,
    blocklist: Annotated[str | None, Field(description="File of words (屏蔽词)")] = None,
    near_duplicates: Annotated[
        str | None, Field(description="Likeness from which on a later document is dropped (近似去重), or off")
    ] = None,
    guard: Annotated[
        list[str] | None, Field(description="Evaluation sets to keep out of the corpus (评测集防泄漏)")
    ] = None,
    guard_action: Annotated[
        Literal["drop", "report"] | None,
        Field(description="For documents that hold text of one; drop if empty"),
    ] = None,
    dictionary: Annotated[list[str] | None, Field(description="Words of the field (用户词典)")] = None,
    mask_rate: Annotated[
        float | None, Field(ge=0.01, le=0.8, description="Share of tokens masked (遮盖比例); 0.15 if empty")
    ] = None,
    max_ngram: Annotated[
        int | None, Field(ge=1, le=10, description="Words masked together at most; 3 if empty")
    ] = None,
    copies: Annotated[
        int | None, Field(ge=1, le=100, description="Times a document is cut into instances; 1 if empty")
    ] = None,
    seed: Annotated[
        int | None, Field(ge=0, le=2**31, description="Of all that is random; 0 if empty")
    ] = None,
    discover_words: Annotated[
        int | None, Field(ge=0, description="New words to list after a new version (新词发现)")
    ] = None,
    workers: Annotated[int | None, Field(ge=1, description="Processes; all cores if empty")] = None,
    dry_run: Annotated[bool, Field(description="Only say what would change")] = False,
) -> RefreshResult | Changes:
    """Turn raw text into a new version of a corpus, or none if nothing changed."""
    settings = refresh_settings(**{name: value for name, value in locals().items() if name != "dry_run"})
    planned = planning.plan(settings)  # refuses what cannot work before anything is written
    if dry_run:
        return planning.preview(planned)
    place, name = Workspace(settings.workspace), settings.corpus
    with refresh.locked(place, name), refresh.worker_pool(settings.workers) as pool:
        plan = planning.plan(settings)  # as things stand now that no other refresh changes them
        reading = [
            read_source.submit(task[0].name, lambda task=task: pool.submit(refresh.read, *task).result())
            for task in planning.reading_tasks(plan)
        ]
        sources = [future.result() for future in reading]
        division = divide(name, lambda: refresh.divide(plan, sources))
        similar = find_similar(name, lambda: refresh.find_similar(plan, division))
        pieces, small = division.assignment.pieces, planning.building_plan(plan)
        building = [
            build_shard.submit(
                f"{name} {piece.number + 1}/{len(pieces)}",
                lambda piece=piece: pool.submit(refresh.build, piece, small, division.sop, similar).result(),
            )
            for piece in pieces
        ]
        shards = [future.result() for future in building]
        result = commit(name, lambda: refresh.commit(plan, sources, division, shards, similar))
    publish_refresh(settings.workspace, result)
    if settings.discover_words and result.is_new:
        words = find_words(name, lambda: refresh.discover(plan, result))
        publish_words(result, words)
    return result


def describe(result: RefreshResult | Changes) -> str:
    """What a person wants to know of the result."""
    if isinstance(result, Changes):
        return planning.describe_changes(result)
    what = f"{result.corpus} version {result.version}"
    counts = f"{result.documents:,} documents, {result.instances:,} instances, {result.tokens:,} tokens"
    order = "on" if result.sop else f"off ({result.sop_reason})"
    if not result.is_new:
        return f"nothing changed: {what} stands ({counts})"
    return (
        f"{what}: {counts}\n{result.new_shards} shard(s) written, {result.kept_shards} kept, "
        f"{result.removed_documents:,} document(s) gone; sentence-order prediction {order}"
    )
