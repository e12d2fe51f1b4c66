"""The routes of the dashboard. Reading needs what reading by the API needs; users of the cluster have a page of their
own jobs alone. A browser without a session is sent to
`/login`. There is no route that acts: the script of the pages sends what an operator asks for to the API's own.
"""

from __future__ import annotations

import mimetypes
from typing import Annotated
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from understudy_controlplane.access.admission import Admission, Denied
from understudy_controlplane.access.sessions import is_by_session
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import NAME_CHARACTERS_MAX
from understudy_controlplane.api.streams import EventStream, who_reads
from understudy_controlplane.dashboard.lists import Chosen
from understudy_controlplane.dashboard.live import LiveViews
from understudy_controlplane.dashboard.page import HEADERS, RELEASE, STATIC, Page, template
from understudy_controlplane.dashboard.pages import OWN, Pages, found_page, missing, root_of
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.ingest.answers import refuse

PAGE_CHARACTERS_MAX = 300
YEAR_SECONDS = 365 * 86_400

PagePath = Annotated[str, Query(max_length=PAGE_CHARACTERS_MAX)]
Text = Annotated[str, Query(max_length=NAME_CHARACTERS_MAX)]


def _wanted(by: Text = "", q: Text = "", only: Text = "", sort: Text = "") -> Chosen:
    return Chosen(by, q.strip(), only, sort)


Wanted = Annotated[Chosen, Depends(_wanted)]


def dashboard_router(deps: ReadDependencies, views: LiveViews, admission: Admission) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    pages = Pages(deps)

    @router.get("/")
    async def begin() -> Response:
        return RedirectResponse("dashboard", 303)

    @router.get("/dashboard/static/{release}/{name}")
    async def static(release: str, name: str) -> Response:
        return _static(release, name)

    @router.get("/dashboard/find")
    async def find(request: Request, q: Text = "") -> Response:
        """The page of a node or job."""
        identity = await _identity(admission, request, "find")
        if isinstance(identity, Response):
            return identity
        found = await deps.readers.attempt(lambda: found_page(deps, q.strip()))
        if isinstance(found, str):
            return RedirectResponse(found, 303)
        return _problem(found or missing(f"node or job {q.strip():.100}"), "find")

    @router.get("/dashboard/live")
    async def live(
        request: Request, chosen: Wanted, page: PagePath = "", layout: Text = "", seen: float = 0.0
    ) -> Response:
        """The parts of a page that have changed since the snapshot of the time `seen`, as they change."""
        identity = await _admitted(admission, request, page)
        who = who_reads(identity)
        refusal = views.places.enter(who)
        if refusal is not None:
            return refusal
        key = f"{identity.role.value} {identity.user_id} {chosen} {page}"
        stream = views.stream(
            key,
            lambda: deps.readers.attempt(lambda: pages.read(identity, page, chosen)),
            (seen, layout),
            lambda: _admitted(admission, request, page),
        )
        return EventStream(stream, lambda: views.places.leave(who))

    @router.get("/dashboard/{page:path}")
    @router.get("/dashboard")
    async def show(request: Request, chosen: Wanted, page: str = "") -> Response:
        if request.url.path.endswith("/"):
            return RedirectResponse("../dashboard" if not page else f"../{page.rstrip('/').rpartition('/')[2]}", 303)
        identity = await _identity(admission, request, page)
        if isinstance(identity, Response):
            return identity
        logged_in = is_by_session(request)
        made = await deps.readers.attempt(lambda: _rendered(pages.read(identity, page, chosen), page, logged_in))
        return made if made.media_type == "text/html" else _problem(made, page)

    return router


async def _identity(admission: Admission, request: Request, page: str) -> Identity | Response:
    """Or where the browser is sent on to, or why it may not read."""
    try:
        return await _admitted(admission, request, page)
    except Denied as denied:
        if denied.status == 403 and not page and await _is_user(admission, request):
            return RedirectResponse(f"dashboard/{OWN}", 303)
        if denied.status != 401:
            return _problem(refuse(denied.status, denied.error, denied.hint), page)
        wanted = f"dashboard/{page}" if page else "dashboard"
        return RedirectResponse(f"{root_of(page)}login#{quote(wanted)}", 303)


async def _admitted(admission: Admission, request: Request, page: str) -> Identity:
    """Users of the cluster have one page, of their own jobs, which no one else has. Raises Denied."""
    if page != OWN:
        return await admission.admit(request, Permission.READ)
    identity = await admission.admit(request, Permission.READ_OWN_JOBS)
    if identity.user_id is None:
        raise Denied(403, f"{identity.label or 'this request'} stands for no user of the cluster", "see the page Jobs")
    return identity


async def _is_user(admission: Admission, request: Request) -> bool:
    try:
        await _admitted(admission, request, OWN)
    except Denied:
        return False
    return True


def _rendered(page: Page | Response, path: str, logged_in: bool) -> Response:
    if isinstance(page, Response):
        return page
    text = template(page.template).render(
        page.context,
        page=page,
        parts=page.parts,
        path=path,
        logged_in=logged_in,
        release=RELEASE,
        root=root_of(path),
    )
    return Response(text, media_type="text/html", headers=HEADERS)


def _problem(refusal: Response, path: str) -> Response:
    """The same refusal, for a person."""
    problem = msgspec.json.decode(refusal.body)
    text = template("problem.html").render(problem=problem, release=RELEASE, root=root_of(path), path=path)
    headers = HEADERS | {name: refusal.headers[name] for name in ("Retry-After",) if name in refusal.headers}
    return Response(text, refusal.status_code, media_type="text/html", headers=headers)


def _static(release: str, name: str) -> Response:
    if name not in STATIC:
        return refuse(404, "there is no such file", "load the page again")
    kept = f"public, max-age={YEAR_SECONDS}, immutable" if release == RELEASE else "no-store"
    headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
    kind = mimetypes.guess_type(name)[0]
    return Response(STATIC[name], media_type=kind, headers=headers)
