"""The prose of a document in reStructuredText."""

import re

# Directives whose body is prose too. Other directives (code, tables, lists of pages) are dropped with theirs.
_PROSE = ("admonition", "attention", "caution", "hint", "important", "note", "seealso", "tip", "topic", "warning")
_DIRECTIVE = re.compile(r"\.\. (?:([\w:.-]+)::|.*)")
_LINE = re.compile(r"([=\-~^`'\"*+#.:_])\1{2,}|[=+|-][=+| -]{3,}|\|.*\|")
_ITEM = re.compile(r"([*-]|#\.|\d+\.) ")
_FIELD = re.compile(r":[\w -]+:( |$)")
# In this order: a role with a target, any other role, a literal, a link, emphasis, an escaped character.
_INLINE = (
    (re.compile(r":[\w:.+-]+:`~?(?:[\w.]+\.(?=[\w()]+`))?!?([^`<]*?)\s*(?:<[^>`]*>)?`"), r"\1"),
    (re.compile(r":[\w:.+-]+:`([^`]+)`"), r"\1"),
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*(?:<[^>`]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*\*?([^*\s](?:[^*]*[^*\s])?)\*\*?(?![\w*])"), r"\1"),
    (re.compile(r"\\(?: |([*`_|]))"), r"\1"),
)


def prose(rst: str) -> str:
    """Paragraphs and headings of a document, a line each, with an empty line between them."""
    paragraphs: list[str] = []
    lines: list[str] = []
    skipped: int | None = None  # lines that are indented more than this are left out
    for line in [*rst.expandtabs().splitlines(), ""]:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and skipped is not None:
            if indent > skipped:
                continue
            skipped = None
        directive = _DIRECTIVE.match(text)
        if directive and directive[1] not in _PROSE:
            skipped = indent
        is_markup = directive or _LINE.fullmatch(text) or _FIELD.match(text)
        if lines and (not text or is_markup or _ITEM.match(text)):
            paragraphs.append(" ".join(lines))
            lines = []
        if not text or is_markup:
            continue
        if text.endswith("::"):
            skipped = indent
            text = text[:-1]
        if text != ":":
            lines.append(text)
    for pattern, replacement in _INLINE:
        paragraphs = [pattern.sub(replacement, paragraph) for paragraph in paragraphs]
    return "\n\n".join(paragraphs) + "\n"
