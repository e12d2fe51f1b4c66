"""A gang without PyTorch: four nodes that sleep. Recovered like any other, by Slurm's word alone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.testbed.serve import SERVE
from tests.testbed.site import RESEARCHER, Site

SLEEP = "#!/bin/bash\nsrun sleep 3600\n"


def start_site(site: Site, program: Sequence[str] = SERVE) -> None:
    """Agents, then the control plane, until the pool is filled.

    A control plane that has just started fills no pool before it has heard every node: with the agents there first,
    that is a second instead of ten, and the pool is the last nodes by name.
    """
    start_agents(site)
    site.start_control_plane(program)
    spares = others_and_spares(site)[1]
    site.wait_for(lambda: site.spares_held() == spares, 60, f"the pool is {', '.join(spares)}")
    site.wait_for(lambda: all_heard(site), 60, "all nodes are heard")


def start_agents(site: Site) -> None:
    site.start_agents()
    site.wait_for(lambda: all(node.socket.exists() for node in site.nodes.values()), 60, "all agents run")


def others_and_spares(site: Site) -> tuple[list[str], list[str]]:
    names = list(site.nodes)
    gang_nodes = len(names) - site.spares_wanted
    return names[:gang_nodes], names[gang_nodes:]


def all_heard(site: Site) -> bool:
    """And known to be: a node whose agent was late is unknown until the next tick."""
    return all(node["heard_at"] and node["state"] != "unknown" for node in site.items("/v1/nodes"))


def submit(site: Site, *options: str, nodes: int = 4, comment: str = "understudy", user: str = RESEARCHER) -> int:
    return site.cluster.sbatch(
        f"--nodes={nodes}", "--gres=gpu:8", "--requeue", f"--comment={comment}", *options, script=SLEEP, user=user
    )


def job_fields(site: Site, job: int) -> dict[str, str]:
    done = site.cluster.run("scontrol", "show", "job", "-o", str(job))
    return dict(part.split("=", 1) for part in done.stdout.split() if "=" in part)


def state(site: Site, job: int) -> str:
    return job_fields(site, job).get("JobState", "")


def wait_running(site: Site, job: int, restarts: int = 0) -> None:
    def running() -> bool:
        fields = job_fields(site, job)
        return fields.get("JobState") == "RUNNING" and fields.get("Restarts") == str(restarts)

    site.wait_for(running, 60, f"job {job} runs with {restarts} restarts")


def nodes_of(site: Site, job: int) -> list[str]:
    done = site.cluster.run("scontrol", "show", "hostnames", job_fields(site, job)["NodeList"])
    return done.stdout.split()


def reservations(site: Site) -> dict[str, list[str]]:
    done = site.cluster.run("scontrol", "show", "reservation", "-o")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if "ReservationName" in fields:
            hosts = site.cluster.run("scontrol", "show", "hostnames", fields["Nodes"]).stdout.split()
            found[fields["ReservationName"]] = hosts
    return found
