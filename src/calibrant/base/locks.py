"""Locks between processes. The system releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def try_lock(path: Path, *, patience: float = 0.0) -> Iterator[bool]:
    """Take a lock if it is free within ``patience`` seconds. Yields whether it was. Its file is removed at the end."""
    from filelock import FileLock, Timeout  # a tenth of a second

    file_lock = FileLock(path, timeout=patience)
    try:
        file_lock.acquire(poll_interval=0.005)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise ValueError(
            f"The file system of {path.parent} cannot lock files ({error}); choose a folder on another one."
        ) from error
    try:
        yield True
    finally:
        # Removed while still locked: a waiting process notices that the file is gone and creates a new one.
        with suppress(OSError):
            path.unlink()
        file_lock.release()


@contextmanager
def lock(path: Path, *, patience: float = 60.0) -> Iterator[None]:
    """Wait for a lock, at most ``patience`` seconds, and hold it in the ``with`` block."""
    with try_lock(path, patience=patience) as mine:
        if not mine:
            raise TimeoutError(f"Another process has held {path} for {patience:g} s; end that process and try again.")
        yield
