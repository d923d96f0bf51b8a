"""The command line as other programs meet it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.checkpoints.tiny import TINY


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **TINY}))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "bireme.cli.main", "inspect", str(tmp_path), "--json"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")
