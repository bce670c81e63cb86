"""Documents: files as text, and the one form in which a model is asked about a text."""

import io
import logging
import os
import re
from html.parser import HTMLParser
from pathlib import Path

ABOUT_A_DOCUMENT = "Answer questions about this text:\n\n"
"""The words before a document."""

_BINARY = {
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM"), "an image"),
    **dict.fromkeys((b"\x1f\x8b", b"BZh", b"7z\xbc\xaf", b"\xfd7zXZ", b"(\xb5/\xfd"), "an archive"),
    b"RIFF": "an image or a sound",
    b"PK\x03\x04": "an archive, as files of office programs are",
    b"GGUF": "a model",
}
"""First bytes of files that are not documents; all of these have NUL bytes."""

_NAMED = (
    "txt text md markdown rst adoc org tex log srt vtt eml pdf html htm xhtml csv tsv json jsonl xml yaml "
    "yml toml py pyi c h cc cpp cxx hpp cu cuh rs go java kt scala swift cs js mjs ts jsx tsx css php rb "
    "pl lua r jl sh bash sql cmake diff patch ini cfg"
)
SUFFIXES = frozenset(f".{word}" for word in _NAMED.split())
"""Of the files that are documents in a folder of many, in any case."""


def read_document(source: str | os.PathLike[str] | bytes, name: str | None = None) -> str:
    """The text of a file, as all commands read it.

    Text of any kind (Markdown, CSV, JSON, source code) stays unchanged; HTML loses its tags. A PDF is the text of its
    pages, each after a line "[page N]". Lines end with "\\n". At least one character is not white space.

    Raises OSError if the file cannot be read, ValueError if it has no text: it is empty, an image, an archive, or has
    NUL bytes; a PDF that is encrypted, damaged, or has only images; or a text in another encoding.

    Parameters
    ----------
    source : str, os.PathLike or bytes
        The path of a file, or its bytes: UTF-8 or UTF-16 with a byte order mark, UTF-8 without one, or a PDF.
    name : str, optional
        What errors call it; by default its path.

    Examples
    --------
    >>> read_document(b"\\xef\\xbb\\xbfa,b\\r\\n1,2")
    'a,b\\n1,2'
    >>> read_document(b"<html><p>Ada &amp; Grace<p>1843</html>")
    'Ada & Grace\\n1843'
    """
    if isinstance(source, bytes):
        content, name = source, name or "the document"
    else:
        content, name = Path(source).expanduser().read_bytes(), name or os.fspath(source)
    if content.startswith(b"%PDF-"):
        return _text_of_pdf(content, name)
    text = _decoded(content, name).replace("\r\n", "\n").replace("\r", "\n")
    if re.match(r"\s*<(!doctype html|html)\b", text, re.IGNORECASE):
        parser = _Html()
        parser.feed(text)
        parser.close()
        text = re.sub(r"[ \t]+\n", "\n", "".join(parser.parts)).strip()
    if not text.strip():
        raise ValueError(f"{name} is empty: there is nothing to read in it")
    return text


def document_messages(text: str, question: str | None = None) -> list[dict[str, str]]:
    """A chat about a document: the system's message, which is the text after one line, and the user's question, if any.

    All commands use this form. Programs that do, through OpenAI's interface as well, share the texts in a library.

    Examples
    --------
    >>> document_messages("k17=4829;", "k17?")[0]["content"]
    'Answer questions about this text:\\n\\nk17=4829;'
    """
    messages = [{"role": "system", "content": ABOUT_A_DOCUMENT + text}]
    return messages if question is None else [*messages, {"role": "user", "content": question}]


def _decoded(content: bytes, name: str) -> str:
    kind = next((kind for begin, kind in _BINARY.items() if content.startswith(begin)), "binary data")
    is_wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    zeros = sorted(content[i:1024:2].count(0) for i in (0, 1))
    if not is_wide and zeros[0] == 0 and zeros[1] > len(content[:1024]) / 4 and len(content) % 2 == 0:
        raise ValueError(f"{name} is UTF-16 without a byte order mark: save it as UTF-8")
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in content and not is_wide:
            raise ValueError(f"{name} is {kind}, not text: save its text, or a PDF of it, and name that") from None
        at = f"byte {content[error.start]:#04x} at {error.start}"
        raise ValueError(f"{name} is not {'UTF-16' if is_wide else 'UTF-8'}: {at}. Save it as UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{name} is {kind}, not text: it has NUL bytes")
    return text


def _text_of_pdf(content: bytes, name: str) -> str:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())  # errors say it
    try:
        texts = [page.extract_text().strip() for page in PdfReader(io.BytesIO(content)).pages]
    except (FileNotDecryptedError, DependencyError):
        raise ValueError(f"{name} is encrypted: save it without a password first") from None
    except Exception as error:  # pypdf raises whatever a damaged file makes it do
        problem = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name} is damaged ({problem}): open it in a PDF viewer and save it again") from None
    pages = [f"[page {n}]\n\n{text}\n" for n, text in enumerate(texts, 1) if text]
    if not pages:
        raise ValueError(f"{name} has no text, only images: run a text recognition (OCR) on it first")
    return "\n".join(pages)


class _Html(HTMLParser):
    _HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "title"))
    _WORDS = "a abbr b bdi bdo cite code data dfn em i kbd mark q s samp small span strong sub sup time u var wbr"
    _INLINE = frozenset(_WORDS.split())

    def __init__(self) -> None:
        super().__init__()
        self.parts = [""]
        self._n_hidden = self._n_pre = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._n_hidden += tag in self._HIDDEN
        self._n_pre += tag == "pre"
        if tag not in self._INLINE:
            self._add("\t" if tag in ("td", "th") else "\n")

    def handle_endtag(self, tag: str) -> None:
        self._n_hidden -= tag in self._HIDDEN and self._n_hidden > 0
        self._n_pre -= tag == "pre" and self._n_pre > 0
        if tag not in self._INLINE | {"td", "th"}:
            self._add("\n")

    def handle_data(self, data: str) -> None:
        if self._n_pre and not self._n_hidden:
            self.parts.append(data)
        elif not self._n_hidden:
            self._add(re.sub(r"\s+", " ", data))

    def _add(self, text: str) -> None:
        """Between blocks there is one line end, and no line begins with white space: as page/app/html.js has it."""
        text = text.lstrip() if self.parts[-1].endswith("\n") else text
        self.parts += [text] if text else []
