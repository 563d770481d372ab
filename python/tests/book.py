"""The pages of the book, without those of results, and their blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
    *("README.md", "python/README.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md"),
]
PAGES = [page for page in PAGES if not page.startswith("docs/results/")]


class Block(NamedTuple):
    """A block: its page, the number of its first line there, its language, and its lines."""

    page: str
    line: int
    language: str
    text: str

    @property
    def is_program(self) -> bool:
        """Whether someone who reads the block runs it. Rust is run by rustdoc."""
        return self.language not in {"text", "rust", "toml", "json"}


def _blocks(page: str) -> Iterator[Block]:
    fence, begin, language, inside = "", 0, "", list[str]()
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        found = re.match(r"\s*(`{3,}|~{3,})([^`,\s]*)", line)
        if not fence and found:
            fence, begin, language, inside = found[1], number + 1, found[2], []
        elif fence and line.strip() == fence:
            yield Block(page, begin, language, "\n".join([*inside, ""]))
            fence = ""
        elif fence:
            inside.append(line)
    assert not fence, f"{page}:{begin}: the block has no end"


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def matching(page: str, pattern: str) -> list[Block]:
    """Return the blocks of a page that, behind a line with their language, have a pattern."""
    found = [block for block in BLOCKS if block.page == page]
    return [block for block in found if re.search(pattern, f"{block.language}\n{block.text}")]
