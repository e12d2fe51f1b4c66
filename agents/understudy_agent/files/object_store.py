"""Checkpoints in an object store that speaks S3: files are copied there, read back and deleted, as their owner.

Endpoint, region and credentials are the user's own, as botocore finds them in ~/.aws. Programs that this configuration
names are not started: the process may start none.

An object has the checksum of its file beside it, as metadata: a rank that fetches it verifies it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from understudy_agent.files.announced import BLOCK_BYTES, Finding, Pace, open_announced, sum_named, value_of
from understudy_agent.files.delete import PIN

SCHEME = "s3://"

CHECKSUM = "understudy-checksum"
"""The metadata's name; `understudy.objects` reads it."""

PART_BYTES = 16 << 20
PARTS_MAX = 10_000
"""S3's own."""

TIMES_COPIED = 2
"""An upload that was begun for another content at the same place is found out at its end."""


class Found(NamedTuple):
    size_bytes: int
    checksum: str  # of the file, as its writer made it; empty: not known


class Place:
    """A checkpoint's: a bucket, and what the keys of its objects begin with."""

    def __init__(self, address: str) -> None:
        """Raises Finding."""
        self.address = address
        self.bucket, _, self._prefix = address.removeprefix(SCHEME).rstrip("/").partition("/")
        if not self.bucket or not self._prefix:
            raise Finding("unseen", f"{address} names no bucket and place in it")
        self.client = _client()

    def key(self, file: str) -> str:
        """ "." is the checkpoint itself, where it is one file."""
        return self._prefix if file == "." else f"{self._prefix}/{file}"

    def name(self, file: str) -> str:
        return f"{SCHEME}{self.bucket}/{self.key(file)}"

    def find(self, key: str) -> Found | None:
        """None: there is no such object. Raises Finding where there is no such bucket."""
        try:
            head = self.client.head_object(Bucket=self.bucket, Key=key)
        except self.client.exceptions.ClientError as error:
            if _status(error) != 404:
                raise
            self.client.head_bucket(Bucket=self.bucket)
            return None
        return Found(head["ContentLength"], head.get("Metadata", {}).get(CHECKSUM, ""))


def read(task: dict[str, Any], pace: Pace) -> str:
    """Raises Finding for what is not what was written."""
    with _as_findings(task["path"]):
        place, whole, proven = Place(task["path"]), task["whole"], True
        for one in task["files"]:
            proven = _read(place, one, whole, pace) and proven
        if not whole:
            return "sampled"
        return "verified" if proven else "read"


def copy(task: dict[str, Any], pace: Pace) -> str:
    """The files of `path` to `copy_to`. What was broken off goes on with its first part that is not there. Raises
    Finding.
    """
    with _as_findings(task["copy_to"]):
        place = Place(task["copy_to"])
        for one in task["files"]:
            _copy_file(Path(task["path"]) / one["file"], place, one, pace)
    return "copied"


def _copy_file(source: Path, place: Place, announced: dict[str, Any], pace: Pace) -> None:
    key, wanted = place.key(announced["file"]), Found(announced["size_bytes"], announced["checksum"])
    if wanted.checksum and place.find(key) == wanted:
        return
    reading = open_announced(str(source), announced)
    try:
        for _ in range(TIMES_COPIED):
            if wanted.size_bytes <= PART_BYTES:
                _put(reading, place, announced, pace)
            else:
                _put_in_parts(reading, place, announced, pace)
            if place.find(key) == wanted:
                return
        raise Finding("unseen", f"{place.name(announced['file'])} is not what was written there")
    finally:
        os.posix_fadvise(reading, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(reading)


def _put(reading: int, place: Place, announced: dict[str, Any], pace: Pace) -> None:
    data = _read_exactly(reading, 0, announced["size_bytes"], announced)
    pace.note(len(data))
    update, value = sum_named(announced["checksum"]) or (lambda _: None, lambda: "")
    update(data)
    _check(value(), announced)
    place.client.put_object(
        Bucket=place.bucket, Key=place.key(announced["file"]), Body=data, Metadata={CHECKSUM: announced["checksum"]}
    )


def _put_in_parts(reading: int, place: Place, announced: dict[str, Any], pace: Pace) -> None:
    key, size = place.key(announced["file"]), announced["size_bytes"]
    length = max(PART_BYTES, -(-size // PARTS_MAX))
    upload = {"Bucket": place.bucket, "Key": key}
    begun = _unfinished(place, key)
    parts = _parts(place, {**upload, "UploadId": begun}) if begun else {}
    upload["UploadId"] = (
        begun or place.client.create_multipart_upload(**upload, Metadata={CHECKSUM: announced["checksum"]})["UploadId"]
    )
    update, value = sum_named(announced["checksum"]) or (lambda _: None, lambda: "")
    for number, at in enumerate(range(0, size, length), 1):
        data = _read_exactly(reading, at, min(length, size - at), announced)
        update(data)
        tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        if parts.get(number) != tag:
            parts[number] = place.client.upload_part(**upload, PartNumber=number, Body=data)["ETag"]
        pace.note(len(data))
    try:
        _check(value(), announced)
    except Finding:
        place.client.abort_multipart_upload(**upload)
        raise
    count = -(-size // length)
    done = [{"PartNumber": number, "ETag": parts[number]} for number in range(1, count + 1)]
    place.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": done})


def _unfinished(place: Place, key: str) -> str:
    """The newest upload to this key that was broken off; empty: there is none."""
    listed = place.client.list_multipart_uploads(Bucket=place.bucket, Prefix=key).get("Uploads", [])
    own = [one for one in listed if one["Key"] == key]
    return str(max(own, key=lambda one: one["Initiated"])["UploadId"]) if own else ""


def _parts(place: Place, upload: dict[str, str]) -> dict[int, str]:
    """The tag of each, by number."""
    pages = place.client.get_paginator("list_parts").paginate(**upload)
    return {one["PartNumber"]: one["ETag"] for page in pages for one in page.get("Parts", [])}


def _read_exactly(reading: int, at: int, length: int, announced: dict[str, Any]) -> bytes:
    pieces = []
    end = at + length
    while at < end:
        data = os.pread(reading, min(BLOCK_BYTES, end - at), at)
        if not data:
            raise Finding("bad", f"{announced['file']} ends at {at}: it is being written")
        pieces.append(data)
        at += len(data)
    return b"".join(pieces)


def _check(value: str, announced: dict[str, Any]) -> None:
    if value != value_of(announced):
        raise Finding("bad", f"{announced['file']} has the checksum {value}, {announced['checksum']} was announced")


def _read(place: Place, announced: dict[str, Any], whole: bool, pace: Pace) -> bool:
    """True if its content is proven. Raises Finding."""
    key, name = place.key(announced["file"]), place.name(announced["file"])
    found = place.find(key)
    if found is None:
        raise Finding("lost", f"{name} is not there")
    if found.size_bytes != announced["size_bytes"]:
        raise Finding("bad", f"{name} has {found.size_bytes} bytes, {announced['size_bytes']} were announced")
    if found.checksum != announced["checksum"]:
        raise Finding("bad", f"{name} has the checksum {found.checksum or 'of no file'}: it was written again")
    if not whole:
        return False
    update, value = sum_named(announced["checksum"]) or (lambda _: None, lambda: "")
    length = 0
    body = place.client.get_object(Bucket=place.bucket, Key=key)["Body"]
    for data in body.iter_chunks(BLOCK_BYTES):
        update(data)
        length += len(data)
        pace.note(len(data))
    if length != announced["size_bytes"]:
        raise Finding("bad", f"{name} ends at {length}")
    if value() != value_of(announced):
        raise Finding("bad", f"{name} has the checksum {value()}, {announced['checksum']} was announced")
    return bool(value())


def delete(task: dict[str, Any]) -> str:
    """Does the same as `delete.py` with files. Raises Finding."""
    with _as_findings(task["path"]):
        return _delete(Place(task["path"]), task["files"], not task["only_look"])


def _delete(place: Place, announced: list[dict[str, Any]], also: bool) -> str:
    for pin in (place.key(PIN), place.key(".") + PIN):
        if place.find(pin) is not None:
            raise Finding("unseen", f"{SCHEME}{place.bucket}/{pin} pins it")
    there = []
    for one in announced:
        found = place.find(place.key(one["file"]))
        if found is None and not also:
            raise Finding("lost", f"{place.name(one['file'])} is not there")
        if found is not None and found != Found(one["size_bytes"], one["checksum"]):
            raise Finding("suspect", f"{place.name(one['file'])} is not what was announced")
        if found is not None:
            there.append(place.key(one["file"]))
    if not also:
        return "deletable"
    for key in there:
        place.client.delete_object(Bucket=place.bucket, Key=key)
    return "deleted"


_known: list[Any] = []
"""botocore's descriptions of S3, where they were read before the rights of root were given up."""


def prepare(task: dict[str, Any]) -> None:
    """Imports what the task needs, before the rights of root are given up: users need not be able to read the agent's
    Python. Reads nothing that is a user's.
    """
    if not any(task.get(name, "").startswith(SCHEME) for name in ("path", "copy_to")):
        return
    with contextlib.suppress(Finding):
        session = _session()
        for name in ("config_file", "credentials_file"):
            session.set_config_variable(name, os.devnull)
        no_user = {"aws_access_key_id": "-", "aws_secret_access_key": "-"}
        client = session.create_client("s3", "local", endpoint_url="http://localhost", config=_config(), **no_user)
        client.get_paginator("list_parts")
        _known.append(session.get_component("data_loader"))


def _client() -> Any:
    """Raises Finding."""
    session = _session()
    verify = None
    if _known:
        session.register_component("data_loader", _known[0])
        if not session.get_config_variable("ca_bundle") and not os.access(_certificates(), os.R_OK):
            verify = ssl.get_default_verify_paths().cafile
    return session.create_client("s3", config=_config(), verify=verify)


def _session() -> Any:
    """Raises Finding."""
    try:
        import botocore.session
    except ImportError:
        raise Finding("unseen", "the agent's Python has no botocore: install slurm-understudy[s3]") from None
    return botocore.session.get_session()


def _config() -> Any:
    import botocore.config

    return botocore.config.Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 5})


def _certificates() -> str:
    """Certificates of authorities, that botocore brings or finds."""
    import botocore.httpsession

    return str(botocore.httpsession.get_cert_path(True))


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextlib.contextmanager
def _as_findings(address: str) -> Iterator[None]:
    """What the store or the network refuses is a result, and says nothing of the checkpoint."""
    try:
        yield
    except (Finding, MemoryError, OSError):
        raise
    except Exception as error:  # botocore's have no common class
        if not type(error).__module__.startswith("botocore"):
            raise
        raise Finding("unseen", f"{address}: {error}") from None
