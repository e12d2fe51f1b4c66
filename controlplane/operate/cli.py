"""The command line: `understudy serve | status | pause | resume | check-config | doctor`."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from controlplane.config import ConfigError, load_config

DEFAULT_CONFIG = Path("/etc/understudy/controlplane.toml")
DEFAULT_URL = "http://127.0.0.1:7117"
TIMEOUT_SECONDS = 10.0

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Hot spares for gang jobs on Slurm. On compute nodes: `understudy agent --help`.",
)
console = Console(highlight=False)
complaint = Console(stderr=True, soft_wrap=True)

ConfigOption = Annotated[Path, typer.Option("--config", help="The control plane's configuration file.")]
UrlOption = Annotated[str, typer.Option("--url", envvar="UNDERSTUDY_URL", help="Where the control plane listens.")]
TokenOption = Annotated[
    Path, typer.Option("--token-file", envvar="UNDERSTUDY_TOKEN_FILE", help="File with the operator's token.")
]
DEFAULT_TOKEN_FILE = Path("/etc/understudy/operator.token")


def main() -> None:
    app()


@app.command()
def serve(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Run the control plane."""
    from controlplane.serve import serve as run

    try:
        run(load_config(config))
    except ConfigError as error:
        _fail(str(error), 2)


@app.command("check-config")
def check_config(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Read the configuration and say whether it is usable."""
    try:
        loaded = load_config(config)
    except ConfigError as error:
        _fail(str(error), 2)
    else:
        console.print(f"{config}: good. Cluster {loaded.cluster}, mode {loaded.mode.value}.")


@app.command()
def doctor(
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Look at Slurm: can it be used, which of its settings cost recovery time or safety, and what to set.

    Ends with 1 where something is dangerous or Slurm cannot be reached.
    """
    from controlplane.operate.doctor import diagnose, draw

    try:
        # Before there is a configuration Slurm is looked at with the defaults.
        loaded = load_config(config) if config != DEFAULT_CONFIG or config.exists() else None
    except ConfigError as error:
        _fail(str(error), 2)
        raise
    diagnosis = diagnose(loaded)
    if as_json:
        told = msgspec.to_builtins(diagnosis) | {"dangerous": diagnosis.dangerous}
        sys.stdout.write(f"{msgspec.json.format(msgspec.json.encode(told), indent=2).decode()}\n")
    else:
        draw(diagnosis, console)
    raise typer.Exit(1 if diagnosis.dangerous else 0)


@app.command()
def status(url: UrlOption = DEFAULT_URL) -> None:
    """The fleet at a glance."""
    whole, nodes = _get(url, "/v1/status"), _get(url, "/v1/nodes")
    paused = f"PAUSED: {whole['paused']}" if whole["paused"] else "not paused"
    console.print(f"[bold]{escape(whole['cluster'])}[/]  mode [bold]{whole['mode']}[/]  {escape(paused)}")
    spares = whole["spares"]
    console.print(
        f"spares {len(spares['held'])} of {spares['wanted']}  open incidents {whole['incidents_open']}  "
        f"recoveries running {len(whole['recoveries_running'])}",
        highlight=False,
    )
    for problem in whole["problems"] + ([whole["slurm"]["error"]] if whole["slurm"]["error"] else []):
        console.print(f"[red]problem:[/] {escape(problem)}")
    table = Table("node", "state", "slurm", "GPUs", "jobs", "reason", box=None, header_style="bold")
    for node in nodes:
        table.add_row(*_node_row(node))
    console.print(table)
    _print_recoveries(_get(url, "/v1/recoveries?limit=10"))


@app.command()
def pause(reason: str, url: UrlOption = DEFAULT_URL, token_file: TokenOption = DEFAULT_TOKEN_FILE) -> None:
    """Begin nothing from now on. Recoveries under way go on to their end."""
    _intend(url, "pause", reason, token_file)


@app.command()
def resume(reason: str, url: UrlOption = DEFAULT_URL, token_file: TokenOption = DEFAULT_TOKEN_FILE) -> None:
    """Take up work again after a pause."""
    _intend(url, "resume", reason, token_file)


def _node_row(node: dict[str, Any]) -> list[str]:
    slurm = node["slurm"] or {"state": "unknown", "flags": [], "reason": ""}
    good = sum(gpu["status"] == "ok" for gpu in node["gpus"])
    state = "spare" if node["spare"] and node["state"] == "in_service" else node["state"]
    colour = {"in_service": "green", "spare": "cyan", "quarantined": "red"}.get(state, "yellow")
    return [
        escape(node["name"]),
        f"[{colour}]{state}[/]",
        "+".join([slurm["state"], *slurm["flags"]]),
        f"{good}/{len(node['gpus'])}",
        " ".join(str(job) for job in node["jobs"]),
        escape(slurm["reason"]),
    ]


def _print_recoveries(recoveries: list[dict[str, Any]]) -> None:
    swaps = [one for one in recoveries if one["kind"] != "fill_pool"]
    if not swaps:
        return
    table = Table("recovery", "status", "node", "spare", "job", "steps lost", "took", box=None, header_style="bold")
    for one in swaps:
        took = one["phases_ms"].get("first_step", one["phases_ms"].get("running"))
        table.add_row(
            str(one["id"]),
            one["status"],
            " ".join(one["nodes"]),
            " ".join(one["spares"]),
            str(one["job"]["job_id"]) if one["job"] else "",
            "" if one.get("steps_lost") is None else str(one["steps_lost"]),
            f"{took / 1000:.1f} s" if took is not None else "",
        )
    console.print(table)


def _intend(url: str, verb: str, reason: str, token_file: Path) -> None:
    try:
        token = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{token_file}: {error}; give the operator's token with --token-file", 2)
        return
    by = os.environ.get("SUDO_USER") or getpass.getuser()
    response = _ask("POST", url, f"/v1/{verb}", json={"reason": reason, "by": by}, token=token)
    state = response["paused"]
    console.print(f"paused: {escape(state)}" if state else "not paused")


def _get(url: str, path: str) -> Any:
    return _ask("GET", url, path)


def _ask(method: str, url: str, path: str, json: Any = None, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.request(method, url + path, json=json, headers=headers, timeout=TIMEOUT_SECONDS)
    except httpx.HTTPError as error:
        _fail(f"{url}: no answer ({error}); is `understudy serve` running there? Another place: --url", 1)
        raise
    try:
        answer = response.json()
    except ValueError:
        _fail(f"{url}{path}: no JSON in the answer; is that an Understudy control plane?", 1)
        raise
    if response.is_error:
        said = answer if isinstance(answer, dict) else {}
        _fail(f"{url}{path}: {said.get('error', answer)}. {said.get('hint', '')}".strip(), 1)
    return answer


def _fail(message: str, code: int) -> None:
    complaint.print(message, highlight=False, markup=False)
    raise typer.Exit(code)
