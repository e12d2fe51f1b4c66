"""The doctor prints what it found, what it costs and what to do, and ends with 1 only where something is dangerous."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from tests.testbed.cluster import SlurmCluster
from understudy_controlplane.cli.doctor import Check, Diagnosis, diagnose, lines
from understudy_controlplane.cli.main import root
from understudy_controlplane.config import Config
from understudy_controlplane.config import Slurm as Policy
from understudy_controlplane.figures.rule import Severity
from understudy_controlplane.slurm.choose import Choice
from understudy_controlplane.slurm.protocol import SlurmUnavailable
from understudy_controlplane.store.database import open_database


class DeafSlurm(VirtualSlurm):
    def config(self) -> dict[str, str]:
        raise SlurmUnavailable("`scontrol show config` failed: connect failure")


class SettingsOf(VirtualSlurm):
    def __init__(self, **changes: str) -> None:
        super().__init__(["n1", "n2"])
        self._changes = changes

    def config(self) -> dict[str, str]:
        return {**super().config(), "SlurmUser": "slurm(64030)", **self._changes}


def looked_at(slurm: VirtualSlurm, config: Config | None = None, user_id: int = 0) -> Diagnosis:
    return diagnose(config, lambda _policy: Choice(slurm, "cli", "because"), user_id=user_id)


def check(diagnosis: Diagnosis, name: str) -> Check:
    return next(one for one in diagnosis.checks if one.name == name)


def drawn(diagnosis: Diagnosis) -> str:
    return click.unstyle("\n".join(lines(diagnosis)))


def config(tmp_path: Path, **changes: object) -> Config:
    return b.config(server={"database": f"sqlite:///{tmp_path}/fleet.db"}, **changes)


def test_it_prints_gateway_version_cluster_and_how_long_a_reading_takes(tmp_path: Path) -> None:
    diagnosis = looked_at(SettingsOf(), config(tmp_path))
    assert (check(diagnosis, "gateway").found, check(diagnosis, "gateway").why) == ("cli", "because")
    assert check(diagnosis, "Slurm").found == "version 22.05.8"
    assert check(diagnosis, "cluster").severity is Severity.GOOD
    assert check(diagnosis, "reading").found.startswith("2 nodes, 0 jobs, 0 reservations in ")
    assert not diagnosis.dangerous


@pytest.mark.parametrize(
    ("release", "severity"), [("22.05.8", Severity.COST), ("24.11.0", Severity.COST), ("24.11.5", Severity.GOOD)]
)
def test_releases_that_miscount_a_dead_gang_are_named(tmp_path: Path, release: str, severity: Severity) -> None:
    found = check(looked_at(SettingsOf(SLURM_VERSION=release), config(tmp_path)), "Slurm")
    assert (found.severity, "scontrol reconfigure" in found.why) == (severity, severity is Severity.COST)


@pytest.mark.parametrize(
    ("gres", "found", "not_watched"),
    [
        ("gpu:a100_1g.5gb:28", "MIG on 2 nodes", True),
        ("gpu:a100_1g5gb:28,gpu:a100:1", "MIG on 2 nodes", True),
        ("gpu:h100:8,mps:h100:800,shard:64", "mps on 2 nodes, shard on 2 nodes", False),
    ],
)
def test_what_is_not_watched_of_shared_gpus_is_named(tmp_path: Path, gres: str, found: str, not_watched: bool) -> None:
    slurm = SettingsOf()
    slurm.gres = gres
    shown = check(looked_at(slurm, config(tmp_path)), "shared GPUs")
    assert (shown.found, shown.severity) == (found, Severity.COST)
    assert ("NVLinks of a GPU in MIG mode are not watched" in shown.why) is not_watched
    assert "no gang moves for a rank that is slow there" in shown.why


def test_whole_gpus_are_no_shared_ones(tmp_path: Path) -> None:
    slurm = SettingsOf()
    slurm.gres = "gpu:a100_80gb:8"
    assert "shared GPUs" not in [one.name for one in looked_at(slurm, config(tmp_path)).checks]


def test_a_slurm_that_cannot_be_reached_is_dangerous_and_says_what_to_do(tmp_path: Path) -> None:
    diagnosis = looked_at(DeafSlurm(["n1"]), config(tmp_path))
    assert diagnosis.dangerous
    assert "connect failure" in check(diagnosis, "Slurm").why
    assert "cannot be reached" in drawn(diagnosis)
    assert "scontrol ping" in check(diagnosis, "Slurm").why
    assert check(diagnosis, "database").found.startswith("is not there yet")


def test_another_cluster_is_dangerous(tmp_path: Path) -> None:
    diagnosis = looked_at(SettingsOf(ClusterName="production"), config(tmp_path))
    assert (diagnosis.dangerous, check(diagnosis, "cluster").found) == (True, "production")
    assert "'testbed'" in check(diagnosis, "cluster").why


def test_a_dangerous_setting_is_named_with_what_to_set(tmp_path: Path) -> None:
    diagnosis = looked_at(SettingsOf(ReturnToService="2"), config(tmp_path))
    assert diagnosis.dangerous
    text = drawn(diagnosis)
    assert "ReturnToService" in text
    assert "returns to service silently" in " ".join(text.split())
    assert "1 danger" in text


@pytest.mark.parametrize(
    ("user_id", "mode", "severity"),
    [
        (0, "act", Severity.GOOD),
        (64030, "act", Severity.GOOD),
        (65534, "act", Severity.DANGER),
        (65534, "observe", Severity.COST),
        (4_000_000_000, "observe", Severity.COST),  # has no name
    ],
)
def test_only_root_and_slurms_own_user_may_act(tmp_path: Path, user_id: int, mode: str, severity: Severity) -> None:
    diagnosis = looked_at(SettingsOf(), config(tmp_path, mode=mode), user_id)
    assert check(diagnosis, "user").severity is severity


def test_a_user_whom_the_accounting_may_name_an_administrator_reads_what_to_look_for(tmp_path: Path) -> None:
    """Slurm's operators may requeue jobs, and drain no node: tests/contract/test_service_user.py."""
    accounted = SettingsOf(AccountingStorageType="accounting_storage/slurmdbd")
    found = check(looked_at(accounted, config(tmp_path, mode="act"), 65534), "user")
    assert found.severity is Severity.COST
    assert "operator is not enough: set adminlevel=Admin" in found.why


@pytest.mark.parametrize(
    ("user_id", "user", "severity"),
    [
        (0, "root", Severity.GOOD),
        (0, "slurm", Severity.GOOD),
        (1, "daemon", Severity.GOOD),
        (1, "root", Severity.DANGER),
    ],
)
def test_validations_whose_jobs_slurm_would_refuse_are_found(
    tmp_path: Path, user_id: int, user: str, severity: Severity
) -> None:
    configured = config(tmp_path, mode="act", validation={"enabled": True, "user": user})
    assert check(looked_at(SettingsOf(), configured, user_id), "validation").severity is severity


def test_it_is_of_use_before_there_is_a_configuration() -> None:
    diagnosis = looked_at(SettingsOf(), None)
    assert not diagnosis.dangerous
    assert 'cluster = "testbed"' in check(diagnosis, "cluster").why
    missing = check(diagnosis, "configuration")
    assert missing.severity is not Severity.GOOD
    assert "`understudy init`" in missing.why


def test_hooks_are_recognised_by_the_settings_that_name_them(tmp_path: Path) -> None:
    diagnosis = looked_at(SettingsOf(**{"Prolog[0]": "/usr/lib/understudy/prolog", "Epilog": "/x"}), config(tmp_path))
    assert check(diagnosis, "hooks").found == "Prolog[0] name understudy"
    assert check(looked_at(SettingsOf(), None), "hooks").found == "none"


def test_the_database_is_looked_at_and_not_made(tmp_path: Path) -> None:
    there = config(tmp_path)
    looked_at(SettingsOf(), there)
    assert list(tmp_path.iterdir()) == []
    open_database(there.server.database).dispose()
    assert check(looked_at(SettingsOf(), there), "database").found == "can be opened"
    (tmp_path / "fleet.db").write_text("this is no database, and was never one" * 100)
    broken = check(looked_at(SettingsOf(), there), "database")
    assert (broken.severity, broken.found) == (Severity.COST, "cannot be opened")
    assert "not a database" in broken.why


def test_a_site_whose_people_are_notified_of_nothing_is_named(tmp_path: Path) -> None:
    found = check(looked_at(SettingsOf(), config(tmp_path)), "notifications")
    assert (found.severity, found.found) == (Severity.COST, "none")
    receivers = {"oncall": {"kind": "apprise", "url_file": "/x"}}
    found = check(looked_at(SettingsOf(), config(tmp_path, notify={"receivers": receivers})), "notifications")
    assert (found.severity, found.found) == (Severity.GOOD, "to oncall")
    assert "understudy notify test" in found.why


@pytest.mark.parametrize(
    ("timeout", "severity", "words"),
    [
        ("300 sec", Severity.GOOD, "6 to 120 s"),
        ("90 sec", Severity.GOOD, "6 to 80 s"),
        ("60 sec", Severity.COST, "before it has had its 60 s to come back"),
        ("12 sec", Severity.COST, "set SlurmdTimeout to 16 or more"),
        ("0 sec", Severity.GOOD, "6 to 120 s"),
    ],
)
def test_timeouts_that_do_not_fit_slurms_own_are_named(
    tmp_path: Path, timeout: str, severity: Severity, words: str
) -> None:
    diagnosis = looked_at(
        SettingsOf(SlurmdTimeout=timeout), config(tmp_path, silence={"dead_unconfirmed_seconds": 120})
    )
    found = check(diagnosis, "time-outs")
    assert found.severity is severity
    assert words in f"{found.found}; {found.why}"


def test_a_slow_reading_costs(tmp_path: Path) -> None:
    class SlowClock:
        at = 0.0

        def now(self) -> float:
            self.at += 0.9
            return self.at

        def monotonic(self) -> float:
            return self.now()

    policy = Policy()
    diagnosis = diagnose(None, lambda _policy: Choice(SettingsOf(), "cli", ""), SlowClock(), 0)
    slow = check(diagnosis, "reading")
    assert slow.severity is Severity.COST
    assert f"poll_interval_seconds is {policy.poll_interval_seconds:g}: raise it to 4" in slow.why


def test_what_people_wrote_into_settings_is_drawn_and_not_obeyed(tmp_path: Path) -> None:
    text = drawn(looked_at(SettingsOf(KillWait="[red]soon[/]", SLURM_VERSION="22.05.8[/bold]"), config(tmp_path)))
    assert "[red]soon[/]" in text
    assert "22.05.8[/bold]" in text


def test_a_wrong_configuration_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("cluste = 1")
    done = CliRunner().invoke(root, ["doctor", "--config", str(tmp_path / "wrong.toml")])
    assert done.exit_code == 2
    assert "did you mean 'cluster'" in done.output


@pytest.mark.cluster
def test_a_real_cluster_is_checked_by_root_and_by_any_user(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    path = slurm_cluster.directory / "doctor.toml"
    path.write_text(f'cluster = "testbed"\n[server]\ndatabase = "sqlite:///{tmp_path}/none.db"\n')
    path.chmod(0o644)
    command = [sys.executable, "-m", "understudy_controlplane", "doctor", "--json", "--config", str(path)]
    for user, acts in ((0, "good"), (65534, "cost")):
        done = subprocess.run(
            command,
            env={**os.environ, **slurm_cluster.environment},
            capture_output=True,
            text=True,
            check=False,
            user=user,
            group=user,
            extra_groups=[],
        )
        assert (done.returncode, done.stderr) == (0, "")
        printed = json.loads(done.stdout)
        checks = {one["name"]: one for one in printed["checks"]}
        assert (printed["dangerous"], checks["user"]["severity"]) == (False, acts)
        assert checks["Slurm"]["found"].startswith("version ")
        assert checks["reading"]["found"].startswith("8 nodes, ")
        advice = {one["number"]: one for one in printed["advice"]}
        assert (advice[3]["found"], advice[3]["severity"]) == ("300 sec", "cost")
        assert "unknown" not in {one["severity"] for one in printed["advice"]}
