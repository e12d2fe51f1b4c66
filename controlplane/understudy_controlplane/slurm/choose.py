"""Which gateway is taken, and why.

Belongs here: the choice. Must not: the gateways themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_controlplane.config import Gateway
from understudy_controlplane.config import Slurm as Policy
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, SlurmUnavailable, slurm_version
from understudy_controlplane.slurm.pyslurm_gateway import Hello, PyslurmGateway


@dataclass(frozen=True, slots=True)
class Choice:
    slurm: Slurm
    name: str  # "cli" or "pyslurm"
    why: str  # a sentence


def choose(policy: Policy, environment: Mapping[str, str] | None = None) -> Choice:
    """`environment` is that of Slurm's clients; None: this process's own.

    Raises SlurmError where pyslurm is asked for by name and cannot be used. Slurm itself may be away: then `auto` takes
    the command line, for nothing can be said about versions.
    """
    command_line = CommandLineGateway(policy.scontrol, environment, policy.timeout_seconds)
    if policy.gateway is Gateway.CLI:
        return Choice(command_line, "cli", 'slurm.gateway is "cli"')
    gateway = PyslurmGateway(command_line, policy.pyslurm_python, environment, policy.timeout_seconds)
    try:
        objection = _objection(gateway.hello(), command_line, strict=policy.gateway is Gateway.AUTO)
    except SlurmError as error:
        objection = str(error)
    if not objection:
        return Choice(gateway, "pyslurm", "it imports and matches the cluster's version of Slurm")
    gateway.worker.stop()
    if policy.gateway is Gateway.PYSLURM:
        raise SlurmError(f'slurm.gateway is "pyslurm", but {objection}; "auto" would take the command line')
    return Choice(command_line, "cli", f"pyslurm is not used: {objection}")


def _objection(hello: Hello, command_line: CommandLineGateway, strict: bool) -> str:
    """Why pyslurm is not used with this cluster; empty: nothing speaks against it. Raises SlurmError.

    The library must be of the cluster's version. Not `strict`: an administrator who built pyslurm against the headers
    of another version than it is made for has said so by asking for it by name.
    """
    try:
        cluster = slurm_version(command_line.config())
    except SlurmUnavailable:
        if strict:
            raise
        return ""  # it was asked for by name, and Slurm is only away
    spelled = _spell([*cluster])
    if hello.libslurm and tuple(hello.libslurm) != cluster:
        return f"its libslurm is of version {_spell(hello.libslurm)} and the cluster's Slurm of {spelled}"
    if strict and tuple(hello.built_for) != cluster:
        return f"pyslurm {hello.pyslurm} was built for Slurm {_spell(hello.built_for)}, the cluster's is {spelled}"
    return ""


def _spell(version: list[int]) -> str:
    return f"{version[0]}.{version[1]:02}"
