"""Commands that the pages show and mark are run, in order, page by page; the rules of the marks themselves."""

from pathlib import Path

import pytest

from docsite import commands
from docsite.commands import ROOT, CommandFailed
from docsite.expect import same

LIGHT = commands.pages(heavy=False)
HEAVY = [page for page in commands.pages(heavy=True) if any(block.heavy for block in commands.blocks(page))]


def named(path: Path) -> str:
    """How a page is called in a report."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", LIGHT, ids=named)
def test_the_commands_of_a_page_do_what_it_says(page: Path) -> None:
    commands.run(page, heavy=False)


@pytest.mark.docs
@pytest.mark.timeout(900, func_only=True)
@pytest.mark.parametrize("page", HEAVY, ids=named)
def test_all_commands_of_a_page_do_what_it_says(page: Path) -> None:
    commands.run(page, heavy=True)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A page to write, in a checkout of its own."""
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(commands, "LENT", ())
    return tmp_path / "page.md"


def test_a_command_that_fails_is_named_by_its_line(page: Path) -> None:
    page.write_text("# Page\n\n```bash run\ntrue\n```\n\n```bash run\necho what a pity\nfalse\n```\n")
    with pytest.raises(CommandFailed, match=r"page\.md:8 ended with 1:\nwhat a pity"):
        commands.run(page, heavy=False)


def test_blocks_of_a_page_share_one_shell_and_unmarked_ones_do_not_run(page: Path) -> None:
    page.write_text("```bash run\nx=1\n```\n```bash\nx=2\n```\n```bash run\n[ $x = 1 ]\n```\n")
    commands.run(page, heavy=False)


def test_what_a_command_begins_in_the_background_ends_with_the_page(page: Path) -> None:
    block = "echo $BASHPID > pid; echo up; trap 'echo ended > ../ended; exit' INT; while :; do sleep 0.05; done"
    page.write_text(f'```bash run heavy until="up"\n{block}\n```\n```bash run heavy\nkill -0 "$(cat pid)"\n```\n')
    commands.run(page, heavy=True)
    assert [block.until for block in commands.blocks(page)] == ["up", None]


def test_a_mark_that_nobody_knows_is_refused(page: Path) -> None:
    page.write_text("```bash run heavily\ntrue\n```\n")
    with pytest.raises(CommandFailed, match="heavily"):
        commands.blocks(page)


def test_a_dialogue_has_commands_of_several_lines_and_what_they_print() -> None:
    shown = "$ echo 'a\n    b'\na\n    b\n$ true\n$ echo x \\\n  y\nx y\n"
    assert list(commands.dialogue(shown)) == [
        ("echo 'a\n    b'", "a\n    b\n"),
        ("true", ""),
        ("echo x \\\n  y", "x y\n"),
    ]


@pytest.mark.parametrize(
    ("printed", "expected", "equal"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a  \nb", "a\nb\n", True),
        ("a\n1\n2\nb\n", "a\n…\nb\n", True),
        ("took 3 s\n", "took … s\n", True),
        ("a\nc\n", "a\nb\n", False),
        ("a\nb\nc\n", "a\nb\n", False),
    ],
)
def test_printed_text_is_compared_but_for_what_the_page_leaves_open(printed: str, expected: str, equal: bool) -> None:
    assert same(printed, expected) is equal
