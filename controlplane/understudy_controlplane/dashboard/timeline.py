"""A recovery as a drawing: milliseconds from the fault to the first step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from understudy_controlplane.dashboard.page import duration
from understudy_controlplane.fleet.recovery import RecoveryStep, StepStatus
from understudy_controlplane.store.queries import Record

WIDTH, LABELS, ROW, BAR = 960, 190, 26, 14
ROOM = 90
"""Space to the right of the longest bar, for its text."""

TICKS = 6
NARROWEST = 3.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Bar from `begin_ms` to `end_ms` after the fault. `kind`: detect, decide, done, running, failed or planned."""

    name: str
    begin_ms: float
    end_ms: float
    kind: str
    attempts: int = 1
    detail: str = ""

    @property
    def words(self) -> str:
        if self.kind == "planned":
            return "not begun"
        again = f", attempt {self.attempts}" if self.attempts > 1 else ""
        goes_on = {"running": " so far", "failed": ", failed"}.get(self.kind, "")
        return f"{duration(self.end_ms - self.begin_ms)}{goes_on}{again}"


def bars(recovery: Record, now: float) -> list[Bar]:
    """`now` ends what is under way."""
    fault = recovery["fault_at"] or recovery["detected_at"] or recovery["decided_at"]

    def after(at: float) -> float:
        return max((at - float(fault)) * 1000, 0.0)

    detected = recovery["detected_at"] or recovery["decided_at"]
    found = [
        Bar("detect", 0.0, after(detected), "detect"),
        Bar("decide", after(detected), after(recovery["decided_at"]), "decide"),
    ]
    reached = after(recovery["decided_at"])
    for step in recovery["steps"]:
        if step.communicator_at is not None:
            found.append(Bar("communicator", min(reached, joined := after(step.communicator_at)), joined, "done"))
            reached = max(reached, joined)
        bar = _of_step(step, reached, after(recovery["ended_at"] or now), after)
        reached = max(reached, bar.end_ms)
        found.append(bar)
    return found


def _of_step(step: RecoveryStep, reached: float, end: float, after: Callable[[float], float]) -> Bar:
    name = step.name.value.replace("_", " ")
    begin = reached if step.intended_at is None else after(step.intended_at)
    attempts, detail = max(step.attempts, 1), step.detail
    if step.status is StepStatus.DONE and step.done_at is not None:
        done = after(step.done_at)
        return Bar(name, min(begin, done), done, "done", attempts, detail)
    if step.status is StepStatus.FAILED:
        return Bar(name, begin, max(end, begin), "failed", attempts, detail)
    if step.status is StepStatus.INTENDED:
        return Bar(name, begin, max(end, begin), "running", attempts, detail)
    return Bar(name, reached, reached, "planned", attempts, detail)


def drawn(shown: Sequence[Bar]) -> Markup:
    """Rows from above, to scale. Each bar has its duration beside it."""
    total = max((bar.end_ms for bar in shown), default=0.0) or 1.0
    width = WIDTH - LABELS - ROOM
    scale = width / total
    height = ROW * len(shown) + 30
    rows = [_row(number, bar, scale) for number, bar in enumerate(shown)]
    ticks = [_tick(at, scale, height, f"{at / 1000:g} s" if at else "fault") for at in ticks_of(total)]
    return Markup(
        '<svg class="timeline" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{ticks}{rows}</svg>'
    ).format(
        w=WIDTH,
        h=height,
        label=f"Timeline of {duration(total)}: " + "; ".join(f"{bar.name} {bar.words}" for bar in shown),
        ticks=Markup("").join(ticks),
        rows=Markup("").join(rows),
    )


def ticks_of(total_ms: float) -> list[float]:
    """Round numbers of milliseconds."""
    rough = total_ms / TICKS
    power = 10.0 ** len(str(int(rough))) / 10 if rough >= 1 else 1.0
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), power * 10)
    return [step * number for number in range(int(total_ms / step) + 1)]


def _tick(at: float, scale: float, height: int, words: str) -> Markup:
    x = LABELS + at * scale
    return Markup('<path class="tick" d="M{x} 0V{y}"/><text class="axis" x="{x}" y="{t}">{words}</text>').format(
        x=f"{x:.1f}", y=height - 24, t=height - 8, words=words
    )


def _row(number: int, bar: Bar, scale: float) -> Markup:
    y = number * ROW + 4
    begin = LABELS + bar.begin_ms * scale
    width = max((bar.end_ms - bar.begin_ms) * scale, NARROWEST)
    return Markup(
        '<text class="name" x="{label}" y="{text_y}">{name}</text>'
        '<rect class="bar b-{kind}" x="{x}" y="{y}" width="{width}" height="{bar}" rx="2"/>'
        '<text class="value" x="{after}" y="{text_y}">{words}</text>'
    ).format(
        label=LABELS - 12,
        text_y=y + 11,
        name=bar.name,
        kind=bar.kind,
        x=f"{begin:.1f}",
        y=y,
        width=f"{width:.1f}",
        bar=BAR,
        after=f"{begin + width + 6:.1f}",
        words=bar.words,
    )
