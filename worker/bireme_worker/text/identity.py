"""The name of a checkpoint's text side: equal names, equal ids for every text and equal ends.

Two checkpoints of one model mostly share it; then requests that wait may be computed by either, and an HTTP process has
nothing to read anew.
"""

from hashlib import sha256
from pathlib import Path

from bireme_worker.checkpoints.config import read_json, read_optional_json
from bireme_worker.checkpoints.errors import MissingFile
from bireme_worker.checkpoints.layout import find_gguf

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_ENDS = "eos_token_id"


def text_identity(path: Path) -> str:
    """Hash what makes ids out of texts and says where a text ends.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    gguf = find_gguf(path)
    if gguf is not None:  # text and weights are one file: another file is another text
        stat = gguf.stat()
        return sha256(f"{gguf} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    if not (path / _FILES[0]).exists():
        raise MissingFile(f"{path / _FILES[0]} is missing: copy the checkpoint again")
    digest = sha256()
    for name in _FILES:
        content = (path / name).read_bytes() if (path / name).exists() else b""
        digest.update(f"{name} {len(content)} ".encode() + content)
    ends = read_json(path / "config.json").get(_ENDS), read_optional_json(path / "generation_config.json").get(_ENDS)
    digest.update(repr(ends).encode())
    return digest.hexdigest()[:16]
