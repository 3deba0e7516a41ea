"""Arguments of the commands: their names are the flows' parameters. Imports nothing slow."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from data.workspace import default_place


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _add_refresh(add: Callable) -> None:
    add("--corpus", help="name of the corpus in the workspace [the recipe's]")
    add(
        "--source",
        action="append",
        help="file, folder, glob or URL of raw text (repeatable) [the recipe's]",
    )
    add("--recipe", help="YAML file with these settings and more; what is given here goes before it")
    add(
        "--tokenizer",
        help="vocab.txt, spiece.model, folder, or name in the workspace [the corpus's, or the only one]",
    )
    add(
        "--objective",
        choices=["albert", "roberta", "macbert", "spanbert"],
        help="what is masked and how [albert: SOP and whole-word n-grams]",
    )
    add("--max-seq-length", type=int, help="tokens to an instance at most [128]")
    add("--sop", choices=["auto", "on", "off"], help="sentence order [auto: where documents have one]")
    add("--text-format", choices=["auto", "bert", "document"], help="of .txt files [auto]")
    add("--text-field", help="field or column with the text [text, content, 正文 or 内容]")
    add("--simplify", action="store_true", default=None, help="traditional to simplified characters")
    add(
        "--scrub",
        action="append",
        help="url, email, id_card, bank_card or phone: put a placeholder (repeatable)",
    )
    add("--min-characters", type=int, help="shorter documents are dropped [5]")
    add("--min-han-share", type=float, help="documents with less Chinese are dropped [0.3]")
    add(
        "--max-lost-documents",
        type=float,
        help="share of the current version's that the new one may lack; more is refused [0.5]",
    )
    add(
        "--max-unknown-share",
        type=float,
        help="share of [UNK] among the tokens; a version with more is refused [0.2]",
    )
    add("--blocklist", help="file of words; documents with more than two are dropped")
    add("--near-duplicates", help="likeness from which on a later document is dropped, or off [0.8]")
    add("--guard", action="append", help="evaluation set to keep out of the corpus (repeatable)")
    add("--guard-action", choices=["drop", "report"], help="for documents that hold text of one [drop]")
    add("--dictionary", action="append", help="words of the field in jieba's format (repeatable)")
    add("--mask-rate", type=float, help="share of tokens masked [0.15]")
    add("--max-ngram", type=int, help="words masked together at most by albert [3]")
    add("--copies", type=int, help="times each document is cut into instances anew [1]")
    add("--seed", type=int, help="[0]")
    add("--discover-words", type=int, metavar="N", help="list up to N new words of the corpus afterwards")
    add("--workers", type=int, help="processes [one a core]")
    add(
        "--then-pretrain-if",
        metavar="MEASURE>X",
        help="go on with pretraining from the corpus's newest checkpoint if drift, new_words, unknown, "
        "lengths or mlm_loss exceeds X",
    )
    add("--then-steps", type=int, default=1000, help="of that pretraining [%(default)s]")
    add(
        "--event-if",
        metavar="MEASURE>X",
        default="drift>0.3",
        help="tell Prefect's automations by an event jixu.corpus.drifted [%(default)s]",
    )
    add("--runner", choices=["processes", "dask"], default="processes", help="[%(default)s]")
    add("--dask-address", help="of the cluster's scheduler, such as tcp://10.0.0.1:8786")
    add(
        "--task-hours",
        type=float,
        default=12.0,
        metavar="N",
        help="a task that reads or builds and takes longer is taken for hung, and fails [%(default)s]",
    )
    add("--dry-run", action="store_true", help="say what would change, and change nothing")


def _add_pretraining(add: Callable) -> None:
    add("--corpus", required=True, help="name of a corpus of the workspace")
    add("--init", default="tiny", help="checkpoint, hf:REPO, or a preset for random weights [%(default)s]")
    add("--steps", type=int, default=1000, help="[%(default)s]")
    add("--batch-tokens", type=int, default=4096, help="tokens to a step [%(default)s]")
    add("--optimizer", default="adamw", choices=["adamw", "lamb"], help="[%(default)s]")
    add(
        "--learning-rate",
        type=float,
        help="peak rate [by the square-root rule; at 4096 tokens AdamW's is 3e-4 from random weights, else "
        "5e-5, LAMB's 7.8e-5]",
    )
    add(
        "--reference-batch-tokens",
        type=int,
        metavar="N",
        help="the batch --learning-rate is meant for; it is scaled from it [this one]",
    )
    add("--schedule", default="linear", choices=["linear", "polynomial", "wsd"], help="[%(default)s]")
    add(
        "--mix",
        action="append",
        default=[],
        metavar="NAME:SHARE",
        help="a second corpus and its share of the tokens, e.g. general:0.2 (repeatable)",
    )
    add("--then", metavar="NAME:SHARE", help="a corpus for the last steps, e.g. one of longer sequences")
    add(
        "--masking",
        default="dynamic",
        choices=["dynamic", "static"],
        help="new masks every epoch, or the stored ones",
    )
    add(
        "--mask-rates",
        type=_floats,
        metavar="FIRST,LAST",
        help="share of tokens masked, from the first step to the last, e.g. 0.3,0.15 [the corpus's]",
    )
    add("--sop-weight", type=float, default=1.0, help="of the sentence-order loss [%(default)s]")
    add("--precision", default="bf16", choices=["bf16", "fp32"], help="[%(default)s]")
    add(
        "--share",
        choices=["all", "attention", "ffn", "none"],
        help="give layers parameters of their own [as the start has it]",
    )
    add("--num-hidden-layers", type=int, help="more layers, tiled from the start's [as many]")
    add(
        "--activation-checkpointing",
        action="store_true",
        help="keep layers' inputs alone: less memory, a third more operations",
    )
    add("--accumulate", type=int, metavar="N", help="parts a step is computed in [one a process]")
    add("--processes", type=int, default=1, help="on this machine, one a GPU [%(default)s]")
    add("--patience", type=int, metavar="N", help="stop after N evaluations without a better one [never]")
    add(
        "--max-forgetting",
        type=float,
        metavar="NATS",
        help="a checkpoint is best only while the mixed corpora's held-out loss rose no more [no bound]",
    )
    add("--deterministic", action="store_true", help="refuse operations whose result varies on a GPU")
    add("--tensorboard", action="store_true", help="write event files too")
    add("--run", help="name of the run [from corpus, version, init and settings]")
    add(
        "--resume",
        default="auto",
        choices=["auto", "never"],
        help="go on from the run's last checkpoint [%(default)s]",
    )
    add("--seed", type=int, default=0, help="[%(default)s]")


def _add_fine_tune(add: Callable) -> None:
    add("--task", required=True, help="a task that comes with jixu, a YAML task file, or a name of yours")
    add("--train", help="training examples, as the task's publisher has them")
    add("--dev", required=True, help="chooses the best epoch")
    add("--test", help="scored once, at that epoch")
    add(
        "--model",
        action="append",
        required=True,
        help="checkpoint or hf:REPO (repeatable; compared with the first)",
    )
    add(
        "--names",
        type=lambda text: text.split(","),
        help="of the models in tables, by commas [their folders']",
    )
    add("--seeds", type=_integers, default=[0, 1, 2, 3, 4], help="separated by commas [0,1,2,3,4]")
    add("--epochs", type=int, default=3, help="[%(default)s]")
    add("--batch-size", type=int, default=32, help="examples to a step [%(default)s]")
    add("--learning-rate", type=float, default=1e-4, help="peak rate [%(default)s]")
    add(
        "--sweep",
        type=_floats,
        default=[],
        metavar="RATE,RATE",
        help="learning rates to choose from on dev with the first seed, in place of --learning-rate",
    )
    add("--max-seq-length", type=int, default=128, help="[%(default)s]")
    add(
        "--corpus",
        help="what models but the first were pretrained on: do they know it, does it hold dev or test",
    )
    add("--general", help="general corpus: what models forget of it")
    add("--workers", type=int, help="seeds at a time, in processes [as many as cores; one on a GPU]")
    add("--run", help="name of the report [from task, models and settings]")


def _add_tokenizer(add: Callable) -> None:
    add("--corpus", help="corpus of the workspace to learn from")
    add("--source", action="append", default=[], help="or raw text: file, folder or glob (repeatable)")
    add("--kind", default="wordpiece", choices=["wordpiece", "sentencepiece"], help="[%(default)s]")
    add("--vocab-size", type=int, default=21128, help="entries at most [%(default)s]")
    add("--name", help="name in the workspace [kind and size]")


def _add_end_to_end(add: Callable) -> None:
    add("--demo", action="store_true", help="on the samples that come with jixu; needs nothing else")
    add("--general", action="append", default=[], help="general raw text, for the base model (repeatable)")
    add("--domain", action="append", default=[], help="raw text of the field to go on with (repeatable)")
    add("--task", help="name or YAML file of the task that judges")
    add("--train", help="its training examples")
    add("--dev", help="its dev examples")
    add("--test", help="its test examples")
    add(
        "--init",
        default="tiny",
        help="preset, or a checkpoint folder in place of the base model [%(default)s]",
    )
    add("--tokenizer", help="vocabulary [trained on the two corpora, or the checkpoint's]")
    add("--vocab-size", type=int, default=21128, help="of a trained vocabulary [%(default)s]")
    add("--base-steps", type=int, default=1000, help="on the general corpus [%(default)s]")
    add("--steps", type=int, default=1000, help="on the domain corpus [%(default)s]")
    add("--batch-tokens", type=int, default=4096, help="[%(default)s]")
    add("--max-seq-length", type=int, default=128, help="[%(default)s]")
    add(
        "--pretraining-rate",
        type=float,
        help="peak rate of both pretrainings [from the batch size and the start]",
    )
    add("--copies", type=int, default=1, help="times each document is cut into instances anew [%(default)s]")
    add("--max-unknown-share", type=float, help="of [UNK] in a corpus; with more it is refused [0.2]")
    add("--seeds", type=_integers, default=[0, 1, 2], help="of fine-tuning [0,1,2]")
    add("--epochs", type=int, default=3, help="of fine-tuning [%(default)s]")
    add("--batch-size", type=int, default=32, help="of fine-tuning [%(default)s]")
    add("--learning-rate", type=float, default=1e-4, help="of fine-tuning [%(default)s]")
    add("--workers", type=int, help="processes [all cores]")


def _add_experiment(add: Callable) -> None:
    add(
        "--experiment",
        default="lcqmc",
        choices=["lcqmc", "law", "reviews"],
        help="ladder of recipes; the text of lcqmc is the task's own [%(default)s]",
    )
    add(
        "--general", action="append", required=True, help="general raw text, for the base models (repeatable)"
    )
    add("--domain", action="append", default=[], help="text of the field, for law and reviews (repeatable)")
    add("--task", help="name or YAML file of the task [the experiment's]")
    add("--train", required=True, help="training examples of the task")
    add("--dev", required=True, help="its dev examples")
    add("--test", required=True, help="its test examples")
    add("--tokenizer", help="vocab.txt; the flawed control needs BERT's [trained]")
    add(
        "--architectures",
        type=lambda text: text.split(","),
        default=["albert", "bert"],
        help="separated by commas [albert,bert]",
    )
    add(
        "--scale",
        type=float,
        default=1.0,
        help="of all sizes; 1 is 60 to 80 CPU minutes an architecture [1]",
    )
    add("--seeds", type=_integers, default=[0, 1, 2, 3, 4], help="of fine-tuning [0,1,2,3,4]")
    add("--workers", type=int, help="processes [all cores]")


COMMANDS: dict[str, tuple[str, Callable[[Callable], None]]] = {
    "refresh_corpus": (
        "Turn raw text into a new version of a corpus, or none if nothing changed.",
        _add_refresh,
    ),
    "continued_pretraining": (
        "Train on a corpus, from a checkpoint or random weights; resumes itself.",
        _add_pretraining,
    ),
    "fine_tune": (
        "Fine-tune models on a labelled task under the same seeds and compare them.",
        _add_fine_tune,
    ),
    "train_tokenizer": ("Learn a vocabulary from a corpus or raw text.", _add_tokenizer),
    "end_to_end": ("Raw text to evaluation report: all of it in one run.", _add_end_to_end),
    "lcqmc_experiment": (
        "Find out which part of a recipe of continued pretraining helps, and which hurts.",
        _add_experiment,
    ),
}


def make_parser(command: str) -> argparse.ArgumentParser:
    """The arguments of a flow; their names are the flow's parameters."""
    description, add_arguments = COMMANDS[command]
    parser = argparse.ArgumentParser(
        prog=f"jixu {command.replace('_', '-')}", description=description, allow_abbrev=False
    )
    add_arguments(parser.add_argument)
    parser.add_argument(
        "--workspace",
        default=default_place(),
        help="folder for everything made, or a URL such as s3://bucket/workspace [%(default)s]",
    )
    return parser
