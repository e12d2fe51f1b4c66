"""The section `reports`: what is written without being asked for."""

from __future__ import annotations

from pydantic import Field

from understudy_controlplane.config.section import Section


class Reports(Section):
    weekly_folder: str = Field(
        "",
        description="Folder in which a report of each week is written as HTML and JSON, below "
        "`/var/lib/understudy`. Empty: none is written.",
    )
