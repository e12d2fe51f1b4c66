"""The page on which a person with a browser logs in, and the description of the API.

The page is the same for all. It loads nothing from elsewhere, runs no other script than its own, and no other page can
frame it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.openapi import describe


def add_pages(app: FastAPI, admission: Admission) -> None:
    show_login = _page("login.html")

    @app.get("/openapi.json", dependencies=[Depends(admission.admit_reader)], include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return describe(app.openapi())

    @app.get("/login", include_in_schema=False)
    async def login() -> Response:
        return show_login()


def _page(name: str) -> Callable[[], Response]:
    text = Path(__file__).with_name(name).read_text()
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src {_hash_of(text, 'script')}; "
        f"style-src {_hash_of(text, 'style')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
    return lambda: Response(text, media_type="text/html", headers=headers)


def _hash_of(page: str, tag: str) -> str:
    """Hash of the page's only element of this kind, for its policy."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
