"""Downloading the published files and checking them."""

from __future__ import annotations

import hashlib
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from studies.images.finding import ENDINGS, unpack
from studies.images.sources import Archive

_CHUNK = 1 << 20


def download_archives(archives: Iterable[Archive], folder: Path) -> None:
    """Fetch each archive into ``folder``, verify its MD5 sum, and unpack ``.tar.gz`` and ``.zip`` files there.

    A complete archive that is already there is not fetched again.
    """
    for archive in archives:
        path = folder / archive.folder / archive.urls[0].rpartition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.is_file() and _md5(path) == archive.md5):
            _fetch(archive, path)
        if path.name.endswith(ENDINGS):
            unpack(path, path.parent)


def _fetch(archive: Archive, path: Path) -> None:
    failures = []
    partial = path.with_name(path.name + ".part")
    for url in archive.urls:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, partial.open("wb") as file:
                shutil.copyfileobj(answer, file, _CHUNK)
        except (urllib.error.URLError, OSError) as error:
            failures.append(f"{url}: {error}")
            continue
        if (found := _md5(partial)) == archive.md5:
            partial.replace(path)
            return
        failures.append(f"{url}: its MD5 sum must be {archive.md5}; got {found}")
    partial.unlink(missing_ok=True)
    raise OSError(
        f"{path.name} could not be downloaded ({'; '.join(failures)}). Try again, or put the file into {path.parent} "
        "by hand."
    )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
