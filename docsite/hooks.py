"""What mkdocs asks while it builds the site (`hooks` in mkdocs.yml).

The pages are read on a code forge too, so they link to sources beside docs/. On the site such a link leads to the
repository if `repo_url` is set, and is plain text if it is not; a link to nothing fails the build in either case.
"""

import logging
import re
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

from docsite.commands import unmark

ROOT: Final = Path(__file__).parent.parent
_OUTSIDE: Final = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)+[^)#]+)(?P<anchor>#[^)]*)?\)")
_log: Final = logging.getLogger("mkdocs.plugins.bireme")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """The page as mkdocs shall read it."""
    source = PurePosixPath("docs", page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = _resolve(source.parent, match["target"])
        if path.parts and path.parts[0] == "docs":
            return match[0]
        if not (ROOT / path).exists():
            _log.warning("%s links to %s, which is not in the repository", page.file.src_uri, path)
        if not config.repo_url:
            return match["text"]
        return f"[{match['text']}]({config.repo_url.rstrip('/')}/blob/main/{path}{match['anchor'] or ''})"

    return _OUTSIDE.sub(link, unmark(markdown))


def _resolve(folder: PurePosixPath, target: str) -> PurePosixPath:
    parts = list(folder.parts)
    for part in PurePosixPath(target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
