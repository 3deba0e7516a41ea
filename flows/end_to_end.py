"""end-to-end: raw general and domain text and a labelled task -> did continued pretraining help?

A base model is pretrained on the general text (or given), pretraining continues on the domain text, and both
are fine-tuned on the task under the same seeds. One report shows it all. Neither corpus contains text of the
dev and test examples.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from albert import reports
from albert.checkpoints import find_source, names_checkpoint
from albert.pretraining import PretrainResult, read_settings
from albert.tasks import load_task, read_split
from data.cleaning import GuardRules, find_leak
from data.errors import InputError
from data.files import write_text
from data.options import values_of
from data.refresh import GateRules, InstanceRules
from data.sources import SourceSpec
from data.storage import is_remote
from data.tokenization import TOKENIZER_CONFIG
from flows.continued_pretraining import continued_pretraining
from flows.fine_tune import fine_tune
from flows.orchestration import (
    EndToEndOptions,
    ExperimentOptions,
    RefreshOptions,
    Reported,
    TextOptions,
    TokenizerOptions,
    call,
    describe_report,
    gather_facts,
    job,
    judging_options,
    publish_report,
    repeat_command,
    run_as_command,
    say,
    step,
)
from flows.refresh_corpus import describe as describe_refresh
from flows.refresh_corpus import refresh_corpus
from flows.train_tokenizer import train_tokenizer

report = step("report")
write_files = step("write-texts")
describe = describe_report


@job(describe, run_name="end to end on {task}")
def end_to_end(_: EndToEndOptions, options: EndToEndOptions) -> Reported:
    """Make the corpora general and domain anew, pretrain on each, compare before and after, report."""
    vocab = options.tokenizer or vocabulary(options)
    task, folder = str(options.task), options.place.experiments
    # without dev, it and test are parts of train
    files = guard_files("end-to-end", task, str(options.dev or options.train), options.test, folder)
    guard, base = replace(options.guard, files=(*options.guard.files, *files)), None
    if options.general:
        make_corpus("general", options.general, vocab, guard, options.text, options)
        base = pretrain("general", options.init, options.pretraining.base_steps, options)
    make_corpus("domain", options.domain, vocab, guard, options.text, options)
    start = str(base.checkpoint) if base else options.init
    continued = pretrain("domain", start, options.steps, options)
    models = (f"base model={start}", f"continued={continued.checkpoint}")
    judged = fine_tune(**values_of(judging_options(options, models)))
    return report(task, lambda: _report(options, base, continued, judged))


def guard_files(name: str, task: str, dev: str, test: str | None, folder: Path) -> list[str]:
    """Files for a guard with the text of dev and test, made in a folder under a name."""
    files = [
        write_files(f"{name}-{split}", partial(write_guard, task, path, folder / f"{name}-{split}.jsonl"))
        for split, path in (("dev", dev), ("test", test))
        if path
    ]
    return [file for file in files if file]


def write_guard(task: str, path: str, target: Path) -> str | None:
    """Write the texts of a task's file for a guard, an example a row, without labels and groups.

    Returns the file, or None if all texts are too short to be found in a corpus.
    """
    rows = read_texts(task, path)
    if not find_leak(rows, ()).texts:
        return None
    return write_rows(rows, target)


def write_rows(texts: Sequence[object], target: Path) -> str:
    """Write texts, or the texts of examples, one a row; returns the file."""
    write_text(target, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(target)


def read_texts(task: str, path: str) -> list[tuple[str, ...]]:
    """The texts of each example of a task's file."""
    _, found = read_split(Path(path), load_task(task), is_labelled=False)
    return [example.texts() for example in found.examples]


def make_corpus(
    name: str,
    sources: Sequence[str | SourceSpec],
    vocab: str,
    guard: GuardRules,
    text: TextOptions,
    options: EndToEndOptions | ExperimentOptions,
) -> None:
    """Refresh one of a run's corpora, and say at once what it holds and what was left out of it. Raises
    InputError if a single document is left.
    """
    given = RefreshOptions(
        corpus=name,
        source=tuple(sources),
        tokenizer=vocab,
        workspace=options.workspace,
        workers=options.workers,
        max_seq_length=text.max_seq_length,
        reading=options.reading,
        instances=InstanceRules(copies=text.copies),
        guard=guard,
        # the corpora are what is given now, whatever they were in another run
        gates=GateRules(max_lost_documents=1.0, max_unknown_share=text.max_unknown_share),
    )
    outcome = call(refresh_corpus, given)
    say(describe_refresh(outcome))
    if outcome.result.documents < 2:
        raise InputError(f"{name} has one document; some are held out and not trained on: give it more")


def pretrain(corpus: str, init: str, steps: int, options: EndToEndOptions) -> PretrainResult:
    """Pretrain on one of the run's corpora."""
    result = continued_pretraining(
        corpus=corpus,
        init=init,
        steps=steps,
        batch_tokens=options.pretraining.batch_tokens,
        learning_rate=options.pretraining.learning_rate,
        workspace=options.workspace,
    )
    return finished(result)


def finished(result: PretrainResult) -> PretrainResult:
    """The result of a whole pretraining; one that was stopped stops what follows it too."""
    if result.status == "interrupted":  # of a command: in a deployment's run it was cancelled, which raises
        raise KeyboardInterrupt
    return result


def vocabulary(options: EndToEndOptions) -> str:
    """The checkpoint's own vocabulary, or one learnt from all raw text, once in a workspace."""
    if names_checkpoint(options.init):
        return str(find_source(options.init).vocabulary)
    sources, size = (*options.general, *options.domain), options.text.vocab_size
    places = sorted(one if is_remote(one) else str(Path(one).resolve()) for one in sources)
    made_of = json.dumps([places, values_of(options.reading)])
    name = f"end-to-end-{size}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"
    # its last file: a killed run leaves a folder without it
    if not (options.place.tokenizers / name / TOKENIZER_CONFIG).is_file():
        given = TokenizerOptions(
            source=sources, vocab_size=size, name=name, workspace=options.workspace, reading=options.reading
        )
        call(train_tokenizer, given)
    return name


def _report(
    options: EndToEndOptions, base: PretrainResult | None, continued: PretrainResult, judged: Reported
) -> Reported:
    workspace, (result,) = options.place, judged.report.evaluations
    corpora = ["general", "domain"] if options.general else ["domain"]
    runs = [base, continued] if base else [continued]
    settings = {f"pretraining: {run.run_folder.name}": read_settings(run.run_folder) for run in runs}
    content = reports.build_report(
        title=f"Did continued pretraining help on {result.task}?",
        command=repeat_command(),
        corpora=gather_facts(workspace, corpora, continued.checkpoint),
        bases=runs[:-1],
        pretraining=continued,
        evaluations=[result],
        settings={**settings, **judged.report.settings},
        checksums=judged.report.checksums,
    )
    return publish_report(content, workspace.report(f"end-to-end-{result.task}"), judged.kept)


if __name__ == "__main__":
    run_as_command(__file__)
