"""Chooses the gateway to Slurm, and gives the reason."""

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
    """`environment` is that of Slurm's clients; None: that of this process.

    Raises SlurmError where the configuration names pyslurm and it cannot be used. While Slurm does not answer, its
    version is unknown, and `auto` chooses the command line.
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
        return Choice(gateway, "pyslurm", "pyslurm can be imported and matches the cluster's version of Slurm")
    gateway.stop()
    if policy.gateway is Gateway.PYSLURM:
        raise SlurmError(f'slurm.gateway is "pyslurm", but {objection} (with "auto" the command line would be used)')
    return Choice(command_line, "cli", f"pyslurm is not used: {objection}")


def _objection(hello: Hello, command_line: CommandLineGateway, strict: bool) -> str:
    """Why pyslurm cannot be used with this cluster; empty: it can. Raises SlurmError.

    The library must be of the cluster's version. Without `strict`, pyslurm itself may be built for another version: an
    administrator who built it so names it in the configuration.
    """
    try:
        cluster = slurm_version(command_line.config())
    except SlurmUnavailable:
        if strict:
            raise
        return ""  # the configuration names pyslurm, and Slurm does not answer now
    spelled = _spell([*cluster])
    if hello.libslurm and tuple(hello.libslurm) != cluster:
        return f"its libslurm is of version {_spell(hello.libslurm)} and the cluster's Slurm of {spelled}"
    if strict and tuple(hello.built_for) != cluster:
        return f"pyslurm {hello.pyslurm} was built for Slurm {_spell(hello.built_for)}, the cluster's is {spelled}"
    return ""


def _spell(version: list[int]) -> str:
    return f"{version[0]}.{version[1]:02}"
