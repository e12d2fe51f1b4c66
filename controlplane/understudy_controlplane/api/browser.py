"""Pages for a person with a browser: to log in, and to read about the API.

The pages are the same for all: what they show comes from routes that check who asks. They load nothing from elsewhere,
run no other script than their own, and no other page can frame them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from understudy_controlplane.access.admission import Admission, Denied
from understudy_controlplane.api.openapi import describe
from understudy_controlplane.fleet.identity import Permission


def add_pages(app: FastAPI, admission: Admission) -> None:
    show_login, show_reference = _page("login.html"), _page("reference.html")

    @app.get("/openapi.json", dependencies=[Depends(admission.admit_reader)], include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return describe(app.openapi())

    @app.get("/login", include_in_schema=False)
    async def login() -> Response:
        return show_login()

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        """A page that shows the document above."""
        try:
            await admission.admit(request, Permission.READ)
        except Denied as denied:
            if denied.status != 401:
                raise
            return RedirectResponse("login#docs", 303)  # also where a proxy has it below a path
        return show_reference()


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
