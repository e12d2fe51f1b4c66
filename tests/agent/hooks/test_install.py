"""`understudy install-hooks`."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from understudy_agent.hooks.install import SCRIPTS, InstallError, advice, install, main
from understudy_agent.hooks.slurm_conf import PARAMETERS

pytestmark = pytest.mark.integration


def run(folder: Path, *arguments: str) -> int:
    return main(["--directory", str(folder / "hooks"), "--slurm-conf", str(folder / "slurm.conf"), *arguments])


def test_the_scripts_belong_to_root_and_no_other_user_can_write_to_them(tmp_path: Path) -> None:
    umask = os.umask(0o002)
    assert run(tmp_path) == 0
    os.umask(umask)
    for path in (tmp_path / "hooks", *(tmp_path / "hooks").iterdir()):
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (0, 0)
        assert not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert {path.name for path in (tmp_path / "hooks").iterdir()} == set(SCRIPTS)
    assert [name for name in SCRIPTS if os.access(tmp_path / "hooks" / name, os.X_OK)] == [
        "prolog",
        "health_check",
        "epilog",
        "task_prolog",
        "first_selfcheck",
    ]


def test_all_placeholders_are_replaced(tmp_path: Path) -> None:
    assert run(tmp_path, "--run-directory", "/srv/%n/run") == 0
    texts = {name: (tmp_path / "hooks" / name).read_text() for name in SCRIPTS}
    assert not [name for name, text in texts.items() if "@" in text.replace("$@", "")]
    assert 'run="/srv/${SLURMD_NODENAME}/run"' in texts["prolog"]
    assert 'socket="/srv/${SLURMD_NODENAME}/run/agent.sock"' in texts["task_prolog"]
    assert sys.executable in texts["task_prolog"]


def test_it_can_be_run_again_and_repairs_what_was_changed(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    prolog = tmp_path / "hooks" / "prolog"
    good = prolog.read_text()
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o777)
    (tmp_path / "hooks").chmod(0o777)
    (tmp_path / "hooks" / "site.sh").write_text("the site's")
    assert run(tmp_path) == 0
    assert prolog.read_text() == good
    assert stat.S_IMODE(prolog.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "hooks").stat().st_mode) == 0o755
    assert (tmp_path / "hooks" / "site.sh").read_text() == "the site's"


def test_a_site_keeps_its_programs_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nhc").write_text("#!/bin/sh\necho nhc\nexit 3\n")
    (tmp_path / "prolog.sh").write_text("#!/bin/sh\necho $SLURM_JOB_ID\n")
    for name in ("nhc", "prolog.sh"):
        (tmp_path / name).chmod(0o755)
    conf, text = tmp_path / "slurm.conf", f"HealthCheckProgram={tmp_path}/nhc\nProlog={tmp_path}/prolog.sh\n"
    conf.write_text(text + "HealthCheckInterval=300\nPrologFlags=Contain,X11\n")
    conf.chmod(0o640)
    assert run(tmp_path) == 0
    assert conf.read_text().startswith(text), "without --edit-slurm-conf it is only read"
    assert f"+HealthCheckProgram={tmp_path}/hooks/health_check_with_site" in capsys.readouterr().out
    assert run(tmp_path, "--check") == 1
    assert run(tmp_path, "--edit-slurm-conf") == 0
    assert stat.S_IMODE(conf.stat().st_mode) == 0o640
    assert (tmp_path / "slurm.conf.before-understudy").read_text().startswith(text)
    capsys.readouterr()
    assert run(tmp_path, "--check") == 0, capsys.readouterr().out
    check, prolog = (tmp_path / "hooks" / f"{name}_with_site" for name in ("health_check", "prolog"))
    done = subprocess.run([check], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("nhc\n", 3)
    done = subprocess.run([prolog], capture_output=True, text=True, check=False, env={"SLURM_JOB_ID": "7"})
    assert (done.stdout, done.returncode) == ("7\n", 0)


def test_programs_of_a_pattern_run_in_slurms_order(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("10-first", "50 b", "90-last"):
        (tmp_path / "d" / name).write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / "d" / name).chmod(0o755)
    (tmp_path / "slurm.conf").write_text(f"Prolog={tmp_path}/d/*\nEpilog={tmp_path}/none/*\n")
    assert run(tmp_path, "--edit-slurm-conf") == 0
    assert run(tmp_path) == 0
    prolog, epilog = (tmp_path / "hooks" / f"{name}_with_site" for name in ("prolog", "epilog"))
    done = subprocess.run([prolog], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["90-last", "50 b", "10-first"]
    assert subprocess.run([epilog], capture_output=True, text=True, check=True).stdout == ""


def test_a_node_that_comes_later_gets_the_scripts_from_the_merged_file(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("TaskProlog=/site/task\n")
    assert run(tmp_path, "--edit-slurm-conf") == 0
    assert run(tmp_path, "--check") == 1
    assert run(tmp_path) == 0
    assert "exec /site/task\n" in (tmp_path / "hooks" / "task_prolog_with_site").read_text()
    assert run(tmp_path, "--check") == 0
    assert run(tmp_path, "--uninstall") == 1


def test_check_fails_where_an_appended_line_overrides_a_site_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("HealthCheckProgram=/usr/sbin/nhc\nPrologFlags=Contain,X11\n")
    with conf.open("a") as file:
        file.writelines(f"{name}={tmp_path}/hooks/{script}\n" for name, script in PARAMETERS.items())
        file.write("HealthCheckInterval=60\nPrologFlags=Alloc\n")
    assert run(tmp_path) == 0
    capsys.readouterr()
    assert run(tmp_path, "--check") == 1
    printed = capsys.readouterr().out
    assert f"overrides {conf}:1: HealthCheckProgram=/usr/sbin/nhc: Slurm uses the last" in printed
    assert f"PrologFlags=Alloc overrides {conf}:2: PrologFlags=Contain,X11" in printed
    assert "what to do: `understudy install-hooks`" in printed


def test_slurmd_s_copy_of_slurm_conf_is_not_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    monkeypatch.setattr("understudy_agent.hooks.install.CONFIGLESS", tmp_path / "slurm.conf")
    assert run(tmp_path, "--edit-slurm-conf") == 1
    assert "run this on the host of slurmctld" in capsys.readouterr().err
    assert (tmp_path / "slurm.conf").read_text() == "ClusterName=c\n"


def test_a_missing_slurm_conf_is_reported(tmp_path: Path) -> None:
    printed = advice(tmp_path, tmp_path / "nowhere.conf")
    assert "nowhere.conf is not here" in printed
    assert f"  Prolog={tmp_path}/prolog # understudy\n" in printed


@pytest.mark.parametrize("path", ["relative", "/a b", "/a;reboot", '/a"$(reboot)"', "/a/../b", "/a\nb"])
def test_a_path_that_a_shell_could_misread_is_refused(tmp_path: Path, path: str) -> None:
    for options in (["--run-directory", path], ["--socket", path], ["--directory", path]):
        assert run(tmp_path, *options) == 1
    assert not (tmp_path / "hooks").exists()


def test_a_directory_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(InstallError, match="users other than root can write"):
        install(open_to_all / "hooks", "/run/understudy", "/run/understudy/agent.sock")
    assert not (open_to_all / "hooks").exists()
    open_to_all.chmod(0o700)
    with pytest.raises(InstallError, match="users cannot enter"):
        install(open_to_all / "hooks", "/run/understudy", "/run/understudy/agent.sock")
    open_to_all.chmod(0o755)
    os.chown(open_to_all, 65534, 65534)
    with pytest.raises(InstallError, match="owned by user 65534"):
        install(open_to_all / "hooks", "/run/understudy", "/run/understudy/agent.sock")


def write_lines(folder: Path) -> None:
    lines = [f"{parameter}={folder}/hooks/{script}\n" for parameter, script in PARAMETERS.items()]
    (folder / "slurm.conf").write_text("".join([*lines, "HealthCheckInterval=60\nPrologFlags=Alloc\n"]))


def test_check_names_what_is_missing_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "slurm.conf").write_text("Prolog=/etc/slurm/site.sh\n")
    assert run(tmp_path, "--check") == 1
    printed = capsys.readouterr().out
    assert (
        "prolog, health_check, epilog, task_prolog, first_selfcheck, restore_point.py missing; run `understudy "
        "install-hooks`" in printed
    )
    assert f"Prolog names /etc/slurm/site.sh, which has to call {tmp_path}/hooks/prolog" in printed
    assert f"Epilog does not name {tmp_path}/hooks/epilog" in printed
    assert not (tmp_path / "hooks").exists()
    write_lines(tmp_path)
    assert run(tmp_path) == 0
    assert run(tmp_path, "--check") == 0


def test_hooks_that_slurm_conf_names_are_not_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path)
    assert run(tmp_path) == 0
    assert run(tmp_path, "--uninstall") == 1
    assert f"still names {tmp_path}/hooks/prolog" in capsys.readouterr().err
    (tmp_path / "site.sh").write_text(f"#!/bin/sh\n{tmp_path}/hooks/prolog || exit 1\n")
    (tmp_path / "slurm.conf").write_text(f"Prolog={tmp_path}/site.sh\n")
    assert run(tmp_path, "--uninstall") == 1
    (tmp_path / "slurm.conf").unlink()
    assert run(tmp_path, "--uninstall") == 1, "who cannot read slurm.conf does not know"
    assert (tmp_path / "hooks" / "prolog").exists()


def test_hooks_that_nothing_names_are_deleted_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    assert run(tmp_path) == 0
    (tmp_path / "hooks" / "site.sh").write_text("the site's")
    assert run(tmp_path, "--uninstall") == 0
    assert [path.name for path in (tmp_path / "hooks").iterdir()] == ["site.sh"]
    (tmp_path / "hooks" / "site.sh").unlink()
    assert run(tmp_path, "--uninstall") == 0
    assert not (tmp_path / "hooks").exists()
