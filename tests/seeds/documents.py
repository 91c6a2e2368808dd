"""The documents as printed: their code blocks, their commands, and the names that they set as code.

Nothing of a document is left out silently: `test_completeness` compares what tests have taken with all that there is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_name("data")
INLINE = "inline"
SHELL = ("console", "bash")
# reStructuredText: ``code``, :code:`code` and `code`. Other roles and links are no code.
RST_OTHER = re.compile(r"``[^`]+``|:code:`[^`]+`|(?P<other>:[a-z-]+:`[^`]+`|`[^`]+`_+)")
RST_INLINE = re.compile(r"``([^`]+)``|`([^`]+)`")
MD_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
PROMPT = "$ "


@dataclass(frozen=True)
class Item:
    """A command, a code block of another kind, or a piece of inline code. `line`: where it begins in the document."""

    document: str
    line: int
    kind: str
    text: str

    @property
    def here(self) -> str:
        """The text with SkyPilot's names replaced by ours: the only change that a user has to make."""
        text = re.sub(r"^import sky$", "from perdure import sdk as sky", self.text, flags=re.MULTILINE)
        return re.sub(r"^sky (?=[a-z])", "perdure ", text, flags=re.MULTILINE)


@dataclass
class Document:
    """One document. `taken`: the items that tests execute."""

    name: str
    taken: set[Item] = field(default_factory=set)

    @property
    def lines(self) -> list[str]:
        return (DATA / self.name).read_text().splitlines()

    def items(self) -> list[Item]:
        """All blocks and commands in order, then each inline code once."""
        rst = self.name.endswith(".rst")
        blocks = list(_rst_blocks(self.lines) if rst else _md_blocks(self.lines))
        found = [
            Item(self.name, line, kind, text)
            for number, kind, code in blocks
            for line, text in (_commands(number, code) if kind in SHELL else [(number, "\n".join(code))])
        ]
        inside = {number + offset for number, _, code in blocks for offset in range(len(code))}
        prose = "\n".join("" if number in inside else line for number, line in enumerate(self.lines, 1))
        if rst:
            prose = RST_OTHER.sub(lambda one: re.sub(r"[^\n]", " ", one[0]) if one["other"] else one[0], prose)
        seen: set[str] = set()
        for match in (RST_INLINE if rst else MD_INLINE).finditer(prose):
            text = " ".join(next(group for group in match.groups() if group is not None).split())
            if text not in seen:
                seen.add(text)
                found.append(Item(self.name, prose.count("\n", 0, match.start()) + 1, INLINE, text))
        return found

    def take(self, beginning: str, kind: str | None = None) -> Item:
        """The one item whose text begins so, for a test that executes it."""
        found = [one for one in self.items() if one.text.startswith(beginning) and kind in (None, one.kind)]
        exact = [one for one in found if one.text == beginning]
        chosen = exact if len(exact) == 1 else found
        assert len(chosen) == 1, f"{self.name} has {len(chosen)} items that begin with {beginning!r}"
        self.taken.add(chosen[0])
        return chosen[0]

    def take_all(self, beginning: str) -> list[Item]:
        """All items whose text begins so."""
        found = [one for one in self.items() if one.text.startswith(beginning)]
        assert found, f"{self.name} has no item that begins with {beginning!r}"
        self.taken.update(found)
        return found


def _commands(number: int, code: list[str]) -> Iterator[tuple[int, str]]:
    """The commands of a shell block. In one with prompts, other lines are output."""
    has_prompts = any(line.startswith(PROMPT) for line in code)
    begun: list[str] = []
    for offset, line in enumerate(code):
        if begun:
            begun.append(line)
        elif line.strip() and not line.startswith("#") and (line.startswith(PROMPT) or not has_prompts):
            begun, first = [line.removeprefix(PROMPT)], number + offset
        if begun and not line.endswith("\\"):
            yield first, "\n".join(begun).rstrip()
            begun = []


def _rst_blocks(lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    """(line of the first code, language, code without indentation) of each `code-block`."""
    for number, line in enumerate(lines):
        directive = re.match(r"(\s*)\.\. code-block:: (\w+)", line)
        if directive is None:
            continue
        indent, body = len(directive[1]), []
        for following in lines[number + 1 :]:
            if following.strip() and len(following) - len(following.lstrip()) <= indent:
                break
            body.append(following)
        begin = next(at for at, text in enumerate(body) if text.strip() and not text.strip().startswith(":"))
        while not body[-1].strip():
            body.pop()
        yield number + 2 + begin, directive[2], textwrap.dedent("\n".join(body[begin:])).splitlines()


def _md_blocks(lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    """The same of each fenced block."""
    begin, language = 0, ""
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if not begin:
            begin, language = number + 1, line.removeprefix("```")
        else:
            yield begin, language, lines[begin - 1 : number - 1]
            begin = 0


QUICKSTART = Document("quickstart-pytorch.rst")
TRAINING_GUIDE = Document("training-guide.rst")
BLOG = Document("training-llms-blog.md")
TIGRIS = Document("big-data-tigris.md")
DOCUMENTS = (QUICKSTART, TRAINING_GUIDE, BLOG, TIGRIS)
# Plain text: its code is that of the English guide, without indentation.
TRAINING_GUIDE_ZH = DATA / "training-guide.zh.txt"
