"""SentencePiece's unigram vocabulary (`spiece.model`, Kudo 2018), which English ALBERT uses."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from data.errors import InputError
from data.files import write_bytes, write_json, write_text
from data.tokenization.wordpiece import SPECIAL_ROLES

SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_SPACE = "\u2581"  # how SentencePiece writes the space before a word


class UnigramTokenizer:
    """Encodes text by a SentencePiece model. Control symbols in a text are text."""

    kind = "sentencepiece"
    separators = 1  # between the texts of a pair

    def __init__(
        self, model: bytes, *, lower_case: bool = True, keep_accents: bool = True, source: str = "the model"
    ):
        """`model` is a serialised SentencePiece model. Raises InputError if ALBERT cannot use it.

        The published English models were trained without accents (`keep_accents=False`): text is decomposed
        (NFKD) and loses its combining marks, which also makes Chinese punctuation ASCII.
        """
        self.model = model
        self.lower_case, self.keep_accents = lower_case, keep_accents
        self.rules = (lower_case, keep_accents)  # how a text becomes pieces
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
        except (RuntimeError, OSError):
            raise InputError(f"{source} is not a SentencePiece model") from None
        self.vocab_size = self._processor.get_piece_size()
        self.vocabulary: list[str] = self._processor.id_to_piece(list(range(self.vocab_size)))
        self.is_continuation = np.zeros(self.vocab_size, dtype=bool)  # [V], WordPiece's alone
        # the unknown piece may have any name
        if missing := [name for name in SPECIAL_TOKENS if name not in (*self.vocabulary, "<unk>")]:
            raise InputError(
                f"no {', '.join(missing)} in {source} ({self.vocab_size:,} entries): masked-language-model "
                f"training needs {', '.join(SPECIAL_TOKENS)}; train one with jixu train-tokenizer"
            )
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = (
            self._processor.piece_to_id(name) for name in SPECIAL_TOKENS
        )

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text without special tokens; return ids and the characters they start at, [n] int64."""
        ids: list[int] = []
        starts: list[int] = []
        begin = 0
        for line in text.split("\n"):
            plain, origin = self._normalise(line)
            encoded = self._processor.encode(plain, return_type="offset_mapping")
            for number, (first, end) in zip(encoded["ids"], encoded["offsets"], strict=True):
                # the space before a word belongs to none: a token starts at its letters
                letters = plain[first:end]
                at = min(first + len(letters) - len(letters.lstrip()), len(plain) - 1)
                ids.append(number)
                starts.append(begin + origin[at])
            begin += len(line) + 1
        return np.array(ids, dtype=np.int64), np.array(starts, dtype=np.int64)

    def _normalise(self, line: str) -> tuple[str, Sequence[int]]:
        """Normalise a line as ALBERT's tokenizer does; return also the original place of each character."""
        # a tab or an ideographic space is in no vocabulary
        quoted = re.sub(r"\s", " ", line).replace("``", '"\0').replace("''", '"\0')
        if self.keep_accents and "\0" not in quoted:
            lowered = quoted.lower() if self.lower_case else quoted
            if len(lowered) == len(line):
                return lowered, range(len(line))
        characters: list[str] = []
        origin: list[int] = []
        for at, character in enumerate(quoted):
            if character == "\0":
                continue
            part = character
            if not self.keep_accents:
                decomposed = unicodedata.normalize("NFKD", part)
                part = "".join(c for c in decomposed if not unicodedata.combining(c))
            part = part.lower() if self.lower_case else part
            characters.append(part)
            origin += [at] * len(part)
        return "".join(characters), origin

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to readable text."""
        return "".join(self.vocabulary[number] for number in ids).replace(_SPACE, " ").strip()

    def replacement_ids(self) -> np.ndarray:
        """List the ids for random replacements of masked tokens: no control, unknown or unused piece."""
        reserved = (self._processor.is_control, self._processor.is_unknown, self._processor.is_unused)
        return np.array([i for i in range(self.vocab_size) if not any(test(i) for test in reserved)])

    def save(self, folder: Path) -> None:
        """Write spiece.model, and for transformers tokenizer.json and tokenizer_config.json."""
        write_bytes(folder / "spiece.model", self.model)
        write_text(folder / "tokenizer.json", self._library().to_str(pretty=True))
        config = {
            # AlbertTokenizer of transformers 5.0 to 5.18 misreads a model without rules of normalisation
            "tokenizer_class": "PreTrainedTokenizerFast",
            "do_lower_case": self.lower_case,
            "keep_accents": self.keep_accents,
            **dict(zip(SPECIAL_ROLES, SPECIAL_TOKENS, strict=True)),
        }
        write_json(folder / "tokenizer_config.json", config)

    def _library(self) -> tokenizers.Tokenizer:
        """Make a tokenizer that gives the same ids, and takes special tokens in a text for such."""
        model = model_class().FromString(self.model)
        pieces = [(piece.piece, piece.score) for piece in model.pieces]
        library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=self.unknown_id))
        rules: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not self.keep_accents:
            rules += [normalizers.NFKD(), normalizers.StripAccents()]
        if self.lower_case:
            rules.append(normalizers.Lowercase())
        if charsmap := model.normalizer_spec.precompiled_charsmap:
            rules.append(normalizers.Precompiled(charsmap))
        spaces = [normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Strip()]
        library.normalizer = normalizers.Sequence([*rules, *spaces])
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        library.decoder = decoders.Metaspace()
        library.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", self.cls_id), ("[SEP]", self.sep_id)],
        )
        library.add_special_tokens(list(SPECIAL_TOKENS))
        return library


def model_class() -> Any:
    """The class of a serialised model, whose import, with protobuf's, takes longer than all else here."""
    from sentencepiece import sentencepiece_model_pb2

    made: Any = sentencepiece_model_pb2  # as it is imported
    return made.ModelProto


def train_unigram(texts: Iterable[str], vocab_size: int) -> UnigramTokenizer:
    """Train a SentencePiece unigram model of at most `vocab_size` pieces on texts (one sentence each)."""
    sentencepiece.set_random_generator_seed(0)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text.lower() for text in texts),  # as the tokenizer reads them
            model_writer=model,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=0.9998,
            input_sentence_size=2_000_000,
            max_sentence_length=16_384,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=SPECIAL_TOKENS[0],
            unk_piece=SPECIAL_TOKENS[1],
            control_symbols=list(SPECIAL_TOKENS[2:]),
            # the text is clean, and SentencePiece's NFKC would make Chinese punctuation ASCII
            normalization_rule_name="identity",
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(
            f"no vocabulary of {vocab_size:,} pieces can be trained on this text: {error}"
        ) from None
    return UnigramTokenizer(model.getvalue())
