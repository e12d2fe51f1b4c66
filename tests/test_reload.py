"""A reload: what comes into force between two rounds, what needs a restart, and a file that cannot be used."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config, Mode, load_config
from understudy_controlplane.config.current import (
    NEEDS_RESTART,
    RELOADED,
    ConfigFile,
    needs_restart,
    reloaded,
    settings,
)
from understudy_controlplane.fleet.identity import Role

BEGIN = 'cluster = "testbed"\n[server]\ndatabase = "{database}"\n'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reload") / "controlplane.toml"


@pytest.fixture(scope="module")
def plane(file: Path) -> Iterator[ControlPlane]:
    database = with_tokens(new_database(file.with_name("fleet.db")))
    file.write_text(BEGIN.format(database=database))
    outside = Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, config_file=ConfigFile(file))
    with closing(compose(load_config(file), outside)) as made:
        yield made


@pytest.fixture
def reload(file: Path, plane: ControlPlane) -> Iterator[Callable[..., list[str]]]:
    """Writes the file, reloads it, and returns the problems that `GET /v1/status` shows of it."""
    begin = file.read_text()
    client = TestClient(plane.app, headers=bearer(Role.VIEWER))

    def written(text: str) -> list[str]:
        file.write_text(text)
        assert plane.current.file is not None
        plane.current.file.request()
        plane.loop.tick()
        problems: list[str] = client.get("/v1/status").json()["problems"]
        return [one for one in problems if "configuration" in one]

    yield lambda top="", sections="": written(f"{top}{begin}{sections}")
    assert written(begin) == []


@pytest.mark.integration
def test_a_reload_changes_what_the_next_round_does(plane: ControlPlane, reload: Callable[..., list[str]]) -> None:
    pulse = plane.loop.pulse
    modes = []
    for top in ("", 'mode = "act"\n'):
        assert reload(top) == []
        modes.append(pulse.snapshot.mode if pulse.snapshot else None)
    assert modes == [Mode.OBSERVE, Mode.ACT]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "cause"),
    [("mode = act\n", "not valid TOML"), ('mode = "atc"\n', "mode = 'atc'"), ("guard = 1\n", "unknown key 'guard'")],
)
def test_a_file_that_cannot_be_used_changes_nothing_and_is_named(
    text: str, cause: str, plane: ControlPlane, reload: Callable[..., list[str]]
) -> None:
    before = plane.current.config
    (problem,) = reload(text)
    assert "the configuration was not reloaded, the one before stays in force" in problem
    assert cause in problem
    assert plane.current.config is before


@pytest.mark.integration
def test_a_setting_that_needs_a_restart_is_named_and_others_come_into_force(
    plane: ControlPlane, reload: Callable[..., list[str]]
) -> None:
    sections = '[slurm]\nscontrol = "/bin/other"\n[spares]\ncount = 3\nreservation = "other"\n'
    (problem,) = reload('mode = "approve"\n', sections)
    assert problem == "changed in the configuration, needs a restart: slurm.scontrol, spares.reservation"
    now = plane.current.config
    assert (now.mode, now.spares.count) == (Mode.APPROVE, 3)
    assert (now.slurm.scontrol, now.spares.reservation) == ("scontrol", "understudy_spares")


@pytest.mark.integration
def test_no_object_keeps_a_section_of_the_configuration_before(tmp_path: Path) -> None:
    """Whatever held one would not see the reload. Sections of which no setting can be reloaded are not meant."""
    file = tmp_path / "controlplane.toml"
    file.write_text(BEGIN.format(database=with_tokens(new_database(tmp_path / "fleet.db"))))
    config = Config.model_validate(load_config(file).model_dump())  # sections of default values are the same for all
    gone = set[str]()
    kept = {
        name: weakref.ref(getattr(config, name), partial(_note, gone, name))
        for name in Config.model_fields
        if isinstance(getattr(config, name), BaseModel)
        and (name not in NEEDS_RESTART or name in {one.partition(".")[0] for one in RELOADED})
    }
    outside = Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, config_file=ConfigFile(file))
    with closing(compose(config, outside)) as plane:
        assert plane.app.routes
        del config
        plane.loop.tick()
        assert outside.config_file is not None
        outside.config_file.request()
        plane.loop.tick()
        gc.collect()
        assert len(kept) > 10
        assert kept.keys() - gone == set()


KEYS = [key for key, _ in settings(b.config())]


def test_each_setting_either_comes_into_force_or_is_named() -> None:
    before, other = b.config(), object()
    for key, value in settings(before):
        new, waiting = reloaded(before, _with(before, key, other))
        shown = dict(settings(new))[key]
        assert (shown, waiting) == ((value, [key]) if needs_restart(key) else (other, [])), key


def test_every_setting_that_needs_a_restart_exists() -> None:
    assert {one for one in (*NEEDS_RESTART, *RELOADED) if one not in {*KEYS, *Config.model_fields}} == set()


def _note(gone: set[str], name: str, _gone: object) -> None:
    gone.add(name)


def _with(config: Config, key: str, value: Any) -> Config:
    section, _, name = key.partition(".")
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update={name: value}) if name else value}
    )
