"""Writes docs/reference.md from names.py: the tables of everything a user can script against.

``python -m bireme.reference`` writes it, ``--check`` exits 1 when the committed page differs. Those of them
that are the operator's also stand between two marks in docs/operator.md.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from bireme import names
from bireme.names import Number, Word

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
OPERATOR_PAGE = PAGE.with_name("operator.md")

_BEGIN = "<!-- generated from bireme/names.py by `make reference`: change the names there -->\n"
_END = "<!-- end of what is generated -->\n"

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


def render_operator() -> str:
    """The operator's page, with its tables as the names are now."""
    before, _, rest = OPERATOR_PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    shown = (names.GroupState, names.ConditionType, names.Reason, names.Event, names.Annotation)
    tables = "".join(_table(_TABLES[words], words, "###") for words in shown)
    mine = [word for word in names.Metric if word.startswith("bireme_operator_")]
    metrics = f"\n### Metrics\n\n{_rows(mine)}" if mine else ""
    return f"{before}{_BEGIN}{tables}{metrics}\n{_END}{after}"


def _table(title: str, words: type[Word] | type[Number], level: str = "##") -> str:
    paragraph = (words.__doc__ or "").replace("\n    ", " ").strip()
    return f"\n{level} {title}\n\n{paragraph}\n\n{_rows(words)}"


def _rows(words: Iterable[Word | Number]) -> str:
    rows = "".join(f"| `{word.value}` | {word.about} |\n" for word in words)
    return f"| name | meaning |\n|---|---|\n{rows}"


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with ``--check``."""
    pages = {PAGE: render(), OPERATOR_PAGE: render_operator()}
    if arguments == ["--check"]:
        stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
        sys.stdout.write("".join(f"{path} is out of date: run `make reference`\n" for path in stale))
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text)
        sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
