"""Whether a page of the control plane itself causes a request, or one of another site.

A browser sends cookies, and a proxy's sign-in, also with requests that pages of other sites cause. It names the page in
headers that no page can set (ADR 33).
"""

from __future__ import annotations

from enum import Enum, auto
from urllib.parse import urlsplit

from fastapi import Request

READING = ("GET", "HEAD")


class Site(Enum):
    OWN = auto()
    OTHER = auto()
    NOT_NAMED = auto()  # no browser, or one from before 2020


def site_of(request: Request) -> Site:
    fetch_site = request.headers.get("sec-fetch-site")
    if fetch_site is not None:
        return Site.OWN if fetch_site == "same-origin" else Site.OTHER
    origin = request.headers.get("origin")
    if origin is None:
        return Site.NOT_NAMED
    return Site.OWN if _host_of(origin) == request.headers.get("host", "").lower() else Site.OTHER


def changes_by_other_site(request: Request, *, named: bool) -> str | None:
    """Why the request may not change anything; None: it may, or only reads. `named`: one that does not say which page
    causes it may not either.
    """
    if request.method in READING:
        return None
    site = site_of(request)
    if site is Site.OTHER or (named and site is Site.NOT_NAMED):
        return "the request changes something, and does not come from a page of the control plane"
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no form can send
        return "the request changes something, and is not of the type application/json"
    return None


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
