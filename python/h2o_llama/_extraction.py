"""The text of PDF and office files, by libraries that no hostile file should meet in the caller's process."""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from h2o_llama._markup import text_of_html

Made = tuple[int, int] | str | ValueError
"""Pages that were read and all pages; at the end the text, or why there is none."""

_SECONDS, _BYTES = 600, 4 << 30
"""What a document may take."""

_IMAGES = "has no text, only images: run a text recognition (OCR) on"

_OFFICE = {
    b"xl/workbook.xml": "xlsx",
    b"ppt/presentation.xml": "pptx",
    **dict.fromkeys((b"word/document.xml", b"[Content_Types].xml"), "docx"),
}
"""Office's kinds, by the name of a part, which stands in a damaged file as well."""


def kind_of(content: bytes) -> str | None:
    """The kind of a file that libraries read; None for others.

    Raises ValueError, without its name, for office files that none reads.
    """
    if content.startswith(b"%PDF-"):
        return "pdf"
    if content.startswith(b"{\\rtf"):
        return "rtf"
    if content.startswith(b"\xd0\xcf\x11\xe0"):
        raise ValueError("is an Office file from before 2007, or has a password: save it as .docx, .xlsx or .pptx")
    if not content.startswith(b"PK\x03\x04"):
        return None
    type = content[30:100]  # EPUB and OpenDocument say it first, not compressed
    if type.startswith(b"mimetypeapplication/epub+zip"):
        return "epub"
    if type.startswith(b"mimetypeapplication/vnd.oasis.opendocument."):
        if type[43:47] == b"text":
            return "odt"
        raise ValueError("is an OpenDocument file without a text, such as a table: save it as .xlsx, or a PDF of it")
    return next((kind for name, kind in _OFFICE.items() if name in content), None)


def extract(content: bytes, kind: str) -> Iterator[Made]:
    """Runs in a process of its own, which a document cannot fill or keep for ever."""
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (_BYTES, _BYTES))
    try:
        if kind == "pdf":
            yield from _of_pdf(content)
        else:
            yield _of_sheets(content) if kind == "xlsx" else _of_pandoc(content, kind)
    except ValueError as error:
        yield error
    except (ImportError, OSError):  # pypandoc looks for the program
        yield ValueError(f"is .{kind}, which needs two more packages: pip install pypandoc-binary openpyxl")
    except Exception as error:  # libraries raise whatever a damaged file makes them do
        problem = " ".join(str(error).split()) or type(error).__name__
        yield ValueError(f"is damaged ({problem:.200}): open it in its program and save it again")


def _of_pdf(content: bytes) -> Iterator[Made]:
    from pypdf import PdfReader
    from pypdf.errors import FileNotDecryptedError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())  # errors say it
    pages = []
    try:
        found = PdfReader(io.BytesIO(content)).pages
        for n, page in enumerate(found, 1):
            text = page.extract_text().strip()
            pages += [f"[page {n}]\n\n{text}\n"] if text else []
            yield n, len(found)
    except FileNotDecryptedError:
        raise ValueError("is encrypted: save it without a password first") from None
    if not pages:
        raise ValueError(f"{_IMAGES} it first: `ocrmypdf IN.pdf OUT.pdf`")
    yield "\n".join(pages)


def _of_sheets(content: bytes) -> str:
    """The rows of each sheet after its title, with a tab between cells; of a formula its last result."""
    from openpyxl import load_workbook

    sheets = []
    for sheet in load_workbook(io.BytesIO(content), read_only=True, data_only=True).worksheets:
        rows = [*filter(None, ("\t".join(map(_cell, row)).rstrip() for row in sheet.iter_rows(values_only=True)))]
        sheets += ["\n".join([f"[sheet {sheet.title}]", "", *rows, ""])] if rows else []
    return "\n".join(sheets)


def _cell(value: object) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text.removesuffix(" 00:00:00") if isinstance(value, datetime) else text


def _of_pandoc(content: bytes, kind: str) -> str:
    """It fetches nothing that a document names, neither files nor addresses. Its page begins with title and authors."""
    from pypandoc import convert_text

    limits = ["+RTS", f"-M{_BYTES >> 20}m", "-RTS"]
    options = ["--standalone", "--metadata=pagetitle:-", "--wrap=none", *limits]
    html = convert_text(content, "html", kind, sandbox=True, extra_args=options)
    html = re.sub(r'<head>.*?</head>|<a [^>]*role="doc-backlink">.*?</a>', "", html, flags=re.DOTALL)
    html = re.sub(r"<t[dh]\b.*?</t[dh]>", lambda cell: cell[0].replace("</p>\n<p>", " "), html, flags=re.DOTALL)
    text = text_of_html(html)
    if not text and "<img" in html:
        raise ValueError(f"{_IMAGES} a PDF of it first: `ocrmypdf IN.pdf OUT.pdf`")
    return text
