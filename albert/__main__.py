"""`jixu checkpoint`, `jixu report` and `jixu predict`: commands for checkpoints, reports and predictions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# these load torch, which takes seconds, at the first use of a name that needs it
from albert import checkpoints, evaluation, finetuning, model, reports, tasks
from data import segmentation
from data.cleaning import split_sentences
from data.errors import InputError
from data.files import check_output, write_text
from data.terminal import EXIT_DIFFERENT, make_app, run_app

checkpoint = make_app("checkpoint", "Convert, inspect and compare checkpoints; print what the presets cost.")
report = make_app("report", "Compare the reports of runs; print the schema of metrics.json.")
app = make_app("albert", "Checkpoints, reports and predictions.")
app.command(checkpoint)
app.command(report)
# a command's lines
checkpoint.result_action = lambda result: print("\n".join(result)) if isinstance(result, list) else result
checkpoint.command("albert.model:sizes_table", "sizes", help="Print the size and cost of each preset.")
checkpoint.command("albert.checkpoints:convert", help="Write a checkpoint that transformers opens.")
checkpoint.command(
    "albert.checkpoints:push", help="Upload a checkpoint or fine-tuned model to Hugging Face's Hub."
)

report.command(
    "albert.reports:compare_reports", "compare", help="Write one page and print tables that compare runs."
)


@checkpoint.command
def inspect(source: str, /, *, probe: str | None = None) -> None:
    """Print the config, the number of parameters, and where each tensor was loaded to.

    Args:
        source: Folder, weights file, TensorFlow prefix, or hf:REPO.
        probe: Text, or a text file, whose masked words the model predicts.
    """
    checkpoint = checkpoints.read_checkpoint(source)
    config, sizes = checkpoint.config, model.measure_sizes(checkpoint.config)
    print(f"{checkpoint.source.weights}: {checkpoint.weights_format}, {config.file_format} when written")
    print(
        f"{config.layout} layout, {config.norm}-LN, share {config.share}, {config.depth} layers, "
        f"H {config.hidden_size}, E {config.embedding_size}, {config.num_attention_heads} heads, "
        f"{config.hidden_act}, vocabulary {config.vocab_size:,}"
    )
    print(
        f"{sizes.total:,} parameters: embeddings {sizes.embeddings:,}, encoder {sizes.encoder:,}, "
        f"heads {sizes.heads:,}"
    )
    print(checkpoint.report.table())
    checkpoint.check()
    print("\n".join(checkpoint.report.notices()) or "the encoder and both heads are complete")
    if probe is not None and checkpoint.report.lacks("mlm."):
        print("not probed: no head predicts masked words")
    elif probe is not None:
        _probe(checkpoint, probe)


def _probe(checkpoint: checkpoints.LoadedCheckpoint, text: str) -> None:
    tokenizer = checkpoint.tokenizer()
    try:
        content = Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"--probe {text} is not UTF-8 text") from None
    except (OSError, ValueError):
        content = text  # no file's name
    segmenter = segmentation.Segmenter()
    sentences = [segmenter.split(sentence) for sentence in split_sentences(content)]
    result = evaluation.probe_sentences(checkpoint.build(), tokenizer, sentences)
    print(result.describe())
    if warning := result.warning():
        print(warning)


@checkpoint.command
def card(
    folder: Path,
    /,
    *,
    licence: str | None = None,
    source_licence: tuple[str, ...] = (),
    report: Path | None = None,
) -> None:
    """Write a model card, README.md, beside a checkpoint or a fine-tuned model, from the records of its run.

    Args:
        folder: Checkpoint of a run, or a fine-tuned model.
        licence: Licence of the model, as the Hub names it, such as apache-2.0.
        source_licence: CORPUS=LICENCE, the licence of a corpus's texts; may be repeated.
        report: Folder of the report; by default that of the run.
    """
    if broken := [given for given in source_licence if "=" not in given]:
        raise InputError(f"--source-licence {broken[0]!r}: write CORPUS=LICENCE")
    licences = dict(given.split("=", 1) for given in source_licence)
    card = reports.write_card(folder, report=report, licence=licence, source_licences=licences)
    print(f"wrote {card}")


@checkpoint.command
def diff(first: str, second: str, /) -> int:
    """Print where two checkpoints differ; the exit code is 1 if they do.

    Args:
        first: Folder, weights file, TensorFlow prefix, or hf:REPO.
        second: The other one.
    """
    read = checkpoints.read_checkpoint
    lines, summary = checkpoints.compare(read(first), read(second))
    print("\n".join([*lines, summary]))
    return EXIT_DIFFERENT if lines else 0


@checkpoint.command
def average(*folders: str, weight: float | None = None) -> None:
    """Write the mean of the parameters of checkpoints of one architecture.

    Args:
        folders: Two checkpoints or more, and last a folder that does not exist yet.
        weight: Share of the first checkpoint, the others divide the rest; by default all count alike.
    """
    *sources, target = folders or ("",)
    notices = checkpoints.average(sources, Path(target), weight=weight)
    print("\n".join([*notices, f"wrote {target}"]))


@report.command
def schema() -> None:
    """Print the JSON schema of metrics.json."""
    print(json.dumps(reports.report_schema(), indent=2))


@app.command
def predict(*, model: Path, input: Path, output: Path | None = None, task: str | None = None) -> None:
    """Write the labels and probabilities that a fine-tuned model predicts.

    Args:
        model: Folder of a model that fine-tune kept.
        input: Examples in a format of the model's task, or a .txt with a text a line; labels are not read.
        output: File to write: CLUE's submission if it ends in .json, else a table, with commas if it ends in
            .csv, else with tabs; by default the table is printed.
        task: Task or task file with the columns of the input; by default the model's own. For a model that
            Trainer saved, one with `answers: squad2` says that an answer may be missing.
    """
    if output is not None and output.is_dir():
        raise InputError(f"--output {output} is a folder: name a file")
    if output is not None and output.resolve() == input.resolve():
        raise InputError(f"--output {output} is the input: name another file")
    if output is not None:
        check_output(output)
    of_task = None if task is None else tasks.load_task(task)
    predicted = finetuning.predict_file(model, input, of_task)
    if output is None:
        print(predicted.table(), end="")
    else:
        table = predicted.table("," if output.suffix == ".csv" else "\t")
        write_text(output, predicted.submission() if output.suffix == ".json" else table)
        print(f"{len(predicted.examples):,} predictions in {output}")
    if predicted.cut:
        print(predicted.cut, file=sys.stderr)
    if predicted.skipped:
        count, first = len(predicted.skipped), predicted.skipped[0]
        print(f"{count} row(s) could not be read, first: {first}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_app(app))
