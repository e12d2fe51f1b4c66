from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from understudy_agent.config import Config, ConfigError, load_config, parse_config, read_token

LEAST = 'cluster = "c1"\ncontrol_plane_urls = ["http://head1:7117/", "http://head2:7117"]\n'


def parse(more: str = "") -> Config:
    return parse_config(LEAST + more, "agent.toml", {"SLURMD_NODENAME": "n7"})


def test_two_lines_are_a_whole_configuration() -> None:
    config = parse()
    assert config.control_plane_urls == ("http://head1:7117", "http://head2:7117")
    assert config.node == "n7"
    assert config.kernel_log == Path("/dev/kmsg")
    assert config.report_interval_seconds == 1.0
    assert config.nvml.enabled


def test_files_that_an_editor_of_windows_saved_are_read(tmp_path: Path) -> None:
    file, token = tmp_path / "agent.toml", tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbf" + LEAST.replace("\n", "\r\n").encode())
    token.write_bytes(b"\xef\xbb\xbfuds1.secret\r\n")
    assert load_config(file).control_plane_urls == ("http://head1:7117", "http://head2:7117")
    assert read_token(token) == "uds1.secret"


def test_without_slurmd_nodename_the_node_is_the_short_host_name() -> None:
    node = parse_config(LEAST, "agent.toml", {}).node
    assert node
    assert "." not in node


def test_all_settings_are_read() -> None:
    config = parse(
        'node = "n1"\ntoken_file = "/t"\nreport_interval_seconds = 2\n'
        'kernel_log = "/k"\nsocket = "/s"\nboot_id_file = "/b"\n[nvml]\nenabled = false\n'
    )
    assert (config.node, config.token_file, config.socket) == ("n1", Path("/t"), Path("/s"))
    assert config.report_interval_seconds == 2.0
    assert not config.nvml.enabled


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("report_intervall_seconds = 2", "did you mean 'report_interval_seconds'?"),
        ("[nvml]\nenable = true", "unknown key 'nvml.enable'; did you mean 'nvml.enabled'?"),
        ("zzz = 1", "known keys: cluster"),
        ("report_interval_seconds = 0", "report_interval_seconds: Expected `float` >= 0.05"),
        ("report_interval_seconds = 900", "report_interval_seconds: Expected `float` <= 60"),
        ('socket = ""', "socket: Expected the path of a file"),
        ("kernel_log = 7", "kernel_log: Expected the path of a file"),
        (f'socket = "/{"x" * 200}"', "at most 107 bytes"),
        ("= 3", "not valid TOML"),
        ("nvml = 3", "nvml: Expected `object`"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(more: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(more)
    assert str(caught.value).startswith("agent.toml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('cluster = "c"', "control_plane_urls"),
        ('cluster = "c"\ncontrol_plane_urls = []', "control_plane_urls"),
        ('cluster = "c"\ncontrol_plane_urls = ["head1:7117"]', "control_plane_urls"),
        ('cluster = "c"\ncontrol_plane_urls = ["http://fd00::1:7117"]', r"write an IPv6 address in brackets"),
        ('cluster = ""\ncontrol_plane_urls = ["http://h"]', "cluster"),
    ],
)
def test_a_setting_without_a_default_is_required(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(text, "agent.toml", {})


def keys(struct: type[msgspec.Struct] = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from keys(field.type, (*prefix, field.name))
        else:
            yield (*prefix, field.name)


@pytest.mark.parametrize("key", list(keys()), ids=".".join)
@pytest.mark.parametrize("value", ["{ wrong = 1 }", "[[]]", "-1"], ids=["table", "list", "number"])
def test_each_key_with_a_wrong_value_is_named_with_cause_and_remedy(key: tuple[str, ...], value: str) -> None:
    section = f"[{key[0]}]\n" if key[1:] else ""
    least = "\n".join(line for line in LEAST.splitlines() if not line.startswith(f"{key[0]} ="))
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{least}\n{section}{key[-1]} = {value}\n", "agent.toml", {})
    assert re.fullmatch(
        rf"agent\.toml: {re.escape('.'.join(key))}\S*: Expected .*; set another value.*", str(caught.value)
    )


@pytest.mark.parametrize(
    ("url", "is_of_ipv6"),
    [
        ("http://h:99999", False),
        ("http://h:71l7", False),
        ("http://u:p@h:99999", False),
        ("http://[fd00::1]:99999", False),
        ("http://fd00::1:7117", True),
        ("http://fd00::1", True),
        ("http://[fd00::1:7117", True),
    ],
)
def test_the_remedy_of_a_wrong_url_is_of_what_is_wrong_with_it(url: str, is_of_ipv6: bool) -> None:
    remedy = "write an IPv6 address in brackets" if is_of_ipv6 else "a port is a number from 1 to 65535"
    with pytest.raises(ConfigError, match=remedy):
        parse_config(f'cluster = "c"\ncontrol_plane_urls = ["{url}"]', "agent.toml", {})


def test_every_unknown_key_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("a1 = 1\nb2 = 2")
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load_config(tmp_path / "none.toml")


def test_a_token_that_another_user_owns_leads_to_no_advice_to_write_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_path: Path, **_: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", closed)
    with pytest.raises(ConfigError) as refused:
        read_token(Path("/etc/understudy/token"))
    message = "token_file: /etc/understudy/token cannot be read: Permission denied; run this as the owner of the file"
    assert str(refused.value) == message


def test_a_token_file_without_a_token_is_refused(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    config = parse(f'token_file = "{token_file}"')
    assert config.token_file == token_file
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(token_file)
    token_file.write_text("\n")
    with pytest.raises(ConfigError, match="exactly one word"):
        read_token(token_file)
    token_file.write_text("secret\n")
    assert read_token(token_file) == "secret"
