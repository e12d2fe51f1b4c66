"""The section `reports`: what is written without being asked for."""

from __future__ import annotations

from pydantic import Field

from understudy_controlplane.config.section import Section


class Reports(Section):
    weekly_folder: str = Field(
        "",
        description="Folder in which a report of each week (Monday to Sunday, UTC) is written as HTML and JSON, once "
        "the week is over. The service may write below `/var/lib/understudy`. Empty: none is written.",
    )
