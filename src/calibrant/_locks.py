"""Locks between processes. The system releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
"""Error codes of the system while another process holds the lock."""
PAUSE = 0.005


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Take a lock if it is free. Yields whether it was. The lock is a file, which is removed at the end."""
    handle = _take(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            # Removed while still locked: a waiting process notices that the file is gone and creates a new one.
            with suppress(OSError):
                path.unlink()
            os.close(handle)


@contextmanager
def lock(path: Path, *, patience: float = 60.0) -> Iterator[None]:
    """Wait for a lock, at most ``patience`` seconds, and hold it in the ``with`` block."""
    end = time.monotonic() + patience
    while True:
        with try_lock(path) as mine:
            if mine:
                yield
                return
        if time.monotonic() > end:
            raise TimeoutError(f"Another process has held {path} for {patience:g} s; end that process and try again.")
        time.sleep(PAUSE)


def _take(path: Path) -> int | None:
    """The handle of the locked file, or None if another process holds the lock."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:
            if sys.platform == "win32":  # the file is being removed
                return None
            raise
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            if error.errno in HELD:
                return None
            raise ValueError(
                f"The file system of {path.parent} cannot lock files ({error}); choose a folder on another one."
            ) from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # the previous holder removed the file between open and lock: try again
