"""What scontrol prints of a large cluster, made from records of a real one (Slurm 22.05.8, `tests/slurm/data`)."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "slurm" / "data"
NODES = 12_500
JOBS = 2_000
GANG = 8


def nodes_text(nodes: int = NODES, drained_every: int = 500, load: int = 65) -> str:
    """`load`, in hundredths, is what slurmd reports with every ping: another value changes every record."""
    recorded = (DATA / "nodes-22.05.txt").read_text(encoding="utf-8").split("\n")
    busy, drained = _record(recorded, "NodeName=n4 "), _record(recorded, "NodeName=n2 ")
    return "".join(_node(drained if i % drained_every == 0 else busy, i, load) for i in range(1, nodes + 1))


def jobs_text(jobs: int = JOBS, nodes: int = NODES, seconds: int = 15) -> str:
    """Gangs of eight nodes while there are nodes for them, the others pending. They have run for `seconds`."""
    recorded = (DATA / "jobs-22.05.txt").read_text(encoding="utf-8").split("\n")
    running = (
        _record(recorded, "JobId=1 ")
        .replace("a name = odd  Comment=x", "gang")
        .replace(" AdminComment=admin Comment=y ", "")
        .replace("RunTime=00:00:15", f"RunTime=00:{seconds // 60:02d}:{seconds % 60:02d}")
    )
    waiting = _record(recorded, "JobId=5 ")
    return "".join(_job(running if i * GANG <= nodes else waiting, i) for i in range(1, jobs + 1))


def _record(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.startswith(start))


def _node(record: str, number: int, load: int) -> str:
    name, _, rest = record.partition(" ")
    port = rest.partition(" Port=")[2].partition(" ")[0]
    rest = rest.replace(f" Port={port}", f" Port={17_000 + number % 10_000}")
    rest = rest.replace(" CPULoad=0.65 ", f" CPULoad={load / 100:.2f} ").replace(
        "NodeAddr=127.0.0.1 NodeHostName=localhost", f"NodeAddr=c{number} NodeHostName=c{number}"
    )
    return f"{name.partition('=')[0]}=c{number} {rest}\n"


def _job(record: str, number: int) -> str:
    _, _, rest = record.partition(" ")
    first = (number - 1) * GANG + 1
    return f"JobId={number} {rest}\n".replace("NodeList=n[4-5] ", f"NodeList=c[{first}-{first + GANG - 1}] ").replace(
        "BatchHost=n4 NumNodes=2 ", f"BatchHost=c{first} NumNodes={GANG} "
    )
