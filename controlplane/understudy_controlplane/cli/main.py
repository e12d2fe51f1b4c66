"""The command line: `understudy serve | status | pause | resume | hold | release | retire | reset-breaker | …`."""

from __future__ import annotations

import ssl
from contextlib import suppress
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from understudy_controlplane.cli.audit import audit_app
from understudy_controlplane.cli.offline import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    analyze,
    console,
    explain,
    fail,
    print_json,
)
from understudy_controlplane.cli.tokens import tokens_app
from understudy_controlplane.config import ConfigError, load_config

DEFAULT_URL = "http://127.0.0.1:7117"
TIMEOUT_SECONDS = 10.0
DISTRIBUTION = "slurm-understudy"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Hot spares for gang jobs on Slurm. On compute nodes: `understudy agent --help`.",
)
app.add_typer(explain, name="explain")
app.add_typer(analyze, name="analyze")
recovery_app = typer.Typer(no_args_is_help=True, help="Recoveries under way.")
app.add_typer(recovery_app, name="recovery")
app.add_typer(tokens_app, name="token")
app.add_typer(audit_app, name="audit")

TOKEN_FILES = (Path("~/.config/understudy/token"), Path("/etc/understudy/operator.token"))
"""The first one that this user can read counts."""

UrlOption = Annotated[str, typer.Option("--url", envvar="UNDERSTUDY_URL", help="URL of the control plane.")]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="UNDERSTUDY_TOKEN_FILE",
        show_default=" or ".join(map(str, TOKEN_FILES)),
        help="File with your token.",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="UNDERSTUDY_CA_FILE",
        help="Certificates (PEM) that may sign the control plane's; without it the system's.",
    ),
]
_ca_file: ContextVar[Path | None] = ContextVar("ca_file", default=None)
NodeArgument = Annotated[str, typer.Argument(help="NodeName in Slurm.")]
JobArgument = Annotated[int, typer.Argument(help="Slurm's job id.")]
ReasonArgument = Annotated[str, typer.Argument(help="Why; it is recorded with the label of your token.")]


def main() -> None:
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"understudy {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def options(
    ca_file: CaOption = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What the command takes before a verb."""
    _ca_file.set(ca_file)


@app.command()
def serve(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Run the control plane."""
    from understudy_controlplane.serve import serve as run

    try:
        run(load_config(config))
    except ConfigError as error:
        fail(str(error), 2)


@app.command("check-config")
def check_config(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Check the configuration file."""
    try:
        loaded = load_config(config)
    except ConfigError as error:
        fail(str(error), 2)
    else:
        console.print(f"{config}: valid. Cluster {loaded.cluster}, mode {loaded.mode.value}.")


@app.command()
def doctor(
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Check Slurm: whether it can be used, and which settings to change because they cost recovery time or safety.

    Exits with 1 where a setting is dangerous or Slurm cannot be reached.
    """
    from understudy_controlplane.cli.doctor import diagnose, draw

    try:
        # Without a configuration file the defaults apply.
        loaded = load_config(config) if config != DEFAULT_CONFIG or config.exists() else None
    except ConfigError as error:
        fail(str(error), 2)
        raise
    diagnosis = diagnose(loaded)
    if as_json:
        print_json(msgspec.to_builtins(diagnosis) | {"dangerous": diagnosis.dangerous})
    else:
        draw(diagnosis, console)
    raise typer.Exit(1 if diagnosis.dangerous else 0)


@app.command()
def simulate(
    seed: Annotated[int, typer.Option(help="First seed.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    nodes: Annotated[int, typer.Option(min=16, help="Nodes of the cluster. More than 16 run for longer.")] = 16,
    trace: Annotated[bool, typer.Option("--trace", help="Print what happens, second by second.")] = False,
) -> None:
    """Run the control plane against a virtual cluster with faults: 15 simulated minutes for each seed of 16 nodes.

    Exits with 1 where an invariant is violated; then the smallest set of events that leads to it is printed.
    """
    from understudy_controlplane.simulate.run import run_seeds

    failed = run_seeds(range(seed, seed + seeds), nodes=nodes, trace=trace, show=typer.echo)
    raise typer.Exit(1 if failed else 0)


@app.command()
def status(url: UrlOption = DEFAULT_URL, token_file: TokenOption = None) -> None:
    """Show the fleet: mode, spares, problems, nodes and recoveries."""
    token = _token(token_file)
    whole, nodes = _get(url, "/v1/status", token), _get_all(url, "/v1/nodes", token)
    paused = f"PAUSED: {whole['paused']}" if whole["paused"] else "not paused"
    console.print(f"[bold]{escape(whole['cluster'])}[/]  mode [bold]{whole['mode']}[/]  {escape(paused)}")
    spares = whole["spares"]
    console.print(
        f"spares {spares['held']} of {spares['wanted']}  open incidents {whole['incidents_open']}  "
        f"recoveries running {whole['recoveries_running']}",
        highlight=False,
    )
    for problem in whole["problems"] + ([whole["slurm"]["error"]] if whole["slurm"]["error"] else []):
        console.print(f"[red]problem:[/] {escape(problem)}")
    table = Table("node", "state", "slurm", "GPUs", "jobs", "reason", box=None, header_style="bold")
    for node in nodes:
        table.add_row(*_node_row(node))
    console.print(table)
    _print_recoveries(_get(url, "/v1/recoveries?limit=10", token)["items"])


@app.command()
def pause(
    reason: ReasonArgument,
    now: Annotated[bool, typer.Option("--now", help="Halt what is under way, also between two attempts.")] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Pause the control plane: it begins nothing. A gang that has left its nodes is still started again."""
    _print_paused(_request(url, "pause", reason, token_file, **({"now": True} if now else {}))["paused"])


@recovery_app.command("cancel")
def cancel_recovery(
    recovery: Annotated[int, typer.Argument(help="Its number, as `understudy status` shows it.")],
    reason: ReasonArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Cancel a recovery under way. What it began is undone; what stays is named in its outcome."""
    _request(url, f"recoveries/{recovery}/cancel", reason, token_file)
    console.print(f"recovery {recovery}: cancelling; `understudy status` shows when it is over")


@app.command()
def resume(reason: ReasonArgument, url: UrlOption = DEFAULT_URL, token_file: TokenOption = None) -> None:
    """End a pause."""
    _print_paused(_request(url, "resume", reason, token_file)["paused"])


@app.command("reset-breaker")
def reset_breaker(reason: ReasonArgument, url: UrlOption = DEFAULT_URL, token_file: TokenOption = None) -> None:
    """Close the circuit breaker, after you have found out why it opened."""
    answer = _request(url, "reset-breaker", reason, token_file)
    console.print(f"open: {escape(answer['breaker'])}" if answer["breaker"] else "the circuit breaker is closed")


@app.command()
def hold(
    node: NodeArgument,
    reason: ReasonArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Take a node out of service until an operator releases it. Jobs that run there continue to their end."""
    _request_for_node(url, node, "hold", reason, token_file)


@app.command()
def release(
    node: NodeArgument,
    reason: ReasonArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Return a node to service that is held, retired, quarantined, or was repaired by a person."""
    _request_for_node(url, node, "release", reason, token_file)


@app.command("test")
def test_node(
    node: NodeArgument,
    reason: ReasonArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Validate a node in service as soon as no job uses it; then it is on probation, or out of service."""
    _request_for_node(url, node, "test", reason, token_file)


@app.command("burn-in")
def burn_in(
    node: NodeArgument,
    reason: ReasonArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Repeat the validation of a node for some hours, as soon as no job uses it."""
    _request_for_node(url, node, "burn-in", reason, token_file)


@app.command()
def retire(
    node: NodeArgument,
    reason: ReasonArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
) -> None:
    """Take a node out of service for good."""
    _request_for_node(url, node, "retire", reason, token_file)


def _request_for_node(url: str, node: str, verb: str, reason: str, token_file: Path | None) -> None:
    answer = _request(url, f"nodes/{node}/{verb}", reason, token_file)
    console.print(f"{escape(answer['node'])} is {answer['state']}: {answer['asked']} requested")


@app.command("trust-checkpoints")
def trust_checkpoints(
    job: JobArgument, reason: ReasonArgument, url: UrlOption = DEFAULT_URL, token_file: TokenOption = None
) -> None:
    """Declare a job's checkpoints good that are suspect because of NaN or jumps. Its next attempt may restore them."""
    _request(url, f"jobs/{job}/trust-checkpoints", reason, token_file)
    console.print(f"job {job}: the checkpoints that it has now are no longer suspect")


def _node_row(node: dict[str, Any]) -> list[str]:
    state = "spare" if node["spare"] and node["state"] == "in_service" else node["state"]
    colours = {
        "in_service": "green",
        "probation": "green",
        "spare": "cyan",
        "quarantined": "red",
        "manual_repair": "red",
    }
    colour = colours.get(state, "yellow")
    return [
        escape(node["name"]),
        f"[{colour}]{state}[/]",
        node["slurm"] or "unknown",
        f"{node['gpus_ok']}/{node['gpus']}",
        " ".join(str(job) for job in node["jobs"]),
        escape(node["reason"]),
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


def _request(url: str, what: str, reason: str, token_file: Path | None, **more: bool) -> Any:
    """POST to `/v1/what`; returns the answer."""
    token = _token(token_file)
    if not token:
        fail("there is no token: name its file with --token-file; `understudy token create` makes one", 2)
    return _ask("POST", url, f"/v1/{what}", json={"reason": reason, **more}, token=token)


def _token(file: Path | None) -> str:
    """Empty where no file is named and none of the usual ones can be read: a site may have open reads."""
    if file is not None:
        try:
            return file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"{file}: cannot be read: {error}; name the file of your token with --token-file", 2)
            raise
    for usual in TOKEN_FILES:
        with suppress(OSError, UnicodeDecodeError, RuntimeError):  # RuntimeError: this user has no home
            return usual.expanduser().read_text().strip()
    return ""


def _print_paused(state: str) -> None:
    console.print(f"paused: {escape(state)}" if state else "not paused")


def _get(url: str, path: str, token: str) -> Any:
    return _ask("GET", url, path, token=token)


def _get_all(url: str, path: str, token: str) -> list[Any]:
    """A list with all its pages."""
    page = _get(url, f"{path}?limit=1000", token)
    records = list(page["items"])
    while page["next"] is not None:
        page = _get(url, f"{path}?limit=1000&cursor={quote(str(page['next']), safe='')}", token)
        records += page["items"]
    return records


def _certificates() -> ssl.SSLContext | bool:
    """What the control plane's certificate is held against; True: the system's certificates."""
    ca_file = _ca_file.get()
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        fail(f"{ca_file}: cannot be used: {error}; --ca-file names a file with certificates in PEM", 2)
        raise


def _ask(method: str, url: str, path: str, json: Any = None, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.request(
            method, url + path, json=json, headers=headers, timeout=TIMEOUT_SECONDS, verify=_certificates()
        )
    except httpx.HTTPError as error:
        fail(f"{url}: no answer: {error}; check that `understudy serve` runs there, or name another URL with --url", 1)
        raise
    try:
        answer = response.json()
    except ValueError:
        fail(f"{url}{path}: the answer is not JSON; check that --url names an Understudy control plane", 1)
        raise
    if response.is_error:
        refusal = answer if isinstance(answer, dict) else {}
        fail(f"{url}{path}: {refusal.get('detail', answer)}; {refusal.get('hint', '')}".strip("; "), 1)
    return answer
