"""The route to messages: which notifications were sent, which wait, and which were given up."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import Name, NumberedQuery, known_parameters, numbered_page
from understudy_controlplane.fleet.notice import Message, MessageStatus, Notice
from understudy_controlplane.store.queries import Record

TITLES_MAX = 20


class NotificationsQuery(NumberedQuery):
    status: MessageStatus | None = None
    receiver: Name | None = None


def notifications_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/notifications")
    async def notifications(query: Annotated[NotificationsQuery, Query()]) -> Response:
        """Messages to receivers and to owners of jobs: sent, waiting, given up. Alertmanager and the heartbeat have no
        queue, and no messages.
        """
        return await deps.readers.read(
            lambda: numbered_page(
                message_records(deps, query.limit, query.before, query.status, query.receiver), query.limit
            )
        )

    return router


def message_records(
    deps: ReadDependencies,
    limit: int,
    before: int,
    status: MessageStatus | None = None,
    receiver: str | None = None,
) -> list[Record]:
    """Newest first. Raises StoreError."""
    found = deps.stores.notices.messages(limit, before, status, receiver)
    notices = deps.stores.notices.notices({number for one in found for number in one.notices[:TITLES_MAX]})
    return [_record(one, [notices[number] for number in one.notices if number in notices]) for one in found]


def _record(message: Message, about: list[Notice]) -> Record:
    return {
        "id": message.id,
        "receiver": message.receiver,
        "user": message.user,
        "status": message.status.value,
        "importance": message.importance.value,
        "title": message.title or (about[0].title if about else ""),
        "about": [one.key for one in about],
        "page": about[0].page if about else "",
        "notices_total": len(message.notices),
        "made_at": message.made_at,
        "accepted_at": message.accepted_at,
        "revision": message.revision,
        "accepted": message.accepted,
        "next_try_at": message.due_at if message.status in (MessageStatus.WAITING, MessageStatus.FAILING) else None,
        "tries": message.tries,
        "error": message.error,
    }
