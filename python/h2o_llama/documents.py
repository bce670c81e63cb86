"""Documents: files as text, and the one form in which a model is asked about a text."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

from h2o_llama._extraction import extract, kind_of
from h2o_llama._internal.apart import iterate_apart
from h2o_llama._internal.atomic import replacing
from h2o_llama._markup import declared_charset, is_html, text_of_html
from h2o_llama.errors import H2OError

ABOUT_A_DOCUMENT = "Answer questions about this text:\n\n"
"""The words before a document."""

_BINARY = {
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM"), "an image"),
    **dict.fromkeys((b"\x1f\x8b", b"BZh", b"7z\xbc\xaf", b"\xfd7zXZ", b"(\xb5/\xfd"), "an archive"),
    b"RIFF": "an image or a sound",
    b"PK\x03\x04": "an archive",
    b"GGUF": "a model",
}
"""First bytes of files that are not documents; all of these have NUL bytes."""

_NAMED = (
    "txt text md markdown rst adoc org tex log srt vtt eml mht mhtml rtf docx odt epub pptx xlsx pdf html htm xhtml "
    "csv tsv json jsonl xml yaml yml toml py pyi c h cc cpp cxx hpp cu cuh rs go java kt scala swift cs js mjs ts jsx "
    "tsx css php rb pl lua r jl sh bash sql cmake diff patch ini cfg"
)
_MOST_KEPT = 1000
"""Texts of documents in the folder of a library."""

_MAIL = re.compile(
    rb"(?:[!-9;-~]+:.*\n(?:[ \t].*\n)*)*(?:mime-version|message-id|received|return-path):", re.IGNORECASE
)
"""Headers with one that only programs write."""

SUFFIXES = frozenset(f".{word}" for word in _NAMED.split())
"""Of the files that are documents in a folder of many, in any case."""


def read_document(source: str | os.PathLike[str] | bytes, name: str | None = None) -> str:
    """The text of a file, as all commands read it.

    Text of any kind (Markdown, CSV, JSON, source code) stays unchanged; HTML loses tags and hidden elements. A PDF
    is the text of its pages, each after a line "[page N]", a workbook (.xlsx) that of its rows, and a mail (.eml), or a
    page that was saved as one (.mht), its first headers, its text and the names of its attachments. .docx, .odt, .epub,
    .pptx and .rtf are read by Pandoc. Lines end with "\\n". At least one character is not white space.

    Raises OSError if the file cannot be read, ValueError if it has no text: it is empty, an image, an archive, or has
    NUL bytes; a PDF that is encrypted, damaged, or has only images; or a text in another encoding.

    Parameters
    ----------
    source : str, os.PathLike or bytes
        The path of a file, or its bytes. Text is UTF-8 or UTF-16 with a byte order mark, UTF-8 without one, or HTML
        that declares another encoding.
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
    return text_of(content, name)


def text_of(
    content: bytes, name: str, library: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> str:
    """The same. A text that takes long is kept in the folder of a library, where the next call finds it."""
    try:
        if (kind := kind_of(content)) is not None:
            text = _extracted(content, kind, library, progress)
        elif _MAIL.match(content[:65536]):
            text = _text_of_mail(content)
        else:
            text = _decoded(content)
            text = text_of_html(text) if is_html(text) else text
    except (ValueError, H2OError) as error:
        raise ValueError(f"{name} {error}") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise ValueError(f"{name} is empty: there is nothing to read in it")
    return text


def forget_texts(library: Path) -> None:
    """Forget the texts of all documents: nothing of a text may stay that its user removes."""
    shutil.rmtree(library / "documents", ignore_errors=True)


def _extracted(content: bytes, kind: str, library: Path | None, progress: Callable[[int, int], None] | None) -> str:
    kept = None if library is None else library / "documents" / hashlib.sha256(content).hexdigest()
    if kept is not None:
        with suppress(OSError, ValueError):
            text = kept.read_bytes().decode()
            os.utime(kept)
            return text
    text = ""
    for made in iterate_apart("cannot be read: the process that does it", extract, content, kind):
        if isinstance(made, ValueError):
            raise made
        if isinstance(made, str):
            text = made.encode(errors="replace").decode()  # half of a surrogate pair is not a character
        elif progress is not None:
            progress(*made)
    if kept is not None:
        with suppress(OSError):
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(kept) as file:
                file.write(text.encode())
            last_used = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in last_used[_MOST_KEPT:]:
                path.unlink()
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


def _text_of_mail(content: bytes) -> str:
    try:
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        lines = [f"{name}: {mail[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if mail[name]]
        body = mail.get_body(("plain", "html"))
        text = "" if body is None else body.get_content()
        if body is not None and body.get_content_subtype() == "html":
            text = text_of_html(text)
        lines += ["", text.strip()]
        attached = [part.get_filename() or part.get_content_type() for part in mail.iter_attachments()]
    except Exception as error:  # the parser raises whatever a bad header makes it do
        raise ValueError(f"is a damaged mail ({error})") from None
    return "\n".join([*lines, *(f"[attached, not read: {name}]" for name in attached)])


def _decoded(content: bytes) -> str:
    kind = next((kind for begin, kind in _BINARY.items() if content.startswith(begin)), "binary data")
    is_wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    zeros = sorted(content[i:1024:2].count(0) for i in (0, 1))
    if not is_wide and zeros[0] == 0 and zeros[1] > len(content[:1024]) / 4 and len(content) % 2 == 0:
        raise ValueError("is UTF-16 without a byte order mark: save it as UTF-8, such as by `iconv -f UTF-16 -t UTF-8`")
    if (charset := declared_charset(content)) is not None:
        for name in (charset, "ascii") if content.isascii() else ("utf-8", charset):  # many say another than they are
            with suppress(LookupError, ValueError):
                return content.decode(name)
        raise ValueError(f"is not {charset}, as it says: save it as UTF-8")
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in content and not is_wide:
            raise ValueError(f"is {kind}, not text: save its text, or a PDF of it, and name that") from None
        at = f"byte {content[error.start]:#04x} at {error.start}"
        helps = "" if is_wide else ", such as by `iconv -f WINDOWS-1252 -t UTF-8`"
        raise ValueError(f"is not {'UTF-16' if is_wide else 'UTF-8'}: {at}. Save it as UTF-8{helps}") from None
    if "\0" in text:
        raise ValueError(f"is {kind}, not text: it has NUL bytes")
    return text
