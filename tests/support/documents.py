"""Files of documents: the texts in them, or why they have none."""

from collections.abc import Sequence
from datetime import date
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openpyxl
import pypandoc
from pypdf import PdfWriter

from pdfs import CHINESE, ENCRYPTED, pdf

PAGES = ["one\ntwo", "", "three"]
ATTACHED = b"Content-Disposition: attachment; filename=offer.pdf\nContent-Transfer-Encoding: base64"


def mail(headers: dict[str, str], body: bytes) -> bytes:
    lines = ["MIME-Version: 1.0", "Subject: =?utf-8?q?G=C3=A4nse?=", "Content-Type: text/plain; charset=utf-8"]
    return (
        "\n".join([*lines[: 3 - ("Content-Type" in headers)], *map(": ".join, headers.items()), "\n"]).encode() + body
    )


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
IMAGE = f"<img src='data:image/png;base64,{PIXEL}'>"
CELL = "<table><tr><td>1</td><td><p>2</p><p>3</p></td><td>4</td></tr></table>"


def office(kind: str, *rows: Any, text: str = "", about: Sequence[str] = ()) -> bytes:
    """A small file, as other programs write it."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/a.{kind}"
        if kind == "xlsx":
            book = openpyxl.Workbook()
            book.active.title = "Rent"
            for row in rows:
                book.active.append(row)
            book.save(path)
        else:
            options = ["--standalone", "--epub-title-page=false", *(f"--metadata={word}" for word in about)]
            pypandoc.convert_text(text, kind, "html", outputfile=path, extra_args=options)
        return Path(path).read_bytes()


def encrypted(content: bytes) -> bytes:
    """By AES, without a password to read it."""
    writer = PdfWriter(clone_from=BytesIO(content))
    writer.encrypt("", "owner", algorithm="AES-256")
    writer.write(written := BytesIO())
    return written.getvalue()


READ: dict[str, tuple[bytes, str]] = {
    "bom.txt": (b"\xef\xbb\xbfa\r\nb\rc", "a\nb\nc"),
    "wide.txt": ("ä\r\nb".encode("utf-16"), "ä\nb"),
    "big-endian.csv": (b"\xfe\xff" + "ä,b".encode("utf-16-be"), "ä,b"),
    "a.json": (b'{"a": "<p>"}', '{"a": "<p>"}'),
    "a.html": (
        b"<!DOCTYPE html><head><title>x</title></head><style>y</style><h1>A  &amp;\nB</h1><p>c<b>d</b></p>"
        b"<pre>e\n  f</pre><table><tr><td>1<td>2</table><script>z</script>",
        "x\nA & B\ncd\ne\n  f\n1\t2",
    ),
    "hidden.html": (
        b"<body><p hidden>a<p>b<div style='color: red; Display:none'>c<div>d</div><br>e</div><img hidden>f"
        b"<ul><li style=display:none>g<li>h</ul><span>i</span>",
        "b\nf\n- h\ni",
    ),
    "lists.html": (
        b"<html><ol><li><p>a <del>b</del></p><ol type=a start=2><li>c<li> d</ol><li value=9>e<ul><li>f</ul>"
        b"<li></ol><ol type=I><li>g</ol>h",
        "1. a b\nb. c\nc. d\n2. e\n- f\nI. g\nh",
    ),
    "saved.html": (b"<!-- saved from url=(9)x -->\n<html><p>A\xe9<meta charset=Latin1>", "A\xe9"),
    "a.xhtml": (
        b"<?xml version='1.0' encoding='windows-1251'?><html><head><script src='x'/></head>"
        b"<body><p>\xcf<br/></p><table><tr><td><p>1</p></td><td><p>2</p></td></tr></table></body></html>",
        "П\n1\t2",
    ),
    "a.eml": (mail({"Content-Transfer-Encoding": "base64"}, b"R8OkbnNlCg=="), "Subject: Gänse\n\nGänse"),
    "a.mht": (mail({"Content-Type": "text/html"}, b"<p>a<p>b"), "Subject: Gänse\n\na\nb"),
    "bits.eml": (
        mail({"Content-Type": "multipart/mixed; boundary=B"}, b"--B\n\nText\n--B\n" + ATTACHED + b"\n\nR8Ok\n--B--"),
        "Subject: Gänse\n\nText\n[attached, not read: offer.pdf]",
    ),
    **{
        f"a.{kind}": (
            office(
                kind,
                text="<h2>Rent &amp; <b>fee</b></h2><table><tr><td>1</td><td>2</td></tr></table>",
                about=("title:Lease", "author:Ann", "date:2021"),
            ),
            f"Lease\nAnn\n2021\n{page}Rent & fee\n1\t2",
        )
        for kind, page in {"docx": "", "odt": "", "epub": "Lease\n", "pptx": "", "rtf": ""}.items()
    },
    "cells.docx": (office("docx", text=CELL), "1\t2 3\t4"),
    "a.xlsx": (office("xlsx", [1, None, "A\nB"], [], [date(2021, 3, 4)]), "[sheet Rent]\n\n1\t\tA B\n2021-03-04\n"),
    "b.pdf": (
        pdf(["中文"], CHINESE, "gbk"),
        "[page 1]\n\n中文\n",
    ),  # a file of the library has the meaning of its codes
    "a.pdf": (pdf(PAGES), "[page 1]\n\none\ntwo\n\n[page 3]\n\nthree\n"),
    "aes.pdf": (encrypted(pdf(["one"])), "[page 1]\n\none\n"),
}
"""Files, and the texts in them."""

UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty.txt": (b" \n", "is empty"),
    "nul.txt": (b"a\0b", "is binary data, not text"),
    "wide.txt": ("Gänse".encode("utf-16-le"), "is UTF-16 without a byte order mark"),
    "a.png": (b"\x89PNG\r\n\x1a\n\0\0", "is an image, not text"),
    "a.zip": (b"PK\x03\x04\0\xff", "is an archive, not text"),
    "cut.docx": (office("docx", text=CELL)[:-999], "is damaged ("),
    "cut.epub": (office("epub", text=CELL)[:-999], "is damaged ("),
    "image.docx": (office("docx", text=IMAGE), "has no text, only images"),
    "blank.xlsx": (office("xlsx"), "is empty"),
    "a.ods": (office("odt", text=CELL).replace(b"text", b"spreadsheet", 1), "is an OpenDocument file without a text"),
    "a.doc": (b"\xd0\xcf\x11\xe0\0", "is an Office file from before 2007"),
    "latin.html": (b"<html><meta charset=big5>\xff", "is not big5, as it says"),
    "latin.txt": ("Gänse".encode("latin-1"), "is not UTF-8: byte 0xe4 at 1"),
    "locked.pdf": (pdf(["a"], trailer=ENCRYPTED), "is encrypted"),
    "scan.pdf": (pdf([""]), "has no text, only images"),
    "cut.pdf": (pdf(["a"])[:40], "is damaged"),
}
"""Files without a text, and the reason in the error."""
