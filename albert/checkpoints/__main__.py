"""python -m albert.checkpoints: convert a checkpoint, see what is in one, or compare two."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from albert.checkpoints.comparing import compare
from albert.checkpoints.converting import convert
from albert.checkpoints.loading import LoadedCheckpoint, read_checkpoint
from albert.config import ConfigError, measure_sizes
from albert.probe import probe_sentences
from data.records import InputError
from data.sentences import split_sentences
from data.tokenization import find_tokenizer, load_tokenizer

EXIT_DIFFERENT, EXIT_USER_ERROR = 1, 2
_SOURCE = "folder, weights file, TensorFlow prefix, or hf:REPO"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (InputError, ConfigError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m albert.checkpoints", description=__doc__.split(": ")[1])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("convert", help="write a checkpoint that transformers opens")
    one.add_argument("source", metavar="SRC", help=_SOURCE)
    one.add_argument("target", metavar="DST", type=Path, help="a folder that is not there yet")
    one.add_argument(
        "--format", default="transformers", choices=["transformers", "jixu"], help="[%(default)s]"
    )
    one.add_argument("--tokenizer", help="vocab.txt, spiece.model or folder [beside the checkpoint]")
    one.add_argument("--terms", type=Path, help="file of domain terms, one a line, to be tokens of their own")
    one.add_argument("--share", choices=["all", "attention", "ffn", "none"], help="unshare layers")
    one.add_argument("--num-hidden-layers", type=int, help="more layers, tiled from the checkpoint's")
    one.set_defaults(run=_convert)
    one = commands.add_parser("inspect", help="config, parameters, and what became of every tensor")
    one.add_argument("source", metavar="SRC", help=_SOURCE)
    one.add_argument("--probe", metavar="TEXT", help="text or file: how well its masked words are predicted")
    one.set_defaults(run=_inspect)
    one = commands.add_parser("diff", help="where two checkpoints differ (exit code 1 if they do)")
    one.add_argument("first", metavar="A", help=_SOURCE)
    one.add_argument("second", metavar="B", help=_SOURCE)
    one.set_defaults(run=_diff)
    return parser


def _convert(options: argparse.Namespace) -> int:
    result = convert(
        options.source,
        options.target,
        for_transformers=options.format == "transformers",
        tokenizer=options.tokenizer,
        terms=options.terms,
        share=options.share,
        num_hidden_layers=options.num_hidden_layers,
    )
    print("\n".join([*result.report.notices(), *result.notes, f"wrote {options.target}"]))
    return 0


def _inspect(options: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(options.source)
    config, sizes = checkpoint.config, measure_sizes(checkpoint.config)
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
    print("\n".join(checkpoint.report.notices()) or "the encoder and both heads are wholly there")
    if options.probe is not None:
        _probe(checkpoint, options.probe)
    return 0


def _probe(checkpoint: LoadedCheckpoint, text: str) -> None:
    # jieba is needed for this alone
    from data.segmentation import Segmenter

    tokenizer = load_tokenizer(find_tokenizer(str(checkpoint.source.folder)))
    try:
        content = Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"--probe {text} is not UTF-8 text") from None
    except (OSError, ValueError):
        content = text  # no file's name
    segmenter = Segmenter()
    sentences = [segmenter.split(sentence) for sentence in split_sentences(content)]
    result = probe_sentences(checkpoint.build(), tokenizer, sentences)
    print(result.describe())
    if warning := result.warning():
        print(warning)


def _diff(options: argparse.Namespace) -> int:
    difference = compare(read_checkpoint(options.first), read_checkpoint(options.second))
    print("\n".join(difference.lines()))
    return EXIT_DIFFERENT if difference.is_any else 0


if __name__ == "__main__":
    sys.exit(main())
