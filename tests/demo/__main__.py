"""`make demo`: runs the story, draws the result, and fails where a promise was not kept. With KEEP=1 cluster and
dashboard stay up afterwards, until Ctrl-C.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from tests import REPOSITORY
from tests.demo import dashboard, timeline
from tests.demo.story import OTHER_USER, STEPS, DemoFailed, Story
from tests.testbed.cluster import ClusterError
from tests.testbed.configuration import NO_SCHEDULER_DELAY
from tests.testbed.network import why_impossible
from tests.testbed.site import Site
from tests.tokens import secret
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.identity import Role

DIRECTORY = Path("/var/tmp/understudy-demo")  # noqa: S108 - used only here: root creates it at each run
SHELL = DIRECTORY / "shell"
OPERATOR = DIRECTORY / "understudy"
NODES = 9
LOG_WIDTH = 120
RESULT = REPOSITORY / "build" / "demo" / "timeline.json"


def main() -> int:
    console = Console(highlight=False)
    if not console.is_terminal:  # a log has no edge to wrap at
        console.width = LOG_WIDTH
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: clean up, then end

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - begun:6.1f} s[/]  {line}")

    lock = DIRECTORY.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it, however this process ends
    except BlockingIOError:
        console.print(f"another demo runs on this machine (it holds {lock.name}); wait for it, or end it")
        return 1
    for old in (RESULT, *RESULT.parent.glob("dashboard-*.png")):
        old.unlink(missing_ok=True)
    try:
        say(f"starting munge, slurmctld and {NODES} slurmds with 8 GPUs each")
        with Site(DIRECTORY, nodes=NODES, slurm_conf_lines=[NO_SCHEDULER_DELAY]) as site:
            if not site.cluster.has_machines:
                say(f"no node has a network of its own, so none can fall silent: {why_impossible()}")
            site.start_control_plane()
            site.start_agents()
            site.start_keepers(list(site.nodes))
            site.wait_for(lambda: len(site.spares_held()) == 3, 30, "the control plane holds 3 spares")
            say(f"control plane at {site.url}, {NODES} agents; spares held in reserve: {', '.join(site.spares_held())}")
            with dashboard.forwarded(site) as url:
                say(f"dashboard: {url}/dashboard (`make demo KEEP=1` keeps it up, and prints a token)")
                screenshots = partial(dashboard.take_screenshots, url, RESULT.parent)
                taken: list[str] = []
                result = Story(site, say, lambda gang: taken.extend(screenshots({"job": f"/jobs/{gang}"}))).run()
                taken += screenshots(dashboard.pages_of(site))
                if taken:
                    say(f"screenshots: {RESULT.parent.relative_to(REPOSITORY)}/dashboard-*.png ({', '.join(taken)})")
                say(f"report: {write_reports(site).relative_to(REPOSITORY)}")
                if os.environ.get("KEEP"):
                    keep_up(site, url, say)
            say("ending every process")
    except KeyboardInterrupt:
        console.print("interrupted: everything that was started has been ended")
        return 130
    except (DemoFailed, ClusterError) as error:
        console.print(f"[bold red]the demo failed:[/] {error}", markup=True)
        console.print(f"logs: {DIRECTORY}/log", markup=False)
        return 1
    console.print()
    timeline.draw(console, result.recoveries)
    figures = result.ettr, result.first_start_seconds, result.step_seconds
    timeline.write(RESULT, result.recoveries, result.weights_identical, *figures)
    lost = sum(one.steps_lost for one in result.recoveries)
    repeated = counted(lost, "step was", "steps were") if lost else "No step was"
    console.print(
        f"\n[bold green]The final weights are bit for bit those of the run without faults.[/]\n"
        f"ETTR {result.ettr:.1%}: {STEPS} steps of {result.step_seconds * 1000:.0f} ms in {result.gang_seconds:.0f} s, "
        f"start and three restarts of PyTorch included. {repeated} done twice.\n"
        f"Written to {RESULT.relative_to(REPOSITORY)}; logs in {DIRECTORY}/log."
    )
    return 0


def write_reports(site: Site) -> Path:
    """What the faults cost, beside the timeline. Returns the page."""
    for form in ("json", "html"):
        answer = site.http.get(f"/v1/report?since=0&gpu_hour_price=2.5&format={form}")
        answer.raise_for_status()
        RESULT.with_name(f"report.{form}").write_text(answer.text)
    return RESULT.with_name("report.html")


def keep_up(site: Site, url: str, say: Callable[[str], None]) -> None:
    """Returns after Ctrl-C."""
    site.cluster.run("scancel", f"--user={OTHER_USER}")  # whose jobs would take all nodes that are left
    site.write_shell(SHELL)
    token = DIRECTORY / "admin.token"
    token.write_text(secret(Role.ADMIN))
    token.chmod(0o600)
    program = Path(sys.executable).with_name("understudy")
    OPERATOR.write_text(f'#!/bin/sh\nexec env UNDERSTUDY_URL={url} {program} "$@" --token-file {token}\n')
    OPERATOR.chmod(0o700)
    say(f"as an operator: {OPERATOR} status (docs/on-call.md)")
    say(f"a job of your own: {SHELL} sbatch < SCRIPT; {SHELL} opens a shell (docs/quickstart.md)")
    say(f"the dashboard stays up: {url}/login, token {secret(Role.OPERATOR)}; Ctrl-C ends all")
    try:
        signal.pause()
    except KeyboardInterrupt:
        """A person has seen enough."""


if __name__ == "__main__":
    sys.exit(main())
