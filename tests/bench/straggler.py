"""How good the straggler rule is, and how quick: false alarms on noise, slowdowns found, 100,000 ranks judged.

Noise is made by chance (`tests.generated_steps`), with work spread unevenly by 5 % in every step; RANK_DAYS of it are
looked at for every number of peers. Work that varies is that of a real job (`tests.resampled_steps`), of whose healthy
steps TRACE_RANK_DAYS are looked at. It also makes the drawing docs/straggler.svg.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from tests import resampled_steps
from tests.bench.result import Result, Size, result
from tests.generated_steps import STEP_SECONDS, GeneratedGang, false_alarms, steps_to_detection
from tests.resampled_steps import JUDGED, ResampledGangs
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import judge

IMBALANCE = 0.05
RANKS = 100_000
ROUNDS = 9
GANGS = 1000
WITHIN_STEPS = 100
TRACE_GANGS = 100
TRACE_ROUNDS = 100
RANK_DAYS, TRACE_RANK_DAYS = 20_000.0, 2_000.0
ALARM_PEERS = (4, 8, 16, 64, 256)
CURVE_PEERS = (3, 4, 8, 16, 32, 64, 128)
SLOWDOWNS = (0.03, 0.05, 0.10, 0.20)
NOW_AND_THEN = (0.20, 0.30, 0.50, 1.0)
"""Slowdowns of some steps only."""
DRAWING = Path(__file__).resolve().parents[2] / "docs" / "straggler.svg"


def alarms(rank_days: float, ranks: int) -> Result:
    """Healthy ranks named in 20,000 rank-days: for each number of peers a value."""
    half = Straggler().window_steps // 2
    rounds = max(1, round(rank_days * 86_400 / STEP_SECONDS / half / ranks))
    rates = []
    total, days = 0, 0.0
    for peers in ALARM_PEERS:
        found, judged = false_alarms(ranks, peers, IMBALANCE, rounds, seed=peers)
        total, days = total + found, days + judged
        rates.append(found / judged * 20_000)
        print(f"{peers} peers: {found} alarms in {judged:.0f} rank-days")
    print(f"together {total} in {days:.0f} rank-days; at most {upper(total) / days * 20_000:.2f} in 20,000 (95 %)")
    return result("straggler_alarms_per_20000_rank_days", "1", rates, {}, more_is_better=False, rounds=False)


def upper(events: int) -> float:
    """95 % upper bound of a Poisson mean of which so many were seen."""
    from math import exp, factorial

    low, high = float(events), events + 20.0
    for _ in range(60):
        middle = (low + high) / 2
        below = sum(exp(-middle) * middle**n / factorial(n) for n in range(events + 1))
        low, high = (middle, high) if below > 0.05 else (low, middle)
    return high


def curves(size: Size) -> tuple[list[Result], dict[float, list[float]]]:
    results: list[Result] = []
    drawn: dict[float, list[float]] = {}
    for slowdown in size.of(SLOWDOWNS, (0.2,)):
        for peers in CURVE_PEERS:
            taken = steps_to_detection(size.of(GANGS, 2), peers, IMBALANCE, slowdown, seed=peers)
            found = [steps for steps in taken if steps is not None and steps <= WITHIN_STEPS]
            share = len(found) / len(taken)
            drawn.setdefault(slowdown, []).append(share)
            name = f"straggler_{slowdown * 100:.0f}_percent_{peers}_peers"
            results.append(result(f"{name}_found", "1", [share], {}, more_is_better=True))
            if found:
                results.append(result(f"{name}_steps", "steps", found, {}, more_is_better=False))
            middle = f"{median(found):.0f}" if found else "-"
            print(f"{slowdown:4.0%} slower, {peers:3} peers: {share:6.1%} within {WITHIN_STEPS} steps, median {middle}")
    return results, drawn


def where_work_varies(size: Size) -> list[Result]:
    """Slowdowns found in a real job's steps, with and without other ranks of the replica to compare with."""
    results: list[Result] = []
    trace_gangs = size.of(TRACE_GANGS, 2)
    gangs_of = {True: ((True, False), (True, True), (False, False), (False, True)), False: ((True, False),)}
    for known, kinds in gangs_of.items():
        for each_step, longest in kinds:
            for slower in size.of(SLOWDOWNS, (0.2,)):
                gangs = ResampledGangs(trace_gangs, JUDGED, seed=int(slower * 100), shuffled_each_step=each_step)
                found = resampled_steps.steps_to_detection(gangs, slower, longest=longest, known=known)
                what = f"{'replicas' if known else 'none'}_{'steps' if each_step else 'gangs'}"
                name = f"straggler_trace_{what}{'_longest' if longest else ''}_{slower * 100:.0f}_percent"
                results.append(result(f"{name}_found", "1", [len(found) / trace_gangs], {}, more_is_better=True))
                if found:
                    results.append(result(f"{name}_steps", "steps", found, {}, more_is_better=False))
                print(
                    f"{name}: {len(found)} of {trace_gangs}, steps {median(found or [0]):.0f}, {max(found, default=0)}"
                )
    return results


def in_some_steps(size: Size) -> list[Result]:
    """A rank of the real job that is slow in every second or third step only."""
    results: list[Result] = []
    trace_gangs = size.of(TRACE_GANGS, 2)
    for known in (True, False):
        for every in (2, 3):
            for slower in size.of(NOW_AND_THEN, (1.0,)):
                gangs = ResampledGangs(trace_gangs, JUDGED, seed=int(slower * 100))
                found = resampled_steps.steps_to_detection(gangs, slower, known=known, every=every)
                what = f"{'replicas' if known else 'none'}_every_{every}"
                name = f"straggler_trace_{what}_{slower * 100:.0f}_percent"
                results.append(result(f"{name}_found", "1", [len(found) / trace_gangs], {}, more_is_better=True))
                print(
                    f"{name}: {len(found)} of {trace_gangs}, steps {median(found or [0]):.0f}, {max(found, default=0)}"
                )
    return results


def alarms_where_work_varies(size: Size) -> Result:
    rank_days, gangs_each = size.of(TRACE_RANK_DAYS, 0.1), size.of(TRACE_GANGS, 2)
    rates = []
    for each_step in (True, False):
        found, judged = 0, 0.0
        while judged < rank_days / 2:
            gangs = ResampledGangs(gangs_each, JUDGED, seed=int(judged), shuffled_each_step=each_step)
            more, days = resampled_steps.false_alarms(gangs, size.of(TRACE_ROUNDS, 2))
            found, judged = found + more, judged + days
        rates.append(found / judged * 20_000)
        print(f"real steps, order of {'steps' if each_step else 'gangs'}: {found} alarms in {judged:.0f} rank-days")
    return result("straggler_trace_alarms_per_20000_rank_days", "1", rates, {}, more_is_better=False, rounds=False)


def speed(size: Size) -> Result:
    ranks = size.of(RANKS, 1000)
    gang = GeneratedGang(ranks, ranks, IMBALANCE, seed=1, role="")
    gang.train(128)
    table, seconds = gang.table(), []
    for _ in range(size.of(ROUNDS, 1)):
        begun = time.perf_counter()
        judge(table, Straggler())
        seconds.append(time.perf_counter() - begun)
    return result("straggler_judge_100000_ranks", "s", seconds, {}, more_is_better=False)


COLOURS = {0.03: "#999999", 0.05: "#d08770", 0.10: "#2e7d32", 0.20: "#1565c0"}


def draw(drawn: dict[float, list[float]]) -> str:
    """Share found within 100 steps against the number of peers."""
    left, top, width, height = 60, 20, 480, 240
    xs = [left + width * i / (len(CURVE_PEERS) - 1) for i in range(len(CURVE_PEERS))]
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 310" font-family="sans-serif" font-size="12">',
        '<rect width="660" height="310" fill="white"/>',
        *(
            f'<text x="{left - 8}" y="{top + height * (1 - share) + 4}" text-anchor="end">{share:.0%}</text>'
            f'<path d="M{left},{top + height * (1 - share)} h{width}" stroke="#dddddd"/>'
            for share in (0, 0.25, 0.5, 0.75, 1)
        ),
        *(
            f'<text x="{x:.0f}" y="{top + height + 18}" text-anchor="middle">{peers}</text>'
            for x, peers in zip(xs, CURVE_PEERS, strict=True)
        ),
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">ranks of the role</text>',
    ]
    for slowdown, shares in drawn.items():
        points = " ".join(f"{x:.0f},{top + height * (1 - share):.1f}" for x, share in zip(xs, shares, strict=True))
        colour = COLOURS[slowdown]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + height * (1 - shares[-1]) + (16 if slowdown == 0.20 else 4)
        lines.append(f'<text x="{left + width + 8}" y="{y:.1f}" fill="{colour}">{slowdown:.0%} slower</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def measure(size: Size) -> list[Result]:
    found, drawn = curves(size)
    varied = [*where_work_varies(size), *in_some_steps(size), alarms_where_work_varies(size)]
    if size is Size.FULL:
        DRAWING.write_text(draw(drawn))
    return [speed(size), alarms(size.of(RANK_DAYS, 1.0), size.of(RANKS, 1024)), *found, *varied]
