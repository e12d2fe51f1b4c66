"""Distinguishes requests of the control plane's own pages from those that another site causes.

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
    fetch_sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    if fetch_sites:
        return Site.OWN if fetch_sites == ["same-origin"] else Site.OTHER
    if not origins:
        return Site.NOT_NAMED
    host = request.headers.get("host", "").lower()
    return Site.OWN if [_host_of(one) for one in origins] == [host] else Site.OTHER


def changes_by_other_site(request: Request, *, named: bool) -> str | None:
    """Why the request may not change anything; None: it may, or only reads. `named`: one that does not say which page
    causes it may not either.
    """
    if request.method in READING:
        return None
    site = site_of(request)
    if site is Site.OTHER or (named and site is Site.NOT_NAMED):
        return "the request changes something, and does not come from a page of the control plane"
    kinds = [one.partition(";")[0].strip().lower() for one in request.headers.getlist("content-type")]
    if kinds != ["application/json"]:  # which no form can send
        return "the request changes something, and is not of the type application/json"
    return None


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
