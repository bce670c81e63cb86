"""Small PDF files, as a text of their objects: what a reader needs to find text, and nothing else."""

from collections.abc import Sequence

HELVETICA = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"

CHINESE = (
    "<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /GBK-EUC-H /DescendantFonts [<< /Type /Font"
    " /Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1)"
    " /Supplement 2 >> /FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 4 >> >>] >>"
)
"""A font that is not in the file. Only a table of the reader's says which characters its codes are."""

ENCRYPTED = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{'00' * 32}> /U <{'00' * 32}> /P -4 >> /ID [<00> <00>]"
"""For the trailer: no password fits."""


def pdf(pages: Sequence[str], font: str = HELVETICA, encoding: str = "ascii", trailer: str = "") -> bytes:
    """A file with a page for each text; a page without text has a rectangle."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} /MediaBox [0 0 600 800] >>",
        font,
    ]
    for i, text in enumerate(pages):
        lines = " ".join(f"<{line.encode(encoding).hex()}> Tj T*" for line in text.splitlines())
        drawn = f"BT /F 12 Tf 14 TL 50 750 Td {lines} ET" if lines else "50 50 100 100 re f"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /Contents {5 + 2 * i} 0 R /Resources << /Font << /F 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    data, places = "%PDF-1.4\n", []
    for i, content in enumerate(objects, 1):
        places.append(len(data))
        data += f"{i} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    data += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{data.index('xref')}\n%%EOF\n"
    return data.encode("ascii")
