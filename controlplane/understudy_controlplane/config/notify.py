"""The section `notify`: who is notified of what, where, and when."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from understudy_controlplane.config.section import Section

OWNERS = "owners"
"""The receiver that stands for the owners of jobs."""


class Importance(StrEnum):
    """Importance of a notice. The first one is least."""

    INFO = "info"  # nothing has to be done
    WARNING = "warning"  # something failed, and Understudy deals with it
    PAGE = "page"  # a person is needed

    def reaches(self, least: Importance) -> bool:
        order = list(Importance)
        return order.index(self) >= order.index(least)


class ReceiverKind(StrEnum):
    APPRISE = "apprise"
    WEBHOOK = "webhook"
    ALERTMANAGER = "alertmanager"


class OwnersWhen(StrEnum):
    ALWAYS = "always"
    MAIL_TYPE = "mail_type"


class Receiver(Section):
    kind: ReceiverKind = Field(
        description="`apprise` (mail, chat and pagers by the URLs of "
        "[apprise](https://github.com/caronc/apprise/wiki)), `webhook` (a signed POST) or `alertmanager` (alerts by "
        "its API, version 2)."
    )
    url_file: Path = Field(
        description="File with the address, closed to other users: the URL of the webhook or of Alertmanager, or "
        "an apprise URL. It is read again for each message."
    )
    secret_file: Path | None = Field(
        None,
        description="File with the key of the webhook's signature, 16 characters or more, or with the bearer token of "
        "Alertmanager; closed to other users.",
    )
    least: Importance = Field(
        Importance.WARNING,
        description="What it gets: `page` (a person is needed), `warning` (also what failed and Understudy deals "
        "with) or `info` (also notices that need nothing).",
    )
    weekly_report: bool = Field(
        False,
        description="Also gets the [report of each week](reports.md#every-week).",
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind is ReceiverKind.WEBHOOK and self.secret_file is None:
            raise ValueError("a webhook needs secret_file, the key of its signature")
        if self.kind is ReceiverKind.APPRISE and self.secret_file is not None:
            raise ValueError("secret_file is not used by kind apprise: its URLs contain the secrets")
        if self.kind is ReceiverKind.ALERTMANAGER and self.weekly_report:
            raise ValueError("weekly_report is not used by kind alertmanager: a report is no alert; send it by apprise")
        return self


class Notify(Section):
    FIXED = frozenset({"group_seconds", "heartbeat_seconds"})

    receivers: dict[str, Receiver] = Field(
        {},
        description="Who is notified: a table for each, `[notify.receivers.oncall]`, with the settings below. "
        "[Notifications](notifications.md)",
    )
    group_seconds: float = Field(
        10.0, ge=0, le=600, description="Time for which a message waits for others: what happens within it is one."
    )
    time_zone: str = Field("UTC", description='Time zone of times in messages: "Europe/Berlin".')
    dashboard: str = Field(
        "",
        pattern="^(https?://[^/@ ]+(/[^@ ]*)?)?$",
        description="Address of the dashboard for links in messages: `https://HOST:7117/dashboard`. Empty: no links.",
    )
    heartbeat_url_file: Path | None = Field(
        None,
        description="File with the URL of a service that raises an alarm when nothing comes, closed to other users. "
        "The control plane sends a POST there while its loop makes progress and Slurm can be read.",
    )
    heartbeat_seconds: float = Field(60.0, ge=1, le=86_400, description="Time between two of these.")
    owners_url_file: Path | None = Field(
        None,
        description="File with the apprise URL by which owners of jobs are notified, closed to other users. `{user}` "
        "is the user's name in Slurm, `{mail}` the address of the job's `--mail-user` "
        "([owners](notifications.md#owners-of-jobs)).",
    )
    owners_url_files: dict[str, Path] = Field(
        {},
        description="Files with apprise URLs of users who want their messages elsewhere: `alice = "
        '"/etc/understudy/alice.url"`.',
    )
    owners_mail_domains: list[str] = Field(
        [],
        description="Domains of the addresses that owners may choose by `--mail-user`; for others it is the user's "
        "name at the first of these domains.",
    )
    owners_when: OwnersWhen = Field(
        OwnersWhen.ALWAYS,
        description="`always`, or `mail_type`: owners are notified only of jobs whose `--mail-type` has REQUEUE or "
        "FAIL (or is ALL).",
    )

    @field_validator("receivers")
    @classmethod
    def _have_names(cls, receivers: dict[str, Receiver]) -> dict[str, Receiver]:
        for name in receivers:
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name) or name == OWNERS:
                raise ValueError(
                    f"{name!r}: a receiver's name has small letters, digits, - and _, and is not {OWNERS!r}; rename it"
                )
        return receivers

    @field_validator("owners_mail_domains")
    @classmethod
    def _are_domains(cls, domains: list[str]) -> list[str]:
        for one in domains:
            if not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", one):
                raise ValueError(f"{one!r} is no domain; write one in small letters, such as example.org")
        return domains

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{name!r} is no time zone of this host; write one such as Europe/Berlin") from error
        return name

    def owners_url_of(self, user: str) -> Path | None:
        """File with the URL by which this owner is notified; None: they are not."""
        return self.owners_url_files.get(user, self.owners_url_file)
