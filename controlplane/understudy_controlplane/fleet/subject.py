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
    rule: str = ""  # of a domain: several causes may be at work there, and each has an incident of its own

    @staticmethod
    def of_node(name: str) -> Subject:
        return Subject(SubjectKind.NODE, name)

    @staticmethod
    def of_gang(job: JobKey) -> Subject:
        return Subject(SubjectKind.GANG, str(job))

    @staticmethod
    def of_domain(name: str, rule: str) -> Subject:
        return Subject(SubjectKind.DOMAIN, name, rule)

    @staticmethod
    def stored(kind: str, name: str, rule: str) -> Subject:
        """Subject of a stored incident."""
        of_domain = SubjectKind(kind) is SubjectKind.DOMAIN
        return Subject.of_domain(name, rule) if of_domain else Subject(SubjectKind(kind), name)
