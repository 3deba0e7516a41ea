"""refresh-corpus: raw text -> cleaned documents -> instance shards -> a new corpus version in the catalog."""

from flows.orchestration import run_if_main

run_if_main(__name__)

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from prefect import flow, runtime
from prefect.events import emit_event
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from data import refresh
from data.catalog import Drift, describe_drift, measure_drift, open_workspace, parse_condition
from data.refresh import (
    Changes,
    Plan,
    RefreshResult,
    RefreshSettings,
    Runner,
    describe_new,
    describe_standing,
)
from data.workspace import Workspace, default_place
from flows.orchestration import (
    BESIDE_REFRESH,
    cancelled_with_its_parts,
    check_runner,
    documented,
    ends_with_its_worker,
    find_checkpoint,
    in_working_copy,
    is_deployed,
    log,
    next_start,
    open_runner,
    publish_drift,
    publish_gates,
    publish_refresh,
    publish_words,
    refresh_settings,
    step,
)

if TYPE_CHECKING:
    from albert.pretraining import PretrainResult

find_drift = step("drift")


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    result: RefreshResult
    drift: Drift | None  # None: no new documents, or no older ones
    pretraining: "PretrainResult | None"


def run_name() -> str:
    """What a run is called: by its corpus, or by the recipe that names it."""
    given = runtime.flow_run.parameters
    return f"refresh {given.get('corpus') or Path(given.get('recipe') or 'nothing').stem}"


@flow(name="refresh-corpus", flow_run_name=run_name, task_runner=ThreadPoolTaskRunner(max_workers=128))
@documented
@ends_with_its_worker
@cancelled_with_its_parts
@in_working_copy
def refresh_corpus(
    corpus: Annotated[str | None, Field(description="Name of the corpus (语料名)")] = None,
    source: Annotated[
        list[str] | None, Field(description="Files, folders, globs or URLs of raw text (原始文本)")
    ] = None,
    recipe: Annotated[
        str | None, Field(description="YAML file with settings (配方); what is set here goes before it")
    ] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = default_place(),
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
    max_lost_documents: Annotated[
        float | None,
        Field(ge=0, le=1, description="A version that lost more of its documents is refused; 0.5 if empty"),
    ] = None,
    max_unknown_share: Annotated[
        float | None,
        Field(ge=0, le=1, description="A version with more [UNK] among its tokens is refused; 0.2 if empty"),
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
    then_pretrain_if: Annotated[
        str | None,
        Field(
            description="Such as drift>0.2: go on with pretraining if new documents are that far from older "
            "ones (漂移后继续预训练); of drift, new_words, unknown, lengths, mlm_loss"
        ),
    ] = None,
    then_steps: Annotated[int, Field(ge=1, description="Of that pretraining (步数)")] = 1000,
    event_if: Annotated[
        str, Field(description="When automations are told that new documents differ (漂移事件)")
    ] = "drift>0.3",
    runner: Annotated[
        Literal["processes", "dask"], Field(description="On this machine, or a Dask cluster (集群)")
    ] = "processes",
    dask_address: Annotated[
        str | None, Field(description="Of its scheduler, such as tcp://10.0.0.1:8786")
    ] = None,
    task_hours: Annotated[
        float,
        Field(
            gt=0,
            le=10_000,
            description="A task that reads or builds and takes longer is taken for hung (超时)",
        ),
    ] = 12.0,
    dry_run: Annotated[bool, Field(description="Only say what would change")] = False,
) -> RefreshOutcome | Changes:
    """Turn raw text into a new version of a corpus, or none if nothing changed."""
    settings = refresh_settings(
        **{name: value for name, value in locals().items() if name not in BESIDE_REFRESH}
    )
    planned = refresh.plan_refresh(settings)  # refuses what cannot work before anything is written
    check_runner(runner, dask_address, planned)
    following, telling = next_start(then_pretrain_if, settings), parse_condition(event_if)
    if dry_run:
        changes = refresh.preview(planned)
        log(describe(changes))
        return changes
    with open_runner(runner, settings.workers, dask_address, 3600 * task_hours) as tasks:
        result = run_refresh(planned, tasks)
    asked = {telling.measure, *([following[0].measure] if following else [])}
    has_older = result.is_new and result.version > 1
    drift = find_drift(result.corpus, lambda: _drift(settings, result, asked)) if has_older else None
    if drift and telling.holds(drift):
        tell_drift(Workspace(settings.workspace), result, drift)
    pretraining = None
    if following and drift and following[0].holds(drift):
        from flows.continued_pretraining import continued_pretraining

        pretraining = continued_pretraining(
            corpus=result.corpus, workspace=str(settings.workspace), init=following[1], steps=then_steps
        )
    outcome = RefreshOutcome(result, drift, pretraining)
    log(describe(outcome))
    return outcome


def run_refresh(plan: Plan, runner: Runner) -> RefreshResult:
    """Refresh by the runner's tasks, and publish the tables of the run."""
    # a deployment's run can wait for another refresh of the corpus; a command is refused at once
    result = refresh.refresh(plan.settings, runner, plan, on_wait=log if is_deployed() else None)
    publish_refresh(plan.settings.workspace, result)
    publish_gates(result, result.gates)
    if plan.settings.discover_words and result.is_new:
        publish_words(result, list(result.new_words))
    return result


def _drift(settings: RefreshSettings, result: RefreshResult, asked: Collection[str]) -> Drift | None:
    workspace = Workspace(settings.workspace)
    with open_workspace(workspace.root) as statistics:
        drift = measure_drift(statistics, result.corpus)
    checkpoint = find_checkpoint(workspace, result.corpus)
    if drift and checkpoint and "mlm_loss" in asked:
        # torch takes seconds to import
        from flows.orchestration import added_mlm_loss

        drift = replace(drift, mlm_loss=added_mlm_loss(workspace, result.corpus, checkpoint))
    if drift:
        publish_drift(result, drift)
    return drift


def tell_drift(workspace: Workspace, result: RefreshResult, drift: Drift) -> None:
    """Emit jixu.corpus.drifted, with what an automation needs to go on with pretraining."""
    checkpoint = find_checkpoint(workspace, result.corpus)
    emit_event(
        "jixu.corpus.drifted",
        resource={
            "prefect.resource.id": f"jixu.corpus.{result.corpus}",
            "prefect.resource.name": result.corpus,
            "jixu.has-checkpoint": "yes" if checkpoint else "no",
        },
        payload={
            "corpus": result.corpus,
            "version": result.version,
            # as it was given: a URL, where this is the copy of one
            "workspace": (runtime.flow_run.parameters or {}).get("workspace", str(workspace.root)),
            "checkpoint": str(checkpoint) if checkpoint else None,
            **asdict(drift),
            "drift": drift.drift,
        },
    )


def describe(outcome: RefreshOutcome | Changes) -> str:
    """What a person wants to know of the result."""
    if isinstance(outcome, Changes):
        return refresh.describe_changes(outcome)
    if not outcome.result.is_new:
        return describe_standing(outcome.result)
    lines = describe_new(outcome.result)
    if outcome.drift:
        lines.append(describe_drift(outcome.drift))
    if outcome.pretraining:
        lines.append(f"pretraining went on: {outcome.pretraining.checkpoint}")
    return "\n".join(lines)
