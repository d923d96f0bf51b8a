"""Build the tokenizer that a GGUF file describes, and its settings in the words of tokenizer_config.json.

`tokenizer.ggml.pre` names how text is split before merging. A wrong split gives other ids and a subtly worse model,
so an unknown name is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import TemplateProcessing

from bireme_worker.checkpoints.errors import CorruptFile, UnsupportedCheckpoint
from bireme_worker.checkpoints.gguf_file import GGUFFile


class TokenType(IntEnum):
    """The two values of tokenizer.ggml.token_type that stand outside the merges."""

    CONTROL = 3
    USER_DEFINED = 4


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """How one family splits text. ``whole_words``: a word that is in the vocabulary is not merged from parts."""

    splitter: PreTokenizer
    whole_words: bool = False
    adds_bos: bool = False


# The published pattern of Llama 3: contractions, words, up to three digits, punctuation, line ends, spaces.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = PreTokenization(ByteLevel(add_prefix_space=False))
_SINGLE_DIGITS = PreTokenization(Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]))
_LLAMA3 = PreTokenization(
    Sequence([Split(Regex(LLAMA3_PATTERN), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]),
    whole_words=True,
    adds_bos=True,
)
PRE_TOKENIZATIONS: Mapping[str, PreTokenization] = {
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def gguf_tokenizer(file: GGUFFile) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer and a dict like tokenizer_config.json (special tokens, chat template).

    Raises:
        UnsupportedCheckpoint: another tokenizer model than gpt2, or an unknown pre-tokenization.
    """
    model = file.get("tokenizer.ggml.model", "")
    if model != "gpt2":
        raise UnsupportedCheckpoint(
            f"{file.path}: tokenizer model {model!r} is not supported, only gpt2 (byte-level BPE): "
            "use the Hugging Face directory of this model"
        )
    tokens = file.need("tokenizer.ggml.tokens", list)
    pre = _pre_tokenization(file)
    tokenizer = Tokenizer(_bpe(file, tokens, pre))
    tokenizer.pre_tokenizer = pre.splitter
    tokenizer.decoder = ByteLevelDecoder()
    _add_tokens(tokenizer, tokens, file.get("tokenizer.ggml.token_type", []))
    settings = _settings(file, tokens)
    _add_template(tokenizer, file, settings, adds_bos=pre.adds_bos)
    return tokenizer, settings


def _pre_tokenization(file: GGUFFile) -> PreTokenization:
    name = file.get("tokenizer.ggml.pre", "")
    if name not in PRE_TOKENIZATIONS:
        known = ", ".join(PRE_TOKENIZATIONS)
        raise UnsupportedCheckpoint(f"{file.path}: pre-tokenization {name!r} is not supported, only {known}")
    return PRE_TOKENIZATIONS[name]


def _bpe(file: GGUFFile, tokens: list[str], pre: PreTokenization) -> BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise CorruptFile(f"{file.path} has {len(tokens) - len(vocabulary)} tokens twice in its vocabulary")
    merges = [tuple(merge.split(" ", 1)) for merge in file.need("tokenizer.ggml.merges", list)]
    lost = [merge for merge in merges if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys()]
    if lost:
        raise CorruptFile(f"{file.path} has {len(lost)} merges of unknown tokens, the first is {lost[0]}")
    return BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words)


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    control = [token for token, kind in zip(tokens, types, strict=False) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    user = [token for token, kind in zip(tokens, types, strict=False) if kind == TokenType.USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in user])


def _settings(file: GGUFFile, tokens: list[str]) -> dict[str, Any]:
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings: dict[str, Any] = {}
    for ours, theirs in ids.items():
        index = file.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise CorruptFile(f"{file.path}: {theirs}_token_id is {index}, the vocabulary has {len(tokens)}")
        settings[f"{ours}_token"] = tokens[index]
    template = file.metadata.get("tokenizer.chat_template")
    return settings if template is None else {**settings, "chat_template": template}


def _add_template(tokenizer: Tokenizer, file: GGUFFile, settings: Mapping[str, Any], *, adds_bos: bool) -> None:
    """Put the first token before each text where the file, or its family, asks for it."""
    bos = settings.get("bos_token")
    if bos is not None and file.get("tokenizer.ggml.add_bos_token", adds_bos):
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
