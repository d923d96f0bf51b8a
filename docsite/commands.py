"""Runs the commands of the pages: ``python -m docsite.commands [--heavy] [PAGE …]``.

A fenced block whose first line says `run` is run, all of a page in order, in one shell and one scratch directory that
has the checkout's examples, chart and programs in it:

    ```bash run                       must end well
    ```console run                    `$ ` lines are run; their output must be what follows, `…` is any text
    ```bash run heavy                 only with --heavy (`make docs-test`): it serves a model, or builds something
    ```bash run heavy until="text"    goes on in the background once it has printed that; ended by SIGINT with the page

Where the system lets us, a page has a network of its own with nothing in it but loopback: its ports are free, and
what it shows needs no world.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
LENT: Final = ("examples", "charts", "crds", "docs", ".venv", "docsite", "bireme", "README.md")
"""What a page sees of the checkout."""

_HEAD: Final = """set -euo pipefail
pids=()
trap 'for p in "${pids[@]}"; do kill -INT -- -$p 2>/dev/null && wait $p; done' EXIT
set -m
"""
_FENCE: Final = re.compile(r"^( *)```(bash|console) run([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_UNTIL: Final = re.compile(r'until="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """One marked block. ``line`` is where its commands begin."""

    page: Path
    line: int
    console: bool
    text: str
    heavy: bool
    until: str | None

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class CommandFailed(Exception):
    """A command of a page did not do what the page says."""


def unmark(markdown: str) -> str:
    """The page without marks, as markdown knows fences."""
    return re.sub(r"^( *)```(bash|console) run[^\n]*$", r"\1```\2", markdown, flags=re.MULTILINE)


def blocks(page: Path) -> list[Block]:
    """The marked blocks of ``page``, in order."""
    text = page.read_text()
    return [_block(page, text, match) for match in _FENCE.finditer(text)]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    until = _UNTIL.search(match[3])
    words = _UNTIL.sub("", match[3]).split()
    line = text.count("\n", 0, match.start()) + 2
    if unknown := set(words) - {"heavy"}:
        raise CommandFailed(f"{page}:{line - 1}: {sorted(unknown)} is no mark: write heavy or until=")
    return Block(
        page,
        line,
        match[2] == "console",
        _flush(match[4], len(match[1])),
        "heavy" in words,
        until[1] if until else None,
    )


def _flush(text: str, indent: int) -> str:
    """A block of a list, without the list's indentation."""
    return "".join(line[indent:] if line[:indent].isspace() else line for line in text.splitlines(keepends=True))


def pages(*, heavy: bool) -> list[Path]:
    """Pages that have something to run."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if any(block.heavy <= heavy for block in blocks(page))]


def script(todo: Sequence[Block]) -> str:
    """One shell script out of all blocks; it says on fd 3 which of them runs."""
    return _HEAD + "".join(_step(number, block) for number, block in enumerate(todo))


def _step(number: int, block: Block) -> str:
    say = f"echo {shlex.quote(block.place)} >&3\n"
    if block.until is not None:
        log, wanted = f".log-{number}", shlex.quote(block.until)
        return (
            f"{say}( {block.text} ) </dev/null >{log} 2>&1 & pids+=($!)\n"
            f"until grep -qF -- {wanted} {log}; do\n"
            f"  kill -0 $! 2>/dev/null || {{ cat {log}; exit 1; }}\n  sleep 0.2\ndone\n"
        )
    if not block.console:
        return say + block.text
    return say + "".join(
        f"{{ {command}\n}} >.out 2>.err || {{ cat .out .err; exit 1; }}\n"
        f"python -m docsite.expect .out {shlex.quote(expected)}\n"
        for command, expected in dialogue(block.text)
    )


def dialogue(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a console and what each prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        count = next(n for n in range(1, len(lines) + 1) if _whole("".join(lines[:n])) or n == len(lines))
        yield "".join(lines[:count]).rstrip("\n"), "".join(lines[count:])


def _whole(command: str) -> bool:
    if command.rstrip("\n").endswith("\\"):
        return False
    try:
        shlex.split(command, comments=True)
    except ValueError:  # an open quote
        return False
    return True


def run(page: Path, *, heavy: bool, limit: float = 900) -> None:
    """Run what ``page`` shows.

    Raises:
        CommandFailed: with the place of the block and what was printed.
    """
    todo = [block for block in blocks(page) if block.heavy <= heavy]
    with tempfile.TemporaryDirectory(prefix="bireme-docs-") as scratch:
        folder = Path(scratch)
        (folder / "home" / ".cache").mkdir(parents=True)
        (folder / "home" / ".cache" / "bireme").symlink_to(_cache())
        for name in LENT:
            (folder / name).symlink_to(ROOT / name)
        done = subprocess.run(
            [*_own_network(), "bash", "-c", f"exec 3>.place; {script(todo)}"],
            cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=limit, check=False,
        )  # fmt: skip
        if done.returncode:
            place = (folder / ".place").read_text().split()[-1:]
            logs = "".join(f"\n== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(folder.glob(".log-*")))
            raise CommandFailed(f"{''.join(place)} ended with {done.returncode}:\n{done.stdout[-6000:]}{logs}")


def _cache() -> Path:
    """Where the demo's model is kept, made but once a machine."""
    cache = Path(os.environ.get("BIREME_CACHE_DIR") or Path.home() / ".cache" / "bireme").absolute()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BIREME_", "OPENAI_"))}
    programs = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
    own = {"HOME": str(folder / "home"), "COLUMNS": "120"}
    return {**kept, **own, "PATH": programs}


def _own_network() -> list[str]:
    """Words before a command that give it a loopback of its own, or none where that is not allowed."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return []
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all pages, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m docsite.commands", description=__doc__.splitlines()[0])
    parser.add_argument("--heavy", action="store_true", help="also what serves a model or builds something")
    parser.add_argument("pages", nargs="*", type=lambda text: Path(text).absolute(), metavar="PAGE")
    chosen = parser.parse_args(arguments)
    failed = 0
    for page in chosen.pages or pages(heavy=chosen.heavy):
        try:
            run(page, heavy=chosen.heavy)
            print(f"{page.relative_to(ROOT)}: ran", flush=True)
        except CommandFailed as error:
            failed += 1
            print(error, file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
