"""The text side of one checkpoint: tokenizer, special ids, chat template, and where a text ends.

Loaded from tokenizer.json and its neighbours, or from the metadata of a GGUF file. One per HTTP process.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bireme_worker.checkpoints.config import ModelConfig, read_json, read_optional_json
from bireme_worker.checkpoints.errors import CorruptFile
from bireme_worker.checkpoints.gguf_file import GGUFFile
from bireme_worker.checkpoints.layout import find_gguf, load_model_config
from bireme_worker.text.answer_parts import THINK, THINK_END, tool_format_of
from bireme_worker.text.chat_template import ChatTemplate
from bireme_worker.text.detokenizer import Detokenizer
from bireme_worker.text.errors import InvalidChat
from bireme_worker.text.gguf_tokenizer import gguf_tokenizer
from bireme_worker.text.grammar import Grammars
from bireme_worker.text.output_text import OutputText
from bireme_worker.text.token_bytes import TokenBytes

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextModel:
    """Text in, ids out, and back, for one checkpoint.

    ``eos_ids`` is the union of what config.json, generation_config.json and the tokenizer call an end. Its chat
    template teaches ``tool_format``, whether it ``takes_tools``, and ``thought_ids``, which stand around a thought.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any], config: ModelConfig) -> None:
        """``settings`` has the keys of tokenizer_config.json."""
        # Sentence transformers leave a cut and a padding in their files; too long a text is refused, never cut.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.config = config
        self.tokens = TokenBytes(tokenizer)
        self.special_tokens = _special_tokens(settings)
        self.eos_ids = config.eos_ids | self._ids_of("eos_token")
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        template = settings.get("chat_template")
        self._template = None if template is None else ChatTemplate(template, self.special_tokens)
        source = "" if self._template is None else self._template.source
        self.takes_tools = "tools" in source
        self.tool_format = tool_format_of(source)
        self.thought_ids = self._thought_ids() if THINK_END in source else None
        self.grammars = Grammars(tokenizer, config.vocab_size, self.eos_ids)

    @classmethod
    def load(cls, path: Path) -> "TextModel":
        """Read the text side of a Hugging Face directory or a GGUF file.

        Raises:
            CheckpointError: a file is missing or broken, or the tokenizer is of an unsupported kind.
        """
        gguf = find_gguf(path)
        if gguf is None:
            tokenizer, settings = _from_directory(path)
        else:
            with GGUFFile(gguf) as file:
                tokenizer, settings = gguf_tokenizer(file)
        return cls(tokenizer, settings, load_model_config(path))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids. ``add_special_tokens`` puts a bos token before the text if the model wants one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole output: what a stream of the same ids adds up to."""
        detokenizer = Detokenizer(self.tokens, skip_special=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def output(
        self,
        stops: Sequence[str] = (),
        *,
        skip_special: bool = True,
        at_start: bool = True,
        keep: frozenset[int] = frozenset(),
    ) -> OutputText:
        """Return the streaming text of a new output; ``keep``: special tokens that are written out."""
        return OutputText(self.tokens, stops, skip_special=skip_special, at_start=at_start, keep=keep)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], *, now: datetime, **options: Any) -> list[int]:
        """Render the chat and return its ids; the options are those of ChatTemplate.render."""
        return self.encode(self.render_chat(messages, now=now, **options), add_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, now: datetime, **options: Any) -> str:
        """Return the prompt text of a chat.

        Raises:
            InvalidChat: the model has no chat template, or it refuses the messages.
        """
        if self._template is None:
            raise InvalidChat("this model has no chat template: use the completions endpoint")
        return self._template.render(messages, now=now, **options)

    def ids_called(self, *texts: str) -> frozenset[int]:
        """The ids of these tokens, as far as the vocabulary has them."""
        ids = map(self._tokenizer.token_to_id, texts)
        return frozenset(index for index in ids if index is not None)

    def _thought_ids(self) -> tuple[int, int] | None:
        opens, closes = self._tokenizer.token_to_id(THINK), self._tokenizer.token_to_id(THINK_END)
        return None if opens is None or closes is None else (opens, closes)

    def _ids_of(self, name: str) -> frozenset[int]:
        token = self.special_tokens.get(name)
        return frozenset() if token is None else self.ids_called(token)


def _from_directory(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    file = path / "tokenizer.json"
    if "model" not in read_json(file):
        raise CorruptFile(f"{file} has no model: copy the checkpoint again")
    settings = read_optional_json(path / "tokenizer_config.json")
    template = path / "chat_template.jinja"
    if template.exists():  # newer transformers write it beside the settings, and then it goes first
        settings["chat_template"] = template.read_text()
    return _read_tokenizer(file), settings


def _read_tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise CorruptFile(f"{file} is no tokenizer ({error}): copy the checkpoint again") from error


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Take the special tokens, which older files write as an object with the text under `content`."""
    written = {name: settings.get(name) for name in SPECIAL_TOKENS}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in written.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
