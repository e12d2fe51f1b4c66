"""Files and directories that the agent makes: their modes do not depend on the umask, and nothing that another user has
put in their place is used.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE_BYTES_MAX = 16 * 2**20


def create_directory(path: Path, mode: int = 0o755) -> None:
    """Creates it with this mode, and its parents so that all users can pass. One that is there stays as it is."""
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    for one in reversed(missing):
        try:
            one.mkdir(0o700)
        except FileExistsError:
            continue
        one.chmod(mode if one == path else 0o755)


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Does the same as create_directory. One that is there must belong to root or to the agent's user, and no other
    user may write there. Raises OSError.
    """
    create_directory(path, mode)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise OSError(f"{path} is a symbolic link; name its target in the agent's configuration")
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{path} is no directory; move it, or name another one in the agent's configuration")
    _check_owner(path, found)
    others = stat.S_IWOTH if found.st_gid in (0, os.getegid()) else stat.S_IWGRP | stat.S_IWOTH
    if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
        raise OSError(f"other users can write to {path}; chmod go-w {path}")


def replace_file(
    path: Path, content: bytes, mode: int = 0o600, *, durable: bool = False, owner: tuple[int, int] | None = None
) -> None:
    """Complete, or as it was before; `durable`: on the disk when it returns. `owner`: user and group, else those of
    this process. Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.new")
    try:
        descriptor = _create(unfinished, mode)
    except FileNotFoundError:
        make_directory(path.parent)
        descriptor = _create(unfinished, mode)
    except FileExistsError:  # left by an agent that was killed
        unfinished.unlink()
        descriptor = _create(unfinished, mode)
    try:
        try:
            _write(descriptor, content)
            if owner is not None:
                os.fchown(descriptor, *owner)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def read_file(path: Path) -> bytes:
    """Reads at most FILE_BYTES_MAX. Raises OSError: also for a symbolic link, and for a file of another user."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _check_file(path, os.fstat(file.fileno()))
        return file.read(FILE_BYTES_MAX)


def append_to_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """The text is on the disk when it returns. Creates the file. Raises OSError, as read_file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "ab", buffering=0) as file:
        found = os.fstat(file.fileno())
        _check_file(path, found)
        os.fchmod(file.fileno(), mode)
        try:
            _write(file.fileno(), content)
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), found.st_size)  # no half of a line
            raise


def _create(path: Path, mode: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(descriptor, mode)
    return descriptor


def _write(descriptor: int, content: bytes) -> None:
    """Nothing is buffered: what a full disk refuses is not written later."""
    while content:
        content = content[os.write(descriptor, content) :]


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no plain file")
    _check_owner(path, found)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise OSError(f"{path} belongs to user {found.st_uid}, not to root or the agent's user; move it away")
