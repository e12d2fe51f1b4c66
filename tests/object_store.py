"""A real server program that speaks S3: moto's, as a process of its own on a free port."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session

from tests.testbed.configuration import free_ports

BUCKET, REGION = "runs", "eu-central-1"


class ObjectStore:
    """Store with one bucket. Its users find it as anywhere: by the files of AWS's tools."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.environment = {
            "AWS_CONFIG_FILE": str(folder / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        }
        (folder / "config").write_text(f"[default]\nregion = {REGION}\nendpoint_url = {address}\n")
        (folder / "credentials").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": REGION}
        self._client = botocore.session.get_session().create_client("s3", endpoint_url=address, **keys)

    def client(self) -> Any:
        return self._client

    def content(self) -> dict[str, bytes]:
        """Content by key."""
        client = self.client()
        listed = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {one["Key"]: client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read() for one in listed}

    def put(self, key: str, data: bytes, **metadata: str) -> None:
        self.client().put_object(Bucket=BUCKET, Key=key, Body=data, Metadata=metadata)

    def empty(self) -> None:
        client = self.client()
        for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
            client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
        for key in self.content():
            client.delete_object(Bucket=BUCKET, Key=key)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[ObjectStore]:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    ) as server:
        try:
            store = ObjectStore(f"http://127.0.0.1:{port}", folder)
            _wait_for(port, server)
            store.client().create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
            yield store
        finally:
            server.kill()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise TimeoutError("the object store does not answer")
