"""What the configuration promises: checked whole, and every complaint names file, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_controlplane.config import ConfigError, Mode, Retention, load_config, parse_config
from understudy_controlplane.decide.requests_in_force import REQUEST_AGE_MAX_SECONDS
from understudy_controlplane.fleet.durations import DAY_SECONDS, WEEK_SECONDS
from understudy_controlplane.loop import RECORDED_SECONDS
from understudy_controlplane.observe.event_cache import EVENT_AGE_MAX_SECONDS
from understudy_controlplane.observe.observer import (
    DISOBEYED_AGE_MAX_SECONDS,
    REFUSAL_AGE_MAX_SECONDS,
)


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "site.toml")
    return str(caught.value)


def test_a_share_is_a_part_of_the_whole() -> None:
    assert "a share is a number from 0 to 1" in complaint('cluster = "c"\n[spares.account_shares]\nphysics = 25')


def test_a_fresh_install_only_observes() -> None:
    assert parse_config('cluster = "c"', "site.toml").mode is Mode.OBSERVE


def test_a_file_that_an_editor_of_windows_saved_is_read(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_bytes(b'\xef\xbb\xbfcluster = "c"\r\nmode = "act"\r\n')
    assert load_config(file).mode is Mode.ACT


def test_an_unknown_key_is_refused_with_the_key_that_was_meant() -> None:
    assert complaint('cluster = "c"\nmoed = "act"') == "site.toml: unknown key 'moed'; did you mean 'mode'?"


def test_an_unknown_key_in_a_section_is_refused_too() -> None:
    assert "unknown key 'spares.cuont'; did you mean 'count'?" in complaint('cluster = "c"\n[spares]\ncuont = 1')


def test_an_unknown_key_that_resembles_nothing_brings_the_list_of_keys() -> None:
    assert "known keys: cluster, mode, modes, server" in complaint('cluster = "c"\nxyzzy = 1')


def test_what_understudy_fixes_is_no_setting() -> None:
    fixed = "guards.breaker_share is no setting, it is always 0.002; remove the key"
    assert fixed in complaint('cluster = "c"\n[guards]\nbreaker_share = 0.5')
    assert "breaker_share'" not in complaint('cluster = "c"\n[guards]\nbreaker_shares = 0.5')


def test_all_complaints_come_at_once() -> None:
    text = complaint('mode = "sometimes"\n[guards]\nquarantined_nodes_max = -3')
    assert "cluster" in text
    assert "mode" in text
    assert "guards.quarantined_nodes_max" in text


def test_a_file_that_is_not_toml_is_refused_as_such() -> None:
    assert "not valid TOML" in complaint("cluster = ")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_a_value_that_no_program_reads_is_refused_as_such(value: str) -> None:
    assert "not valid TOML" in complaint(f"mode = {value}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        load_config(tmp_path / "nowhere.toml")


def test_a_configuration_cannot_be_changed() -> None:
    config = parse_config('cluster = "c"', "site.toml")
    with pytest.raises(ValueError, match="frozen"):
        config.mode = Mode.ACT  # type: ignore[misc]


class TestRetention:
    def test_keeps_all_that_the_control_plane_decides_by(self) -> None:
        """The shortest times that a site may set are not shorter than any look back."""
        shortest = Retention(
            incidents_days=30, idle_decisions_days=7, events_days=8, jobs_days=30, job_details_days=8, gpus_days=30
        )
        week, day = WEEK_SECONDS, DAY_SECONDS
        looks_back = {
            "incidents_days": (week, REQUEST_AGE_MAX_SECONDS, DISOBEYED_AGE_MAX_SECONDS),
            "idle_decisions_days": (RECORDED_SECONDS,),
            "events_days": (EVENT_AGE_MAX_SECONDS, REFUSAL_AGE_MAX_SECONDS, week),
            "jobs_days": (week,),
            "job_details_days": (EVENT_AGE_MAX_SECONDS, week),
        }
        for name, seconds in looks_back.items():
            assert getattr(shortest, name) * day >= max(seconds), name

    @pytest.mark.parametrize("name", ["incidents_days", "events_days", "jobs_days"])
    def test_that_is_shorter_is_refused(self, name: str) -> None:
        assert f"retention.{name} = 6: has to be greater" in complaint(f'cluster = "c"\n[retention]\n{name} = 6')

    def test_that_forgets_what_counts_against_a_node_is_refused(self) -> None:
        text = 'cluster = "c"\n[retention]\nevents_days = '
        assert "retention.events_days must be at least 28" in complaint(f"{text}27")
        parse_config(f"{text}28", "site.toml")


class TestXidPolicy:
    def test_a_site_changes_rows(self) -> None:
        text = 'cluster = "c"\n[xid.policy.94]\nclass = "hardware"\nrepair = "manual_repair"\n'
        config = parse_config(f'{text}[xid.switch_policy.20034]\nclass = "record"', "site.toml")
        assert config.xid.rows.xid[94].repair.value == "manual_repair"
        assert config.xid.rows.sxid[20034].fault.value == "record"
        assert config.xid.rows.overridden == {("xid", 94), ("sxid", 20034)}

    def test_a_row_of_nonsense_is_refused(self) -> None:
        assert "did you mean 'class'?" in complaint('cluster = "c"\n[xid.policy.94]\nclas = "drain"')
        assert "'hardware', 'drain', 'application', 'suspect' or 'record'" in complaint(
            'cluster = "c"\n[xid.policy.94]\nclass = "x"'
        )
        assert "changes nothing" in complaint('cluster = "c"\n[xid.policy.94]')
        assert "xid.policy.a" in complaint('cluster = "c"\n[xid.policy.a]\nclass = "drain"')

    def test_a_code_in_no_catalogue_needs_class_and_repair(self) -> None:
        message = complaint('cluster = "c"\n[xid.policy.999]\nclass = "drain"')
        assert "xid 999 is in no known catalogue: set both class and repair" in message
