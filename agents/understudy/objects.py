"""Checkpoints in an object store that speaks S3, as s3://BUCKET/PLACE: fetched to a folder, and restored from there.

It needs botocore (`pip install slurm-understudy-hook[s3]`), which finds endpoint, region and credentials as everywhere:
in the environment or in ~/.aws.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .checksum import new_sum
from .file_system import OBJECT, DamagedObjectError, ObjectStoreError, is_object

CHECKSUM = "understudy-checksum"
"""Metadata that the agent's copy has."""

BLOCK_BYTES = 1 << 20

FOLDER = "UNDERSTUDY_FETCH_TO"
"""Folder into which checkpoints are fetched; by default one for temporary files."""


def is_there(address: str) -> bool:
    """True if anything lies at this place. Raises ObjectStoreError."""
    with _as_errors(address):
        client, bucket, key = _open(address)
        listed = client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
        below = client.list_objects_v2(Bucket=bucket, Prefix=f"{key}/", MaxKeys=1)
        return bool(below.get("KeyCount")) or any(one["Key"] == key for one in listed)


def fetch(address: str, files: Iterable[str] = (), folder: str = "") -> str:
    """The path of a folder, or of a file where the checkpoint is one, with these files, or all where none is named.
    Each has the checksum that was made when it was saved, where it is known. What an earlier call, or another rank of
    this node, has fetched is not fetched again; what was broken off goes on. Raises ObjectStoreError, FileNotFoundError
    where it is not in the store, and OSError.
    """
    with _as_errors(address):
        client, bucket, key = _open(address)
        names = [one for one in files if one] or list(_list(client, bucket, key))
        if not names:
            raise FileNotFoundError(f"there is nothing at {address}")
        place = _make_place(folder, f"{os.path.basename(key)}-{_digest(address)}")
        for name in names:
            of_file = key if name == "." else f"{key}/{name}"
            target = place if name == "." else os.path.join(place, _inside(name))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _fetch_file(client, {"Bucket": bucket, "Key": of_file}, target)
        return place


def _list(client: Any, bucket: str, key: str) -> Iterator[str]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key):
        for one in page.get("Contents", []):
            if one["Key"] == key:
                yield "."
            elif one["Key"].startswith(f"{key}/") and not one["Key"].endswith("/"):
                yield one["Key"][len(key) + 1 :]


def _fetch_file(client: Any, of_file: dict[str, str], target: str) -> None:
    name = f"{OBJECT}{of_file['Bucket']}/{of_file['Key']}"
    if os.path.exists(target):
        return
    with open(f"{target}.fetch", "a+b") as partial:
        fcntl.flock(partial, fcntl.LOCK_EX)  # other ranks wait, and find it
        if os.path.exists(target):
            return
        try:
            head = client.head_object(**of_file)
        except client.exceptions.ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                raise FileNotFoundError(f"{name} is not there") from None
            raise
        size, checksum = head["ContentLength"], head.get("Metadata", {}).get(CHECKSUM, "")
        known = min(os.fstat(partial.fileno()).st_size, size) if checksum else 0  # it may be of another object
        for begun in dict.fromkeys((known, 0)):
            partial.truncate(begun)
            found = new_sum(checksum.partition(":")[0]) if checksum else None
            summed = found[1] if found is not None else None
            partial.seek(0)
            if summed is not None:
                for data in iter(lambda: partial.read(BLOCK_BYTES), b""):
                    summed.update(data)
            if begun < size:
                body = client.get_object(**of_file, IfMatch=head["ETag"], Range=f"bytes={begun}-")["Body"]
                for data in body.iter_chunks(BLOCK_BYTES):
                    partial.write(data)  # it appends
                    if summed is not None:
                        summed.update(data)
            partial.flush()
            if summed is None or summed.hexdigest() == checksum.partition(":")[2]:
                break
        else:
            partial.truncate(0)
            raise DamagedObjectError(f"{name} does not have the checksum {checksum}, with which it was saved")
        os.replace(partial.name, target)


def _make_place(folder: str, name: str) -> str:
    """Only this user puts anything into the folder. In the folder for temporary files nothing else stays."""
    folder = folder or os.environ.get(FOLDER, "")
    if folder:
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, name)
    made = os.path.join(tempfile.gettempdir(), f"understudy-{os.getuid()}-{os.environ.get('SLURM_JOB_ID', '')}")
    try:
        os.mkdir(made, 0o700)
    except FileExistsError:
        found = os.lstat(made)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{made} is of another user: name a folder in {FOLDER}") from None
    for other in os.listdir(made):
        place = os.path.join(made, other)
        if os.path.isdir(place) and other != name:
            shutil.rmtree(place, ignore_errors=True)
        elif not os.path.isdir(place) and other not in (name, f"{name}.fetch"):  # a checkpoint may be one file
            with suppress(OSError):
                os.unlink(place)
    return os.path.join(made, name)


def _inside(name: str) -> str:
    """Raises ObjectStoreError for a name that leads out of its folder."""
    if os.path.isabs(name) or ".." in name.split("/"):
        raise ObjectStoreError(f"{name!r} is no name of a checkpoint's file")
    return name


def _digest(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()[:12]


def _open(address: str) -> tuple[Any, str, str]:
    """A client, the bucket, and the key of the checkpoint without a slash at its end."""
    bucket, _, key = address[len(OBJECT) :].partition("/")
    if not is_object(address) or not bucket or not key.strip("/"):
        raise ObjectStoreError(f"{address} names no bucket and place in it")
    try:
        import botocore.config
        import botocore.session
    except ImportError:
        raise ObjectStoreError("this Python has no botocore: install slurm-understudy-hook[s3]") from None
    config = botocore.config.Config(
        connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 5}
    )
    return botocore.session.get_session().create_client("s3", config=config), bucket, key.rstrip("/")


@contextmanager
def _as_errors(address: str) -> Iterator[None]:
    try:
        yield
    except (ObjectStoreError, OSError):
        raise
    except Exception as error:  # botocore's have no common class
        if not type(error).__module__.startswith("botocore"):
            raise
        raise ObjectStoreError(f"{address}: {error}") from None
