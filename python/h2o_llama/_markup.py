"""The text of HTML: of a page, of a mail, of what other kinds of documents are turned into."""

import re
from html.parser import HTMLParser

_COMMENTS = r"(?:\s|<\?(?:(?!\?>).)*\?>|<!--(?:(?!-->).)*-->)*"
"""Also XML's declaration and instructions."""

_HTML = re.compile(rf"{_COMMENTS}<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(rb"<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def is_html(text: str) -> bool:
    """Whether it is a page. XML of another kind is not."""
    return _HTML.match(text) is not None


def declared_charset(content: bytes) -> str | None:
    """The encoding that a page says it has, as browsers take it; None if it says none, or UTF-8."""
    found = _CHARSET.search(content[:4096]) if content.lstrip()[:1] == b"<" else None
    name = found[1].decode().lower() if found else "utf-8"
    if name.startswith(("utf", "unicode")):  # what can be read so far is ASCII
        return None
    return "windows-1252" if name in ("iso-8859-1", "latin1", "us-ascii", "ascii") else name


def text_of_html(source: str) -> str:
    """Its title and its visible text: a line for a block, a tab between a table's cells."""
    parser = _Html()
    parser.feed(source)
    parser.close()
    return re.sub(r"[ \t]+\n", "\n", "".join(parser.parts)).strip()


class _Html(HTMLParser):
    _UNSEEN = frozenset(("script", "style", "template", "noscript", "svg"))
    _UNDISPLAYED = re.compile(r"(?:^|;)\s*display\s*:\s*none\b", re.IGNORECASE)
    _VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "source", "wbr"))
    _UNCLOSED = frozenset(("p", "li", "dt", "dd", "tr", "td", "th", "option"))  # the next one of its kind ends it
    _WORDS = "a abbr b bdi bdo cite code del dfn em i ins kbd mark q s samp small span strong sub sup time u var wbr"
    _INLINE = frozenset(_WORDS.split())
    _CELLS = frozenset(("td", "th"))

    def __init__(self) -> None:
        super().__init__()
        self.parts = [""]
        self._hidden: list[str] = []  # the tag of the hidden element, and the same tags in it
        self._n_pre = 0
        self._has_cell = False  # of the row
        self._lists: list[tuple[str, int] | None] = []  # the kind of their numbers, and the last one; None: bullets
        self._marker = ""  # before the next text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden[-1:] == [tag] and tag in self._UNCLOSED:
            self._hidden.clear()
        about = dict(attrs)
        is_unseen = tag in self._UNSEEN or "hidden" in about or self._UNDISPLAYED.search(about.get("style") or "")
        if tag == self._hidden[-1] if self._hidden else is_unseen and tag not in self._VOID:
            self._hidden.append(tag)
        if self._hidden:
            return
        self._n_pre += tag == "pre"
        if tag in ("ol", "ul"):
            number = int(start) - 1 if (start := about.get("start") or "1").isdecimal() else 0
            self._lists.append((about.get("type") or "1", number) if tag == "ol" else None)
        elif tag == "li":
            self._marker = self._item()
        if tag in self._CELLS:
            while self._has_cell and self.parts[-1] in (" ", "\n"):  # of the cell before
                self.parts.pop()
            self.parts.append("\t" if self._has_cell else "")
        elif tag not in self._INLINE and (tag == "tr" or self.parts[-1] not in ("\t", "")):
            self._add("\n")
        self._has_cell = tag in self._CELLS or (self._has_cell and tag != "tr")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing after XHTML's `<script src="…"/>` is hidden."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            del self._hidden[len(self._hidden) - (tag == self._hidden[-1]) :]
            return
        self._n_pre -= tag == "pre" and self._n_pre > 0
        if tag in ("ol", "ul") and self._lists:
            self._lists.pop()
            self._marker = ""
        if tag not in self._INLINE | self._CELLS:
            self._add("\n")

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._marker and data.strip():
            data, self._marker = self._marker + data.lstrip(), ""
        if self._n_pre:
            self.parts.append(data)
        else:
            text = re.sub(r"\s+", " ", data)
            self._add(text.lstrip() if self.parts[-1] in ("\t", "") else text)

    def _item(self) -> str:
        """The number or bullet of the next item of the innermost list."""
        if not self._lists or self._lists[-1] is None:
            return "- "
        kind, n = self._lists[-1][0], self._lists[-1][1] + 1
        self._lists[-1] = kind, n
        if kind in ("a", "A") and n <= 26:
            return f"{chr(ord(kind) + n - 1)}. "
        if kind in ("i", "I") and n < 40:
            roman = n // 10 * "x" + ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")[n % 10]
            return f"{roman.upper() if kind == 'I' else roman}. "
        return f"{n}. "

    def _add(self, text: str) -> None:
        """Between blocks there is one line end, and no line begins with white space."""
        text = text.lstrip() if self.parts[-1].endswith("\n") else text
        self.parts += [text] if text else []
