"""What an incident is about: a node, a gang, or a domain of failure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from understudy_controlplane.fleet.job import JobKey


class SubjectKind(StrEnum):
    NODE = "node"
    GANG = "gang"
    DOMAIN = "domain"  # nodes that share a cause outside them: a rack, a switch, the network


class Subject(NamedTuple):
    kind: SubjectKind
    name: str

    @staticmethod
    def of_node(name: str) -> Subject:
        return Subject(SubjectKind.NODE, name)

    @staticmethod
    def of_gang(job: JobKey) -> Subject:
        return Subject(SubjectKind.GANG, str(job))

    @staticmethod
    def of_domain(name: str) -> Subject:
        return Subject(SubjectKind.DOMAIN, name)
