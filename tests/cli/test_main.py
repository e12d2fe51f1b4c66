"""What the command line promises before any command runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests import REPOSITORY
from understudy.release import RELEASE
from understudy_agent.commands import COMMANDS, GROUPS, Command, help_text
from understudy_agent.entry import main
from understudy_controlplane.cli.main import root

PYTHON_PATH = f"{REPOSITORY}/agents:{REPOSITORY}/controlplane"


def modules_after(program: str, *options: str) -> set[str]:
    """What a new interpreter has imported when `program` has run."""
    code = f"import sys\n{program}\nprint(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": PYTHON_PATH},
    )
    return set(done.stderr.split())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["version"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out == f"understudy {RELEASE}\n"


@pytest.mark.integration
def test_help_imports_the_table_of_commands_and_nothing_else() -> None:
    """It must take milliseconds: of the standard library, too, it imports only what Python needs to start."""
    program = "from understudy_agent.entry import main; main(['--help'])"
    imported = modules_after(program, "-S")
    others = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others - {"__main__"} == {"understudy_agent", "understudy_agent.commands", "understudy_agent.entry"}
    slow = {"argparse", "asyncio", "dataclasses", "email", "http", "importlib.metadata", "inspect", "json", "logging"}
    assert imported & slow == set()


@pytest.mark.integration
def test_status_imports_the_client_and_nothing_of_the_service() -> None:
    """It runs on login nodes, where each import costs time."""
    command = "main(['status', '--url', 'http://127.0.0.1:1'])"
    imported = modules_after(f"from understudy_agent.entry import main\ntry: {command}\nexcept SystemExit: pass")
    assert "httpx" in imported
    rooms = {name for name in imported if name.startswith("understudy_controlplane.") and name.count(".") == 1}
    shared = {"understudy_controlplane.clock", "understudy_controlplane.fleet"}
    assert rooms == shared | {"understudy_controlplane.cli"}
    fleet = {name for name in imported if name.startswith("understudy_controlplane.fleet.")}
    assert fleet == {"understudy_controlplane.fleet.plain_text"}, "what a terminal must not get is taken out"
    assert {name.partition(".")[0] for name in imported} & {
        "pydantic",
        "fastapi",
        "sqlalchemy",
        "numpy",
        "rich",
    } == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_help_and_leads_to_its_program(name: str) -> None:
    assert f"\n  {name} " in help_text()
    program = COMMANDS[name].load()
    assert callable(program)
    if isinstance(program, click.Command):
        assert (program.name, bool(program.help)) == (name, True)


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if one.is_of_control_plane])
def test_help_names_the_verbs_of_each_noun(name: str) -> None:
    program = COMMANDS[name].load()
    if isinstance(program, click.Group):
        assert COMMANDS[name].verbs == list(program.commands)


def test_every_module_of_commands_is_in_the_table() -> None:
    folder = REPOSITORY / "controlplane" / "understudy_controlplane" / "cli"
    with_commands = {path.stem for path in folder.glob("*.py") if "@click.command" in path.read_text()}
    assert with_commands - {one.target.partition(":")[0].split(".")[-1] for one in COMMANDS.values()} == set()


def leaves(program: object) -> Iterator[click.Command]:
    if isinstance(program, click.Group):
        for one in program.commands.values():
            yield from leaves(one)
    elif isinstance(program, click.Command):
        yield program


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, one in COMMANDS.items()
        # They print a log, a script for a shell, lines of JSON, and what they do while they do it.
        if one.is_of_control_plane and name not in ("serve", "completion", "audit", "init", "leave-slurm")
    ],
)
def test_every_command_prints_json_if_asked(name: str) -> None:
    without = [one.name for one in leaves(COMMANDS[name].load()) if "as_json" not in {each.name for each in one.params}]
    assert without == []


def test_no_command_is_listed_twice() -> None:
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["nod"], "did you mean `understudy node`?"),
        (["spares", "list"], "did you mean `understudy spare list`?"),
        (["hold", "n1"], "did you mean `understudy node hold`?"),
        (["approve"], "did you mean `understudy recovery approve`?"),
        (["reboot-everything"], "`understudy --help` lists all commands"),
        (["--url", "x", "status"], "options are written after the command"),
    ],
)
def test_a_wrong_command_is_a_usage_error(
    arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert printed in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("explain n7", "did you mean `understudy explain node n7`?"),
        ("explain 4711", "did you mean `understudy explain job 4711` or `understudy explain xid 4711`?"),
        ("job explain 4711", "did you mean `understudy explain job JOB`?"),
        ("node frobnicate", "No such command 'frobnicate'."),
        ("node release n7 cable replaced", "put the reason in quotes"),
        ("node show n7 n8", "Got unexpected extra argument (n8)\n"),
        ("job list --limit seventy", "'seventy' is not a whole number"),
        ("explain xid seventy", "'seventy' is not a whole number"),
        ("node list --state quarantine", "is no state; did you mean quarantined?"),
        ("node list --state xyz", "it is one of in_service, suspect, "),
    ],
)
def test_what_click_refuses_names_what_to_write(arguments: str, printed: str) -> None:
    done = CliRunner().invoke(root, arguments.split())
    assert (done.exit_code, printed in done.output) == (2, True), done.output


def test_a_command_of_the_agent_gets_the_rest_of_the_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stand_in.py").write_text("import sys\ndef main():\n    print(sys.argv)\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "stand-in", Command("", "stand_in:main"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    assert main(["stand-in", "--config", "x"]) == 3
    assert capsys.readouterr().out.strip() == "['understudy stand-in', '--config', 'x']"


@pytest.mark.integration
def test_on_a_compute_node_help_shows_what_runs_there_and_other_commands_name_what_to_install() -> None:
    """The control plane's package and its dependencies are missing there."""

    def understudy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "understudy_agent.entry", *arguments]
        environment = {"PYTHONPATH": f"{REPOSITORY}/agents"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    shown = understudy("--help").stdout
    assert "\n  agent " in shown
    assert "\n  serve " not in shown
    done = understudy("serve")
    assert done.returncode == 2, "1 would be a bad node, where a TaskProlog starts a self-check"
    assert "'understudy_controlplane', which is not installed" in done.stderr
    assert "install slurm-understudy[controlplane]" in done.stderr
    assert "selfcheck" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("understudy nod", ["node"]),
        ("understudy ins", ["install-hooks"]),
        ("understudy node re", ["release", "requests", "retire"]),
        ("understudy recovery list --st", ["--status"]),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, completed: list[str]) -> None:
    asked = {"_UNDERSTUDY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    printed = CliRunner().invoke(root, [], prog_name="understudy", env=asked).output
    assert [line.partition(",")[2] for line in printed.split()] == completed


@pytest.mark.integration  # click runs bash to read its version
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_understudy(shell: str) -> None:
    assert f"_UNDERSTUDY_COMPLETE={shell}_complete" in CliRunner().invoke(root, ["completion", shell]).output
