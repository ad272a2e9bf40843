"""The encoding of a text file: UTF-8, UTF-16 with a byte order mark, or Windows-1252.

The whole file decides, so that a file read in pieces is read like one read at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import BinaryIO

UTF8 = "utf-8-sig"
UTF16 = "utf-16"
WINDOWS = "cp1252"

Open = Callable[[], BinaryIO]

_PIECE = 1 << 20
_MARKS_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ARCHIVE = b"PK\x03\x04"  # .xlsx and .ods files are zip archives
_OLD_EXCEL = b"\xd0\xcf\x11\xe0"


def text_encoding(file: str, open_file: Open) -> str:
    """Return the encoding of a file as Python's name for it.

    Parameters
    ----------
    file : name of the file, for messages
    open_file : function that opens the file from its beginning

    Raises
    ------
    ValueError
        if the file is a spreadsheet, another binary file, or damaged UTF-8
    """
    with open_file() as binary:
        start = binary.read(4)
    if start.startswith((_ARCHIVE, _OLD_EXCEL)):
        raise ValueError(f"{file} is a spreadsheet or an archive, not text; save it as CSV (in Excel: CSV UTF-8).")
    if start.startswith(_MARKS_16) and _decodes(open_file, UTF16, null=False):
        return UTF16
    if _decodes(open_file, UTF8):
        return UTF8
    if not start.startswith(codecs.BOM_UTF8) and _decodes(open_file, WINDOWS, null=False) and _is_other(open_file):
        return WINDOWS
    raise ValueError(f"{file} is not text in UTF-8; save it in that encoding (in Excel: CSV UTF-8).")


def encoding_note(file: str, encoding: str) -> str | None:
    """Return a note for the user on a file whose encoding was guessed."""
    if encoding != WINDOWS:
        return None
    return f"{file} is not UTF-8 and was read as Windows-1252; if letters look wrong, save it as CSV UTF-8."


def _decodes(open_file: Open, encoding: str, *, null: bool = True) -> bool:
    """Whether a file can be decoded, and has no null characters unless they are allowed."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in _pieces(open_file):
            if "\0" in decoder.decode(piece) and not null:
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _is_other(open_file: Open) -> bool:
    """Whether most bytes beyond ASCII are not UTF-8. Otherwise the file is UTF-8 with a few damaged letters."""
    decoder = codecs.getincrementaldecoder(UTF8)(errors="replace")
    wrong = beyond = 0
    for piece in _pieces(open_file):
        text = decoder.decode(piece)
        wrong += text.count("\ufffd")
        beyond += len(text) - len(text.encode("ascii", "ignore"))
    wrong += len(decoder.decode(b"", final=True))  # a letter that was cut off
    return 2 * wrong > beyond


def _pieces(open_file: Open) -> Iterator[bytes]:
    with open_file() as binary:
        while piece := binary.read(_PIECE):
            yield piece
