"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; it replaces `path` if the block ends without an error.

    If `path` is a link, its target is replaced. Permissions follow the umask. A device or pipe is written to directly.
    Raises a ValueError if the file cannot be written.
    """
    try:
        yield from _whole(Path(path))
    except PermissionError:
        raise ValueError(f"{path} cannot be written: no permission. Give another place.") from None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.errno is None:
            raise  # a sentence of ours about an input file, which the block reads
        reason = error.strerror or error
        raise ValueError(f"{path} cannot be written: {reason}. Free some space or give another place.") from None


def _whole(path: Path) -> Iterator[Path]:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file in it.")
    if path.exists() and not path.is_file():
        yield path  # a device or a pipe cannot be replaced
        return
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise ValueError(f"{path} is a link that leads to itself; remove it, or give another place.")
    if not target.parent.is_dir():
        raise ValueError(f"The folder {target.parent} does not exist; make it first, or give another place.")
    unfinished = target.with_name(f".{target.name[:40]}.{uuid4().hex[:8]}.part")
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # its mode follows the umask
    try:
        yield unfinished
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_text_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write text in UTF-8, whole or not at all."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def usable_folder(out: str | Path) -> Path:
    """Make a folder and check that it can be written to, so that a long run does not fail at its end."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be written to; got {folder} ({error.strerror}).") from error
    return folder
