"""No log and no output of a test has a secret: a token of tests/tokens.py, one that the control plane has made, the
secret of a browser's session, or a credential of MUNGE.
"""

from __future__ import annotations

import re
from pathlib import Path

_SECRET = re.compile(rb"understudy_(secret-of-|[A-Za-z0-9_-]{43})|MUNGE:[A-Za-z0-9+/]{60}")


def has_secret(text: bytes) -> bool:
    return _SECRET.search(text) is not None


def refuse_secrets(folder: Path) -> None:
    """Refuses them in the logs of a site."""
    assert [log.name for log in folder.iterdir() if log.is_file() and has_secret(log.read_bytes())] == []
