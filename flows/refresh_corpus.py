"""refresh-corpus: raw text -> cleaned documents -> instance shards -> a new corpus version in the catalog."""

from flows.cli import run_if_main

run_if_main(__name__)

from pathlib import Path
from typing import Annotated, Literal

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from data import refresh
from data.refresh import RefreshResult
from data.workspace import Workspace
from flows.artifacts import publish_refresh
from flows.settings import refresh_settings
from flows.steps import step

read_source = step("read-source", retries=1)
build_shard = step("build-shard", retries=1)
divide = step("divide")
commit = step("commit")


@flow(
    name="refresh-corpus", flow_run_name="refresh {corpus}", task_runner=ThreadPoolTaskRunner(max_workers=32)
)
def refresh_corpus(
    corpus: Annotated[str, Field(description="Name of the corpus in the workspace (语料名)")],
    source: Annotated[list[str], Field(description="Files, folders or globs of raw text (原始文本)")],
    workspace: Annotated[str, Field(description="Folder for everything made")] = "workspace",
    tokenizer: Annotated[
        str | None, Field(description="vocab.txt, spiece.model, or a name in the workspace")
    ] = None,
    objective: Literal["albert"] = "albert",
    max_seq_length: Annotated[int, Field(ge=16, le=512, description="Tokens to an instance at most")] = 128,
    sop: Annotated[
        Literal["auto", "on", "off"], Field(description="Sentence-order prediction (句序预测)")
    ] = "auto",
    text_format: Literal["auto", "bert", "document"] = "auto",
    text_field: Annotated[str | None, Field(description="Field or column with the text")] = None,
    min_characters: Annotated[int, Field(ge=1)] = 5,
    min_han_share: Annotated[float, Field(ge=0, le=1)] = 0.3,
    mask_rate: Annotated[float, Field(ge=0.01, le=0.8)] = 0.15,
    max_ngram: Annotated[int, Field(ge=1, le=10)] = 3,
    copies: Annotated[int, Field(ge=1, le=100)] = 1,
    seed: int = 0,
    workers: Annotated[int | None, Field(ge=1, description="Processes; all cores if empty")] = None,
) -> RefreshResult:
    """Turn raw text into a new version of a corpus, or none if nothing changed."""
    settings = refresh_settings(**locals())
    refresh.plan(settings)  # refuses what cannot work before anything is written
    place = Workspace(settings.workspace)
    with refresh.locked(place, corpus), refresh.worker_pool(settings.workers) as pool:
        plan = refresh.plan(settings)  # as things stand now that no other refresh changes them
        reading = [
            read_source.submit(path.name, lambda path=path: pool.submit(refresh.read, path, plan).result())
            for path in plan.files
        ]
        sources = [future.result() for future in reading]
        division = divide(corpus, lambda: refresh.divide(plan, sources))
        building = [
            build_shard.submit(
                f"{corpus} {piece.number + 1}/{len(division.assignment.pieces)}",
                lambda piece=piece: pool.submit(refresh.build, piece, plan, division.sop).result(),
            )
            for piece in division.assignment.pieces
        ]
        shards = [future.result() for future in building]
        result = commit(corpus, lambda: refresh.commit(plan, sources, division, shards))
    publish_refresh(Path(workspace), result)
    return result


def describe(result: RefreshResult) -> str:
    """What a person wants to know of the result."""
    what = f"{result.corpus} version {result.version}"
    counts = f"{result.documents:,} documents, {result.instances:,} instances, {result.tokens:,} tokens"
    order = "on" if result.sop else "off (the documents have no sentence order)"
    if not result.is_new:
        return f"nothing changed: {what} stands ({counts})"
    return (
        f"{what}: {counts}\n{result.new_shards} shard(s) written, {result.kept_shards} kept, "
        f"{result.removed_documents:,} document(s) gone; sentence-order prediction {order}"
    )
