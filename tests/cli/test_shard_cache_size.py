"""The bound of the shard cache on the command line."""

import argparse
import os
from pathlib import Path

import pytest

from bireme.cli import up
from bireme.names import Env, Exit

FILE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is set for the stages is gone after the test."""
    for name in (Env.SHARD_CACHE, Env.SHARD_CACHE_BYTES):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def arguments(*more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return parser.parse_args(["-f", str(FILE), "--mount", "/models=/nowhere", *more])


def test_the_bound_reaches_the_stages_in_bytes(clean: None, tmp_path: Path) -> None:
    # The mount does not exist, so nothing starts.
    assert up.run(arguments("--shard-cache", str(tmp_path), "--shard-cache-size", "40GiB")) != 0
    assert os.environ[Env.SHARD_CACHE] == str(tmp_path)
    assert os.environ[Env.SHARD_CACHE_BYTES] == str(40 << 30)


def test_a_bound_without_a_directory_is_refused(clean: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert up.run(arguments("--shard-cache-size", "1GiB")) == Exit.BAD_CONFIGURATION
    assert "--shard-cache-size bounds --shard-cache DIR: give both" in capsys.readouterr().err


def test_a_directory_beside_that_of_the_deployment_is_refused(
    clean: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(FILE.read_text().replace("\nspec:", "\nspec:\n  engine: {shardCache: {nodePath: /cache}}"))
    asked = arguments("--shard-cache", str(tmp_path))
    asked.file = file
    assert up.run(asked) == Exit.BAD_CONFIGURATION
    assert "the deployment has a spec.engine.shardCache" in capsys.readouterr().err


def test_what_is_no_amount_of_memory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("--shard-cache-size", "much")
    assert "'much' is no amount of memory" in capsys.readouterr().err
