"""Finding the files of a data set: in the folder itself, in nested folders, and in a downloaded archive."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from studies.images.readers import Part
from studies.images.sources import SOURCES, Layout, Source

Found = tuple[Layout, list[Path]]
"""A layout, and the paths of its files."""
DEPTH = 2
"""How many levels of nested folders are searched."""
ENDINGS = (".tar.gz", ".tgz", ".tar", ".zip")


def checked_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a path, with ``~`` expanded; a missing folder or a file in its place is an error."""
    path = Path(folder).expanduser()
    if path.is_file():
        raise ValueError(
            f"folder must be the folder that holds the files; got the file {path}. Give its folder, {path.parent}."
        )
    if not path.is_dir():
        raise FileNotFoundError(f"folder must be an existing folder; got {path}, which does not exist.")
    return path


def find_files(source: Source, folder: Path, part: Part) -> Found | None:
    """The first layout with all files of a part: in the folder, in its usual subfolders, or in nested folders.

    Archives are often unpacked into a further folder. Folders with the names of other data sets are left out, because
    MNIST and Fashion-MNIST have files of the same names.
    """
    for level in _levels(folder, _names_of_others(source)):
        for layout in source.layouts:
            places = dict.fromkeys(inside / name for inside in level for name in (*layout.folders, ""))
            found = [paths for place in places if (paths := _files(layout, place, part)) is not None]
            # The folder itself may hold the files more than once, for example in MNIST/raw too: the first one counts.
            if len(found) > 1 and level != [folder]:
                listed = ", ".join(str(paths[0].parent) for paths in found)
                raise ValueError(f"{source.title} was found in several folders: {listed}. Give one of them.")
            if found:
                return layout, found[0]
    return None


def find_archive(source: Source, folder: Path) -> Path | None:
    """A downloaded archive of the data set that is still packed."""
    paths = (folder / f"{stem}{ending}" for stem in source.packed for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.tar``, ``.tar.gz``, ``.tgz`` or ``.zip`` file; no file can be written outside of the folder."""
    if archive.suffix == ".zip":
        shutil.unpack_archive(archive, folder)
    else:
        shutil.unpack_archive(archive, folder, "tar" if archive.suffix == ".tar" else "gztar", filter="data")


def missing_files(source: Source, folder: Path, part: Part) -> str:
    """A sentence for files that were not found: what is missing, what is expected, and where to get it."""
    which = "training" if part == "train" else "test"
    begin = f"The {which} part of {source.title} was not found in {folder}"
    urls = [archive.urls[0] for archive in source.archives]
    names = f" (the files {', '.join(url.rpartition('/')[2] for url in urls)})" if len(urls) > 1 else ""
    published = urls[0] if len(urls) == 1 else urls[0].rpartition("/")[0] + "/" + names
    how = f"Download the files from {published}, or let load_images(…, download=True) or --download fetch them."
    if (partial := _nearest(source, folder, part)) is not None:
        place, absent = partial
        return f"{begin}: {place} lacks {', '.join(absent)}. {how}"
    ways = []
    for layout in source.layouts:
        inside = f"{layout.folders[0]}/" if layout.folders else ""
        files = layout.files(part)
        text = f"{inside}{{{','.join(files)}}}" if len(files) > 1 else f"{inside}{files[0]}"
        keys = f" with the arrays x_{part} and y_{part}" if files[0].endswith(".npz") else ""
        ways.append(text + keys)
    return f"{begin}. Expected files there: {'; or '.join(ways)}. {how}"


def _nearest(source: Source, folder: Path, part: Part) -> tuple[Path, list[str]] | None:
    """The place with some, but not all files of a layout, and the files that it lacks; None without such a place."""
    for level in _levels(folder, _names_of_others(source)):
        for layout in source.layouts:
            for place in (inside / name for inside in level for name in (*layout.folders, "")):
                both = layout.train + layout.test
                absent = [name for name in layout.files(part) if _existing(place / name, name) is None]
                if absent and any(_existing(place / name, name) is not None for name in both):
                    return place, absent
    return None


def _files(layout: Layout, place: Path, part: Part) -> list[Path] | None:
    paths = [_existing(place / name, name) for name in layout.files(part)]
    present = [path for path in paths if path is not None]
    return present if len(present) == len(paths) else None


def _existing(path: Path, name: str) -> Path | None:
    """The path itself or its compressed form, if there is one; a name with a slash at its end is that of a folder."""
    if name.endswith("/"):
        return path if path.is_dir() else None
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


def _levels(folder: Path, others: set[str]) -> Iterator[list[Path]]:
    """The folder itself, then its subfolders, then theirs."""
    level = [folder]
    yield level
    for _ in range(DEPTH):
        level = [inside for outside in level for inside in _subfolders(outside) if inside.name.lower() not in others]
        yield level


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    except OSError:  # a folder that may not be read
        return []


def _names_of_others(source: Source) -> set[str]:
    """The names of folders that belong to other data sets, in lower case."""

    def names(own: Source) -> set[str]:
        return {name.partition("/")[0].lower() for layout in own.layouts for name in layout.folders}

    return set().union(*(names(other) for other in SOURCES.values())) - names(source)
