"""slurm.conf as Slurm reads it, and the lines for the hooks merged into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_agent.hooks.slurm_conf import SlurmConf, SlurmConfError, merged, problems, read, site_scripts

HOOKS = Path("/etc/slurm/understudy")
OLD, NEW = False, True
NEITHER = f"TaskProlog={HOOKS}/task_prolog\nEpilog={HOOKS}/epilog\nHealthCheckProgram={HOOKS}/health_check\n"
FLAGS = "HealthCheckInterval=60\nPrologFlags=Alloc\n"


def conf(folder: Path, text: str, all_run: bool | None = OLD) -> SlurmConf:
    (folder / "slurm.conf").write_text(text)
    return read(folder / "slurm.conf", all_run)


def merge(folder: Path, text: str, all_run: bool | None = OLD) -> str:
    """The merged text; Slurm's view of it has nothing to complain of, and a second merge changes nothing."""
    before = conf(folder, text, all_run)
    result = "".join(merged(before, HOOKS)[folder / "slurm.conf"])
    after = conf(folder, result, all_run)
    assert merged(after, HOOKS) == {}
    assert problems(after, HOOKS) == []
    assert {path: body for path, body in site_scripts(before, HOOKS).items() if str(path) in result}.items() <= (
        site_scripts(after, HOOKS).items()
    )
    return result


def test_a_file_without_hooks_gets_all_lines(tmp_path: Path) -> None:
    assert merge(tmp_path, "ClusterName=c") == (
        "ClusterName=c\nProlog=/etc/slurm/understudy/prolog # understudy\n"
        "Epilog=/etc/slurm/understudy/epilog # understudy\nTaskProlog=/etc/slurm/understudy/task_prolog # understudy\n"
        "HealthCheckProgram=/etc/slurm/understudy/health_check # understudy\n"
        "HealthCheckInterval=60 # understudy\nPrologFlags=Alloc # understudy\n"
    )


def test_a_site_with_nhc_and_x11_keeps_both(tmp_path: Path) -> None:
    text = "HealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\nPrologFlags=Contain,X11 # for ssh -X\n"
    result = merge(tmp_path, text)
    assert "#understudy: HealthCheckProgram=/usr/sbin/nhc\n" in result
    assert "\nHealthCheckProgram=/etc/slurm/understudy/health_check_with_site # understudy\n" in result
    assert "\nHealthCheckInterval=300\nPrologFlags=Contain,X11 # for ssh -X\n" in result
    assert result.count("PrologFlags") == result.count("HealthCheckInterval") == 1


def test_lines_that_were_appended_over_a_site_s_are_taken_back(tmp_path: Path) -> None:
    site = "HealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\nPrologFlags=Contain,X11\nProlog=/site/prolog\n"
    appended = site + f"Prolog={HOOKS}/prolog\n" + NEITHER + FLAGS
    found = problems(conf(tmp_path, appended), HOOKS)
    assert len([one for one in found if "overrides" in one]) == 4
    result = merge(tmp_path, appended)
    assert "health_check_with_site" in result and "prolog_with_site" in result
    assert "PrologFlags=Alloc" not in result and "HealthCheckInterval=60" not in result


def test_a_line_that_was_appended_after_the_merge_is_taken_back(tmp_path: Path) -> None:
    result = merge(tmp_path, "HealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\n")
    appended = result + f"HealthCheckProgram={HOOKS}/health_check"
    assert any("overrides" in one for one in problems(conf(tmp_path, appended), HOOKS))
    assert merge(tmp_path, appended) == result


def test_a_flag_that_is_missing_is_added_to_the_site_s_own(tmp_path: Path) -> None:
    result = merge(tmp_path, "prologflags = Serial\n")
    assert result.startswith("#understudy: prologflags = Serial\nPrologFlags=Serial,Alloc # understudy\n")


def test_comments_continued_lines_quotes_and_includes_are_read_as_slurm_reads_them(tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text('HEALTHCHECKPROGRAM = "/usr/sbin/nhc"\n')
    text = "#Prolog=/no\nProlog=/site/\\\nprolog # Epilog=/no\nInclude site.conf\nTaskProlog=/a#b\nEpilog=/x\\#y\n"
    lines = conf(tmp_path, text).lines
    assert [(line.key, line.value, line.file.name, line.first) for line in lines] == [
        ("Prolog", "/site/prolog", "slurm.conf", 1),
        ("HealthCheckProgram", "/usr/sbin/nhc", "site.conf", 0),
        ("TaskProlog", "/a", "slurm.conf", 4),
        ("Epilog", "/x#y", "slurm.conf", 5),
    ]


def test_a_continued_line_and_one_in_an_included_file_are_set_aside_whole(tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text("HealthCheckProgram=/usr/sbin/nhc")
    before = conf(tmp_path, "Prolog=/site/\\\nprolog\nProlog=/site/\\\nprolog\ninclude site.conf\n")
    changed = merged(before, HOOKS)
    assert "".join(changed[tmp_path / "site.conf"]) == (
        "#understudy: HealthCheckProgram=/usr/sbin/nhc\n"
        f"HealthCheckProgram={HOOKS}/health_check_with_site # understudy\n"
    )
    assert "".join(changed[tmp_path / "slurm.conf"]).startswith(
        "#understudy: Prolog=/site/\\\n#understudy: prolog\n#understudy: Prolog=/site/\\\n#understudy: prolog\n"
        f"Prolog={HOOKS}/prolog_with_site # understudy\ninclude site.conf\n"
    )


def test_since_24_05_all_prologs_run_so_the_hook_is_one_more(tmp_path: Path) -> None:
    result = merge(tmp_path, "Prolog=/site/a\nProlog=/site/b\n" + NEITHER + FLAGS, NEW)
    assert result.startswith(f"Prolog={HOOKS}/prolog # understudy\nProlog=/site/a\nProlog=/site/b\n")


def test_several_prologs_of_an_unknown_slurm_are_left_to_a_person(tmp_path: Path) -> None:
    unknown = conf(tmp_path, "Prolog=/site/a\nProlog=/site/b\n", None)
    for judge in (merged, problems):
        with pytest.raises(SlurmConfError, match="put the directory of Slurm's commands into PATH"):
            judge(unknown, HOOKS)
    assert "prolog_with_site" in merge(tmp_path, "Prolog=/site/a\n", None)


def test_a_site_whose_script_calls_the_hook_keeps_its_line(tmp_path: Path) -> None:
    (tmp_path / "prolog.d").mkdir()
    (tmp_path / "prolog.d" / "site").write_text(f"#!/bin/sh\n{HOOKS}/prolog || exit 1\n")
    complete = conf(tmp_path, f"Prolog={tmp_path}/prolog.d/*\n" + NEITHER + FLAGS)
    assert problems(complete, HOOKS) == [] and merged(complete, HOOKS) == {}


def test_a_node_has_the_script_also_where_the_host_of_slurm_conf_does_not_see_the_site_s_call(tmp_path: Path) -> None:
    """Slurm drains a node without it."""
    (tmp_path / "prolog").write_text(f"#!/bin/sh\n{HOOKS}/prolog || exit 1\n")
    set_aside = f"#understudy: Prolog={tmp_path}/prolog\nProlog={HOOKS}/prolog_with_site\n"
    for text in (f"Prolog={tmp_path}/prolog\n", set_aside):
        assert list(site_scripts(conf(tmp_path, text), HOOKS)) == [HOOKS / "prolog_with_site"]


def test_a_health_check_that_never_ran_is_not_started(tmp_path: Path) -> None:
    """The site's program may drain nodes."""
    before = conf(tmp_path, "HealthCheckProgram=/usr/sbin/nhc\n")
    after = conf(tmp_path, "".join(merged(before, HOOKS)[tmp_path / "slurm.conf"]))
    assert after.active("HealthCheckInterval") == []
    [found] = problems(after, HOOKS)
    assert "HealthCheckInterval is 0, so slurmd never runs HealthCheckProgram" in found


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SlurmConfError, match="nowhere cannot be read"):
        conf(tmp_path, "include nowhere\n")
    with pytest.raises(SlurmConfError, match="let it call /etc/slurm/understudy/prolog itself"):
        site_scripts(conf(tmp_path, 'Prolog="/site/a b"\n'), HOOKS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" include site.conf\n", r"slurm.conf:1: Slurm refuses slurm.conf because of 'include site.conf'"),
        ("Prolog /site/prolog\n", "slurm.conf:1: Slurm refuses"),
        ("#c\nProlog=/a Epilog=/b\n", "slurm.conf:2: Slurm refuses slurm.conf because of 'Epilog=/b'"),
        ("Prolog=\n", "slurm.conf:1: Slurm refuses"),
        ("\ufeffProlog=/a\n", "slurm.conf:1: Slurm refuses"),
        ("Prolog\u00a0= /a\n", "slurm.conf:1: Slurm refuses"),
        ("Include site.conf other.conf\n", "slurm.conf:1: Slurm refuses slurm.conf because of 'other.conf'"),
        ("Include conf.d/*.conf\n", "slurm.conf:1: Slurm does not include files by a pattern; name each file"),
        ("Include %c.conf\nClusterName=c\n", "slurm.conf:1: %c is not known here; write ClusterName above this line"),
        ("Include nowhere\n", "nowhere cannot be read: No such file or directory; correct .*slurm.conf:1"),
        ("Include link.conf\nInclude site.conf\n", "is included twice"),
        ("Prolog=/a\0\n", "NUL"),
        ('PrologFlags="Serial, X"\n', "write them with commas alone"),
    ],
)
def test_what_slurm_would_refuse_or_a_merge_cannot_follow_is_named_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "site.conf").write_text("")
    (tmp_path / "link.conf").symlink_to("site.conf")
    with pytest.raises(SlurmConfError, match=message):
        merged(conf(tmp_path, text), HOOKS)


def test_an_include_may_name_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "big.conf").write_text("Prolog=/site/prolog\n")
    assert [
        line.value for line in conf(tmp_path, "ClusterName=Big\nINCLUDE\t%c.conf # included\n").active("Prolog")
    ] == ["/site/prolog"]


def test_a_backslash_that_ends_the_file_does_not_swallow_the_lines_of_the_hooks(tmp_path: Path) -> None:
    """Slurm joins such a line with the next one."""
    result = merge(tmp_path, "ClusterName=c\nDebugFlags=Gres \\")
    assert "\nDebugFlags=Gres \\\n\nProlog=" in result


def test_a_line_that_was_set_aside_ends_where_slurm_ends_it(tmp_path: Path) -> None:
    """A person has taken the mark from the second line, or has put it there."""
    text = "#understudy: Prolog=/site/\\\nEpilog=/b\nTaskProlog=/c\\\n#understudy: /d\n"
    lines = conf(tmp_path, text).lines
    assert [(line.key, line.value, line.set_aside) for line in lines] == [
        ("Prolog", "/site/", True),
        ("Epilog", "/b", False),
        ("TaskProlog", "/c", False),
    ]


def test_an_editor_finds_the_file_as_it_was_by_the_command_of_the_page(tmp_path: Path) -> None:
    text = "#c\nProlog=/site/prolog\nPrologFlags=Serial\nLast=1\n"
    result = merge(tmp_path, text)
    kept = [line.removeprefix("#understudy: ") for line in result.splitlines() if not line.endswith(" # understudy")]
    assert "\n".join(kept) + "\n" == text
