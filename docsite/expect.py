"""Compares what a command printed with what its page says: ``python -m docsite.expect FILE EXPECTED``.

`…` in the page is any text, over lines too; blanks at the ends of lines don't count.
"""

import re
import sys
from pathlib import Path


def same(printed: str, expected: str) -> bool:
    """Whether ``printed`` is what a page promises."""
    pattern = ".*".join(re.escape(_trim(part)) if part else "" for part in _trim(expected).split("…"))
    return re.fullmatch(pattern, _trim(printed), re.DOTALL) is not None


def _trim(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n"))


def main(arguments: list[str]) -> int:
    """0 when they are the same."""
    printed = Path(arguments[0]).read_text()
    if same(printed, arguments[1]):
        return 0
    sys.stdout.write(f"the page says\n{arguments[1]}\nand it printed\n{printed}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
