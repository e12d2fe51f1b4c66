"""What the configuration promises: checked whole, and every complaint names file, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_controlplane.config import ConfigError, Mode, load_config, parse_config


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "site.toml")
    return str(caught.value)


def test_a_policy_that_the_control_plane_cannot_carry_out_is_refused_with_what_can() -> None:
    text = complaint('[spares]\nno_spare = "shrink"')
    assert "spares.no_spare" in text
    assert "use idle, wait or page" in text


def test_a_fresh_install_only_observes() -> None:
    assert parse_config('cluster = "c"', "site.toml").mode is Mode.OBSERVE


def test_an_unknown_key_is_refused_with_the_key_that_was_meant() -> None:
    assert complaint('cluster = "c"\nmoed = "act"') == "site.toml: unknown key 'moed'; did you mean 'mode'?"


def test_an_unknown_key_in_a_section_is_refused_too() -> None:
    assert "unknown key 'spares.cuont'; did you mean 'count'?" in complaint('cluster = "c"\n[spares]\ncuont = 1')


def test_an_unknown_key_that_resembles_nothing_brings_the_list_of_keys() -> None:
    assert "known keys: cluster, mode, server" in complaint('cluster = "c"\nxyzzy = 1')


def test_all_complaints_come_at_once() -> None:
    text = complaint('mode = "sometimes"\n[guards]\nquarantined_share_max = 3')
    assert "cluster" in text
    assert "mode" in text
    assert "guards.quarantined_share_max" in text


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


@pytest.mark.parametrize("key", ["agent_token_file", "operator_token_file"])
def test_a_setting_of_an_earlier_release_says_what_replaces_it(key: str) -> None:
    message = complaint(f'cluster = "c"\n[server]\n{key} = "/etc/understudy/a.token"')
    assert f"server.{key} is no setting any more" in message
    assert "understudy token create --role" in message


class TestXidPolicy:
    def test_a_site_changes_rows(self) -> None:
        text = 'cluster = "c"\n[xid.policy.94]\nclass = "hardware"\nrepair = "manual_repair"\n'
        config = parse_config(f'{text}[xid.switch_policy.20034]\nclass = "record"', "site.toml")
        assert config.xid.rows.xid[94].repair.value == "manual_repair"
        assert config.xid.rows.sxid[20034].fault.value == "record"
        assert config.xid.rows.overridden == {("xid", 94), ("sxid", 20034)}

    def test_a_row_of_nonsense_is_refused(self) -> None:
        assert "did you mean 'class'?" in complaint('cluster = "c"\n[xid.policy.94]\nclas = "drain"')
        assert "'hardware', 'drain', 'application' or 'record'" in complaint(
            'cluster = "c"\n[xid.policy.94]\nclass = "x"'
        )
        assert "changes nothing" in complaint('cluster = "c"\n[xid.policy.94]')
        assert "xid.policy.a" in complaint('cluster = "c"\n[xid.policy.a]\nclass = "drain"')

    def test_a_code_in_no_catalogue_needs_class_and_repair(self) -> None:
        message = complaint('cluster = "c"\n[xid.policy.999]\nclass = "drain"')
        assert "xid 999 is in no known catalogue: set both class and repair" in message
