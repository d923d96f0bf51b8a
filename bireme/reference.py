"""Writes docs/reference.md from names.py: the tables of everything a user can script against.

``python -m bireme.reference`` writes it, ``--check`` exits 1 when the committed page differs.
"""

import sys
from pathlib import Path

from bireme import names
from bireme.names import Number, Word

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"

_TABLES: dict[type[Word] | type[Number], str] = {
    names.GroupState: "Group states",
    names.ConditionType: "Conditions",
    names.Reason: "Reasons",
    names.Event: "Events",
    names.Label: "Labels",
    names.Annotation: "Annotations",
    names.Admission: "Admission codes",
    names.Header: "HTTP headers",
    names.Port: "Ports",
    names.Exit: "Exit codes",
    names.Metric: "Metrics",
    names.Env: "Environment",
}


def render() -> str:
    """The whole page."""
    head = (
        "# Reference\n\n"
        "Generated from `bireme/names.py` by `make reference`; change the names there.\n\n"
        f"API group `{names.GROUP}/{names.VERSION}`, kind `{names.KIND}`, short name `infd`.\n"
    )
    return head + "".join(_table(title, words) for words, title in _TABLES.items())


def _table(title: str, words: type[Word] | type[Number]) -> str:
    paragraph = (words.__doc__ or "").replace("\n    ", " ").strip()
    rows = "".join(f"| `{word.value}` | {word.about} |\n" for word in words)
    return f"\n## {title}\n\n{paragraph}\n\n| name | meaning |\n|---|---|\n{rows}"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with ``--check``."""
    page = render()
    if arguments == ["--check"]:
        same = PAGE.exists() and PAGE.read_text() == page
        sys.stdout.write("" if same else f"{PAGE} is out of date: run `make reference`\n")
        return 0 if same else 1
    PAGE.write_text(page)
    sys.stdout.write(f"wrote {PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
