"""Runs programs as a user would at a prompt; a failure says what the program said."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


class CommandFailed(Exception):
    """A program that must succeed did not; the message is its own."""


class NotHere(Exception):
    """This machine can't run the cluster; the message says what to install or to start."""


def run(
    *command: str | Path,
    stdin: str | None = None,
    timeout: float | None = 600,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    complaints: bool = False,
) -> str:
    """Return what ``command`` prints; with ``complaints``, what it wrote to its standard error comes first.

    Raises:
        CommandFailed: it ended with another code than 0, or not in time.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, check=False, timeout=timeout, env=env, cwd=cwd
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(words)} did not end within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-4000:]}{done.stdout[-2000:]}"
        )
    return done.stderr + done.stdout if complaints else done.stdout


def works(*command: str | Path, timeout: float = 60) -> bool:
    """Whether ``command`` succeeds; a program that is not there does not."""
    try:
        run(*command, timeout=timeout)
    except (CommandFailed, FileNotFoundError):
        return False
    return True
