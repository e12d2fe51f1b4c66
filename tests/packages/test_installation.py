"""A clean Debian gets services and loses them: packages, `understudy init`, systemd, upgrade, rollback, removal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.packages.machine import Machine, booted, connect
from tests.run import BUILD
from understudy.release import RELEASE

pytestmark = [pytest.mark.cluster, pytest.mark.machines]

DOCUMENT = (REPOSITORY / "docs" / "install.md").read_text()
SERVICES = ("understudy-controlplane", "understudy-agent")
SLURM_CONF = """\
ClusterName=mycluster
SlurmctldHost=head1(198.18.0.1)
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
NodeName=head1 NodeAddr=198.18.0.1 CPUs=2
PartitionName=train Nodes=ALL Default=YES State=UP
"""
SITES_SLURM_CONF = """\
ClusterName=mycluster
SlurmctldHost=head1(198.18.0.1)
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
HealthCheckProgram=/usr/sbin/nhc
HealthCheckInterval=2
PrologFlags=Contain,X11
Prolog=/etc/slurm/site_prolog
Epilog=/etc/slurm/site_epilog
TaskProlog=/etc/slurm/site_task_prolog
NodeName=n1 NodeAddr=198.18.0.2 CPUs=2
NodeName=n2 NodeAddr=198.18.0.3 CPUs=2
PartitionName=train Nodes=ALL Default=YES State=UP
"""
SITES_PROGRAMS = {
    "/usr/sbin/nhc": "echo nhc > /root/ran_nhc",
    "/etc/slurm/site_prolog": "echo prolog > /root/ran_prolog",
    "/etc/slurm/site_epilog": "echo epilog > /root/ran_epilog",
    "/etc/slurm/site_task_prolog": "echo export SITE=yes",
}
SECURITY_MAX = {"understudy-controlplane": 2.5, "understudy-agent": 5.0, "understudy-keeper": 2.5}
KEEPER = """
from understudy.keeper import KeeperError, KeeperLink, Staging, sum_of
import os, pwd
link, staging = KeeperLink("/run/understudy-keeper/keeper.sock", 1), Staging()
staging.make_room(6)[:6] = b"weight"
save = [0, 0, 5]
part = {"save": save, "world_size": 2, "length": 6, "checksum": sum_of(b"weight")}
print(link.ask("put", staging.descriptor, rank=0, **part))
received, content = link.part(save=save, rank=0), bytearray(6)
received.read_into(memoryview(content))
received.finish()
print(content)
try:  # from itself, so by MUNGE at both ends
    link.part(keeper=link.address, rank=1, **part)
except KeeperError as error:
    print(error)
"""
SECONDS: dict[str, float] = {}
"""Seconds of the commands of each section."""

INSTALLED = ("packages", "The host of the control plane", "Every node", "Look at it")
INSTALLATION_SECONDS_MAX = 1800.0


@pytest.fixture(scope="module")
def built() -> list[Path]:
    """The packages of this machine's Debian. They stay in `build`, by their content."""
    build = [sys.executable, "-m", "deploy.packages.build", str(BUILD / "packages")]
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """The host of the control plane and of slurmctld, and two nodes."""
    with ExitStack() as stack:
        found = {}
        for name, address in (("head1", "198.18.0.1"), ("n1", "198.18.0.2"), ("n2", "198.18.0.3")):
            (tmp_path / name).mkdir()
            found[name] = stack.enter_context(booted(tmp_path / name, name, address))
        for node in ("n1", "n2"):
            connect(found["head1"], found[node], node)
        yield found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.fail("packages are installed as root")
    with booted(tmp_path) as running:
        yield running


def newer(packages: list[Path], folder: Path) -> None:
    """The same packages with a higher number, in `folder`."""
    for package in packages:
        tree = folder / f"{package.stem}.tree"
        subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
        control = tree / "DEBIAN" / "control"
        control.write_text(control.read_text().replace(f"{RELEASE}-1~", f"{RELEASE}-2~"))
        subprocess.run(["dpkg-deb", "-Zzstd", "-z1", "--build", tree, folder / package.name], check=True, stdout=-1)


def documented(section: str, page: str = "install.md") -> list[str]:
    """The commands of each block in this section of the page."""
    text = (REPOSITORY / "docs" / page).read_text()
    [found] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```", found, re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no commands in the section {section}"
    return blocks


def follow(machine: Machine, section: str, *folders: str) -> str:
    """Runs the commands of the document, each block in its folder."""
    blocks, begun = documented(section), time.monotonic()
    shown = "".join(machine.run(f"set -e; cd {folder}\n{block}") for folder, block in zip(folders, blocks, strict=True))
    SECONDS[section] = time.monotonic() - begun
    return shown


def test_from_a_clean_debian_to_services_and_back(machine: Machine, built: list[Path]) -> None:
    copy_packages(machine, built)
    start_slurm(machine)
    before = traces(machine)
    begun = time.monotonic()
    machine.run("apt-get install -qq -y --no-install-recommends /shared/one/*.deb")
    SECONDS["packages"] = time.monotonic() - begun
    init_overwrites_nothing(machine)
    start_services(machine)
    the_keeper_holds_parts(machine)
    services_are_confined(machine)
    a_node_is_held_and_released(machine)
    the_agent_reloads_its_configuration(machine)
    the_key_may_be_a_credential(machine)
    other_commands_of_the_document_work(machine)
    hooks_are_checked(machine)
    refuse_another_cluster(machine)
    restart_what_hangs(machine)
    machine.run("understudy db backup /root/copy.db")
    upgrade(machine)
    roll_back(machine)
    follow_the_quickstart(machine)
    remove(machine)
    assert traces(machine) == before


@pytest.mark.long
def test_three_machines_of_a_site_keep_nhc_x11_and_their_own_prologs(
    site: dict[str, Machine], built: list[Path]
) -> None:
    head, *nodes = site.values()
    for machine in site.values():
        (machine.shared / "slurm.conf").write_text(SITES_SLURM_CONF)
        for package in built:
            (machine.shared / package.name).write_bytes(package.read_bytes())
        for path, text in SITES_PROGRAMS.items():
            machine.run(f"printf '#!/bin/sh\\n{text}\\n' > {path} && chmod 755 {path}")
        machine.run("echo CgroupPlugin=cgroup/v1 > /etc/slurm/cgroup.conf && cp /shared/slurm.conf /etc/slurm/")
        machine.run(f"systemctl start munge {'slurmctld' if machine is head else 'slurmd'}")
    head.until("sinfo --noheader --format=%T", lambda state: state.strip() == "idle")
    follow(head, "The host of the control plane", "/shared")
    agent_is_installed_on(head, nodes)
    files, lines = documented("Hooks of Slurm")
    for node in nodes:
        assert "+HealthCheckProgram=/etc/slurm/understudy/health_check_with_site" in node.run(files)
        assert "HealthCheckProgram names /usr/sbin/nhc" in node.run("understudy install-hooks --check", status=1)
    for machine in (*nodes, head):
        machine.run("set -e\n" + lines.replace("scontrol reconfigure", ""))
    head.run("scontrol reconfigure")
    the_site_keeps_what_it_had(head, nodes)
    for machine in (*nodes, head):
        machine.run("set -e\n" + documented("Remove")[1].replace("scontrol reconfigure", ""))
        machine.run("cmp /shared/slurm.conf /etc/slurm/slurm.conf")
    head.run("scontrol reconfigure")
    for node in nodes:
        node.run(documented("Remove")[2])


def agent_is_installed_on(head: Machine, nodes: list[Machine]) -> None:
    package, service = documented("Every node")
    for node in nodes:
        node.run(f"set -e; cd /shared\n{package}")
        assert "understudy-agent.service failed" in node.run("systemctl enable --now understudy-agent", status=1)
        assert "copy it from /etc/understudy/nodes" in node.run("journalctl --no-pager --unit=understudy-agent")
        node.run("mkdir /root/nodes")
        for file in ("agent.toml", "ca.pem"):
            (node.shared / file).write_text(head.run(f"cat /etc/understudy/nodes/{file}"))
        node.run(f"set -e; cp /shared/agent.toml /shared/ca.pem /root/nodes; cd /root/nodes\n{service}")
    shown = "understudy node list --url https://head1:7117 --ca-file /etc/understudy/ca.pem"
    head.run("cp /etc/understudy/nodes/ca.pem /etc/understudy")
    head.until(shown, lambda text: "n1" in text and "n2" in text)


def the_site_keeps_what_it_had(head: Machine, nodes: list[Machine]) -> None:
    shown = head.run("scontrol show config")
    assert re.search(r"^PrologFlags += Alloc,Contain,X11$", shown, re.MULTILINE)
    for node in nodes:
        assert "all hooks are installed" in node.run("understudy install-hooks --check")
        node.until("test -e /run/understudy/verdict && echo there", bool)
        node.run("rm -f /root/ran_nhc /root/ran_prolog /root/ran_epilog")
        node.until("cat /root/ran_nhc", lambda text: "nhc" in text)
    printed = head.run("srun --nodes=2 --time=1 --immediate=30 printenv SITE UNDERSTUDY_ATTEMPT")
    assert sorted(printed.split()) == ["0", "0", "yes", "yes"], "both TaskPrologs"
    for node in nodes:
        node.until("cat /root/ran_prolog /root/ran_epilog", lambda text: text.split() == ["prolog", "epilog"])
    assert head.run("sinfo --noheader --format=%T").strip() in ("idle", "completing")


def copy_packages(machine: Machine, built: list[Path]) -> None:
    for folder in ("one", "two"):
        (machine.shared / folder).mkdir()
    for package in built:
        (machine.shared / "one" / package.name).write_bytes(package.read_bytes())
    newer(built, machine.shared / "two")


def start_slurm(machine: Machine) -> None:
    (machine.shared / "slurm.conf").write_text(SLURM_CONF)
    # Slurm looks at the cgroups of the whole host, where both versions may be mounted.
    machine.run("echo CgroupPlugin=cgroup/v1 > /etc/slurm/cgroup.conf")
    machine.run("cp /shared/slurm.conf /etc/slurm/ && systemctl start munge slurmctld slurmd")
    machine.until("sinfo --noheader --format=%T", lambda state: state.strip() == "idle")


def init_overwrites_nothing(machine: Machine) -> None:
    assert "the cluster 'mycluster'" in machine.run("understudy init --cluster wrong", status=2)
    first = follow(machine, "The host of the control plane", "/shared/one")
    assert "systemctl enable --now understudy-controlplane.service" in first
    assert "WRONG" not in first
    before = machine.run("sha256sum /etc/understudy/*.* /etc/understudy/nodes/*")
    again = machine.run("understudy init --cluster mycluster --address head1 --tls")
    assert again.count("kept: ") == first.count("written: ")
    assert "written: " not in again
    assert machine.run("sha256sum /etc/understudy/*.* /etc/understudy/nodes/*") == before
    files = "/etc/understudy/operator.token /etc/understudy/tls.key /var/lib/understudy"
    assert machine.run(f"stat --format='%n %a %U' {files}").splitlines() == [
        "/etc/understudy/operator.token 600 root",
        "/etc/understudy/tls.key 640 root",
        "/var/lib/understudy 700 slurm",
    ]


def start_services(machine: Machine) -> None:
    follow(machine, "Every node", "/shared/one", "/etc/understudy/nodes")
    machine.until("systemctl show -P StatusText understudy-agent", lambda text: "reports to https://head1:7117" in text)
    assert machine.run("systemctl show -P StatusText understudy-controlplane").strip() == "mode observe"
    shown = follow(machine, "Look at it", "/")
    assert "mycluster" in shown
    assert "problem" not in shown
    seconds = {section: SECONDS[section] for section in INSTALLED}
    print(f"installed in {sum(seconds.values()):.0f} s:", {name: round(spent) for name, spent in seconds.items()})
    assert sum(seconds.values()) < INSTALLATION_SECONDS_MAX, "install in 30 minutes"


def the_keeper_holds_parts(machine: Machine) -> None:
    """It does so within its sandbox, with the rights of no user."""
    assert machine.run("systemctl is-enabled understudy-keeper", status=1).strip() == "disabled"
    machine.run("systemctl start understudy-keeper")
    (machine.shared / "part.py").write_text(KEEPER)
    shown = machine.run("setpriv --reuid=65534 --clear-groups /opt/understudy/bin/python -I /shared/part.py")
    assert "{'held': True}" in shown and "bytearray(b'weight')" in shown
    assert "the other keeper: this part is not held" in shown
    assert "CapEff:\t0000000000000000" in machine.run("cat /proc/$(systemctl show -P MainPID understudy-keeper)/status")
    machine.run("systemctl stop understudy-keeper")


def services_are_confined(machine: Machine) -> None:
    """And do their whole work all the same: the agent reports no problem."""
    for service, most in SECURITY_MAX.items():
        report = machine.run(f"systemd-analyze security --no-pager {service}")
        [exposure] = re.findall(r"exposure level for \S+: ([\d.]+)", report)
        assert float(exposure) <= most, report
        assert re.search(rf"^\| `{service}` \|[^|]*\| {exposure} \|", DOCUMENT, re.MULTILINE), (
            "docs/install.md has another figure"
        )
    shown = "understudy node show head1 --json --url https://head1:7117 --ca-file /etc/understudy/ca.pem"
    node = json.loads(machine.until(shown, lambda text: json.loads(text)["host"] is not None))  # read every 15 s
    expected = (
        "NVML cannot be used",
        "/dev/kmsg: records were overwritten",
        "kernel log: ",
    )  # clusters of other tests fill the kernel log of this host
    assert [one for one in node["agent_problems"] if not one.startswith(expected)] == []
    assert "clock_synchronised" in node["host"], "adjtimex is not forbidden"


def understudy(machine: Machine, arguments: str, status: int = 0) -> str:
    return machine.run(f"understudy {arguments} --url https://head1:7117 --ca-file /etc/understudy/ca.pem", status)


def a_node_is_held_and_released(machine: Machine) -> None:
    """The service in mode act, within its sandbox, changes Slurm."""
    process = pids(machine)
    machine.run("cd /etc/understudy && cp -p controlplane.toml good && echo mode = 7 >> controlplane.toml")
    machine.run("systemctl reload understudy-controlplane", status=1)
    machine.run("cd /etc/understudy && mv good controlplane.toml")
    follow(machine, "From observe to act", "/")
    machine.until("systemctl show -P StatusText understudy-controlplane", lambda text: text.strip() == "mode act")
    assert pids(machine) == process, "without a restart"
    understudy(machine, "node hold head1 'new cables'")
    machine.until("scontrol show node head1", lambda shown: "DRAIN" in shown and "understudy:" in shown)
    understudy(machine, "node release head1 'cables are new'")
    machine.until("scontrol show node head1", lambda shown: "DRAIN" not in shown)


def the_agent_reloads_its_configuration(machine: Machine) -> None:
    process = pids(machine)
    machine.run("cd /etc/understudy && cp -p agent.toml good && sed -i '1i node = 7' agent.toml")
    machine.run("systemctl reload understudy-agent", status=1)
    machine.run("cd /etc/understudy && mv good agent.toml && sed -i '1i report_interval_seconds = 0.9' agent.toml")
    machine.run("systemctl reload understudy-agent")
    machine.until(
        "journalctl --no-pager --unit=understudy-agent",
        lambda log: "configuration_reloaded changed=report_interval_seconds" in log,
    )
    assert pids(machine) == process, "without a restart"


def the_key_may_be_a_credential(machine: Machine) -> None:
    """docs/install.md describes it for sites that want it."""
    [unit] = re.findall(r"^```ini\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    [setting] = re.findall(r"`(tls_key = \S+)`", DOCUMENT)
    folder, key = "/etc/systemd/system/understudy-controlplane.service.d", "/etc/understudy/tls.key"
    (machine.shared / "credential.conf").write_text(unit)
    machine.run(f"mkdir -p {folder} && cp /shared/credential.conf {folder} && cp -p {key} /root/tls.key")
    machine.run(f"chown root:root {key} && chmod 600 {key}")
    machine.run(
        f"cd /etc/understudy && cp -p controlplane.toml good && sed -i 's,^tls_key.*,{setting},' controlplane.toml"
    )
    machine.run("systemctl daemon-reload && systemctl restart understudy-controlplane")
    assert "head1" in understudy(machine, "node list")
    machine.run(f"rm {folder}/credential.conf; mv /root/tls.key {key}; cd /etc/understudy && mv good controlplane.toml")
    machine.run("systemctl daemon-reload && systemctl restart understudy-controlplane")


def other_commands_of_the_document_work(machine: Machine) -> None:
    """Those in its sentences."""
    named = set(re.findall(r"`understudy ([a-z][^`]*)`", DOCUMENT.replace("NODE", "head1")))
    elsewhere = {
        "init",
        "status",
        *(one for one in named if one.startswith(("install-hooks", "leave-slurm", "support"))),
    }
    machine.run("understudy doctor || test $? = 1")  # this Slurm has dangerous settings
    run = {"doctor", "observed", 'inject head1 79 "what if"', "recovery list --status awaits_approval"}
    for command in sorted(run - {"doctor"}):
        understudy(machine, command)
    for command in ("recovery approve NUMBER REASON", "incident dismiss NUMBER REASON"):  # there is no such number
        understudy(machine, command.replace("NUMBER", "9999"), status=1)
        run.add(command)
    for command in ("token enroll head1", "token create --role operator --label alice", "db backup FILE"):
        machine.run(f"understudy {command.replace('FILE', '/root/copy.db')}")
        run.add(command)
    machine.run("test -s /root/copy.db && rm /root/copy.db")
    assert named - run - elsewhere == set()


def follow_the_quickstart(machine: Machine) -> None:
    """Its commands on the same Slurm, but for pip's: those of the packages are there."""
    machine.run("systemctl stop " + " ".join(SERVICES))
    machine.run("mv /etc/understudy /root/kept && mv /var/lib/understudy /root/kept-database")
    text = (REPOSITORY / "docs" / "quickstart.md").read_text()
    [cluster] = re.findall(r"^## On a cluster\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", cluster, re.MULTILINE | re.DOTALL)
    head, node, *_ = (block for language, block in blocks if not language)
    for block, service in ((head, "understudy serve"), (node, "understudy agent")):
        commands = [line for line in block.splitlines() if not line.startswith(("pip install", "python3 -m venv"))]
        assert commands[-1].endswith(service)
        name = service.split()[1]
        last = commands.pop().replace(service, f"exec {service}")
        commands.append(f"{{ {last}; }} > /root/{name}.log 2>&1 & echo $! > /root/{name}.pid")
        script = "\n".join(commands).replace("understudy doctor ", "understudy doctor || true")
        machine.run(f"export USER=root; cd /root\n{script}")
        machine.until("ss -Hltn 'sport = 7117'", bool)
    url = "--url http://head1:7117"
    machine.until(f"understudy node list {url}", lambda shown: "IDLE" in shown)
    machine.until(f"understudy explain node head1 {url}", lambda shown: "head1 is in_service" in shown)
    machine.run(f'understudy pause "maintenance" {url}')
    job = machine.run("sbatch --parsable --comment=understudy --hold --wrap true").strip()
    machine.until(f"understudy job list {url}", lambda shown: job in shown)
    machine.run(f"understudy explain job {job} {url}")
    machine.run(f'understudy job pause {job} "I am debugging it" --for 2h {url}')
    machine.run(f"understudy recovery cancel 1 nothing {url}", status=1)
    machine.run(f"scancel {job}; kill $(cat /root/agent.pid /root/serve.pid)")
    machine.until("ss -Hltn 'sport = 7117'", lambda shown: not shown.strip())
    machine.run("rm -r /etc/understudy /var/lib/understudy && mv /root/kept /etc/understudy")
    machine.run("mv /root/kept-database /var/lib/understudy && systemctl start " + " ".join(SERVICES))


def hooks_are_checked(machine: Machine) -> None:
    assert "prolog" in machine.run("understudy install-hooks --check", status=1)
    follow(machine, "Hooks of Slurm", "/", "/")
    machine.run("understudy install-hooks --check")
    assert machine.run("srun --time=1 --immediate=30 hostname").strip() == "head1"
    assert "slurm.conf still names" in machine.run("understudy install-hooks --uninstall", status=1)


def refuse_another_cluster(machine: Machine) -> None:
    change = 'sed -i \'s/cluster = "{}"/cluster = "{}"/\' /etc/understudy/controlplane.toml'
    machine.run(change.format("mycluster", "other"))
    machine.run("systemctl restart understudy-controlplane", status=1)
    assert machine.run("systemctl show -P ExecMainStatus -P ActiveState understudy-controlplane").split() == [
        "2",
        "failed",
    ]
    assert "this host's Slurm is the cluster 'mycluster', not 'other'" in machine.run(
        "journalctl --no-pager --lines=50 --unit=understudy-controlplane"
    )
    machine.run(change.format("other", "mycluster"))
    machine.run("systemctl start understudy-controlplane")


def restart_what_hangs(machine: Machine) -> None:
    for service in SERVICES:
        folder = f"/run/systemd/system/{service}.service.d"
        machine.run(f"mkdir -p {folder} && printf '[Service]\\nWatchdogSec=5\\n' > {folder}/watchdog.conf")
    machine.run("systemctl daemon-reload && systemctl restart " + " ".join(SERVICES))
    hung = pids(machine)
    for service in SERVICES:
        machine.run(f"systemctl kill --kill-whom=main --signal=STOP {service}")
    for service in SERVICES:
        machine.until(
            f"systemctl show -P MainPID -P ActiveState {service}",
            lambda shown: "active" in shown.split() and not {"0", *hung} & set(shown.split()),
        )
        assert "Watchdog timeout" in machine.run(f"journalctl --no-pager --unit={service}")
        machine.run(f"rm -r /run/systemd/system/{service}.service.d")
    machine.run("systemctl daemon-reload")
    machine.run("understudy support-bundle --since 1h /root/bundle.tar.gz")
    collected = machine.run("tar --extract --to-stdout --file /root/bundle.tar.gz && rm /root/bundle.tar.gz")
    assert "Watchdog timeout" in collected, "the journal"
    assert "cannot be had" not in collected


def roll_back(machine: Machine) -> None:
    """Steps of docs/upgrade.md and docs/backup.md: what came after the copy is gone, the service owns the file."""
    before = pids(machine)
    understudy(machine, "pause 'after the copy'")
    assert "after the copy" in understudy(machine, "status")
    for page, section in (("upgrade.md", "Rollback"), ("backup.md", "Restore")):
        for block in documented(section, page):
            machine.run(f"set -e; cd /shared/one\n{block}")
    machine.run("apt-get install -qq -y --allow-downgrades /shared/one/understudy-hook_*.deb")
    all_is_of(machine, 1, before)
    assert machine.run("stat --format='%a %U' /var/lib/understudy/understudy.db").strip() == "600 slurm"
    assert "after the copy" not in understudy(machine, "status")
    machine.run("understudy db check && rm /root/copy.db")


def upgrade(machine: Machine) -> None:
    before = pids(machine)
    machine.run("apt-get install -qq -y /shared/two/*.deb")
    all_is_of(machine, 2, before)


def all_is_of(machine: Machine, release: int, before: list[str]) -> None:
    version = machine.run("dpkg-query -W -f='${Version} ' understudy-agent understudy-controlplane understudy-hook")
    assert len(set(version.split())) == 1
    assert version.startswith(f"{RELEASE}-{release}~")
    assert machine.run("systemctl is-active " + " ".join(SERVICES)).split() == ["active", "active"]
    assert not set(before) & set(pids(machine)), "both run from the new packages"


def pids(machine: Machine) -> list[str]:
    return [machine.run(f"systemctl show -P MainPID {service}").strip() for service in SERVICES]


def remove(machine: Machine) -> None:
    pool = "ReservationName=understudy_spares Nodes=head1 Users=root StartTime=now Duration=60 Flags=IGNORE_JOBS"
    machine.run(f"scontrol create reservation {pool}")
    machine.run("systemctl stop understudy-controlplane && understudy leave-slurm --resume-nodes")
    machine.run(f"scontrol create reservation {pool} && systemctl start understudy-controlplane")
    blocks = documented("Remove")
    assert "reservation understudy_spares: deleted" in machine.run(blocks[0])
    machine.run("srun --time=1 --immediate=30 true")
    machine.run(blocks[1])
    machine.run("cmp /shared/slurm.conf /etc/slurm/slurm.conf")
    machine.run(blocks[2])
    machine.run("dpkg --purge understudy-controlplane && apt-get purge -qq -y understudy-hook")


def traces(machine: Machine) -> str:
    """Understudy's files and units, the host's users, and what Slurm keeps."""
    return machine.run(
        "find / -xdev -name '*understudy*' -not -path '/var/log/*' -not -path '/var/lib/dpkg/info/*'; "
        "getent passwd; systemctl list-unit-files --no-pager 'understudy*'; scontrol show reservations; "
        "sinfo --noheader --format='%T %E'"
    )
