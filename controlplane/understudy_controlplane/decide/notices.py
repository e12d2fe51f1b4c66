"""What people are notified of, in words: of incidents, tickets, the circuit breaker and recoveries. Pure.

Names, reasons and summaries come from users, operators and logs: `notify.plain` makes them harmless before they go.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy_controlplane.config import Importance
from understudy_controlplane.fleet.counted import counted, times
from understudy_controlplane.fleet.drill import WORDS
from understudy_controlplane.fleet.notice import Notice, NoticeSource, Stage
from understudy_controlplane.fleet.notice_facts import (
    IncidentFacts,
    MoveFacts,
    ProgramFacts,
    RequestFacts,
    TicketFacts,
    XidFacts,
)
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.fleet.slurm import ENDED_STATES

STOPPED_SECONDS = 60.0
"""After which the owner of a gang that stands still is notified, where no recovery has begun."""

SHOWN_MAX = 8

UNDER_WAY = (RecoveryStatus.RUNNING.value, RecoveryStatus.AWAITS_APPROVAL.value, RecoveryStatus.APPROVED.value)
WELL = (RecoveryStatus.SUCCEEDED.value, RecoveryStatus.SUPERSEDED.value, RecoveryStatus.OVERTAKEN.value)
LOOK_AT_CODE = (
    "If it stops again at the same step, look at the program: `understudy explain job {job}` shows which ranks did not "
    "arrive, and in which collective"
)


def of_incident(facts: IncidentFacts, needs: str = "") -> Notice:
    """`needs`: why a person is needed; empty: none is."""
    waits = facts.without_spare if not facts.moves and facts.closed_at is None else ""
    lines = [f"{facts.rule}: {_line(waits or facts.summary)}", *(_of_move(one) for one in facts.moves)]
    if facts.closed_at is not None:
        lines.append(f"Over: {_line(facts.outcome)}")
    failed = _has_failed(facts.moves)
    moved = any(one.status == RecoveryStatus.SUCCEEDED.value for one in facts.moves[-1:])
    stage = Stage.FAILED if failed else Stage.RECOVERED if moved else Stage.OPEN
    if facts.closed_at is None:
        lines.append(f"`understudy incident show {facts.number}` shows the evidence and what is done")
    name = f"{facts.kind.value} {facts.subject}"
    if facts.job_id is not None:
        name = _job(facts.job_id, facts.job_name, facts.user)
    return Notice(
        NoticeSource.INCIDENT,
        facts.number,
        Importance.PAGE if needs or (failed and facts.closed_at is None) else Importance.WARNING,
        Stage.OVER if facts.closed_at is not None else stage,
        f"{_drill(facts.summary, facts.signal)}{name}: {_words(facts.signal)}",
        "\n".join(lines),
        (f"job {facts.job_id}" if facts.job_id is not None else facts.subject,),
        facts.opened_at,
        f"incidents/{facts.number}",
        over_at=facts.closed_at,
        needs=needs,
    )


def _has_failed(moves: Sequence[MoveFacts]) -> bool:
    """And none has succeeded since: Understudy tries again and again, which is one failure."""
    statuses = [one.status for one in moves]
    last = max((number for number, status in enumerate(statuses) if status in WELL), default=-1)
    return RecoveryStatus.FAILED.value in statuses[last + 1 :]


def of_ticket(facts: TicketFacts) -> Notice:
    over = Stage.OVER if facts.closed_at is not None else Stage.OPEN
    reason = _line(facts.reason)
    release = f"\nOnce it is repaired: `understudy node release {facts.node} REASON`"
    return Notice(
        NoticeSource.TICKET,
        facts.number,
        Importance.PAGE,
        over if facts.waits else Stage.REPORTED,
        f"{_drill(facts.reason)}a person is needed: {shown(facts.about)}",
        reason + (release if facts.waits and over is Stage.OPEN else ""),
        facts.about,
        facts.opened_at,
        f"nodes/{facts.node}" if facts.waits else "",
        over_at=facts.closed_at if facts.waits else None,
        needs=reason,
    )


def of_breaker(facts: RequestFacts) -> Notice:
    return Notice(
        NoticeSource.BREAKER,
        facts.number,
        Importance.PAGE,
        Stage.REPORTED,
        "the circuit breaker is open",
        f"{_line(facts.reason)}\nUntil an administrator runs `understudy breaker reset REASON`, Understudy "
        "quarantines, repairs and returns no node, and moves no gang. `understudy breaker show` names the nodes",
        (),
        facts.at,
        "guards",
        needs=_line(facts.reason),
    )


def of_approval(facts: RequestFacts) -> Notice:
    return Notice(
        NoticeSource.APPROVAL,
        facts.number,
        Importance.PAGE,
        Stage.OPEN if facts.ended_at is None else Stage.OVER,
        f"recovery {facts.number} awaits approval",
        f"{_line(facts.reason)}\n`understudy recovery approve {facts.number} REASON` begins it, "
        f"`understudy recovery cancel {facts.number} REASON` rejects it"
        + (f"\nOver: {_line(facts.outcome)}" if facts.ended_at is not None else ""),
        (facts.subject,),
        facts.at,
        f"recoveries/{facts.number}",
        over_at=facts.ended_at,
        needs=_line(facts.reason),
    )


def of_move(facts: MoveFacts) -> Notice:
    """Notice to the owner of the job: what happened, what it cost, and what there is to do."""
    job = f"job {facts.job_id}"
    cause = _cause(facts)
    if facts.status in UNDER_WAY:
        stage, did = Stage.OPEN, "Understudy is restarting it."
    elif facts.status == RecoveryStatus.SUCCEEDED.value:
        stage, did = Stage.OVER, _restarted(facts)
    elif facts.status == RecoveryStatus.FAILED.value:
        stage, did = Stage.OVER, "Understudy could not restart it; administrators can see why."
    elif facts.status == RecoveryStatus.CANCELLED.value:
        stage, did = Stage.OVER, "An operator cancelled its restart."
    else:
        stage, did = Stage.OVER, "Understudy left it as it is: what it was to be restarted for is no longer so."
    advice = LOOK_AT_CODE.format(job=facts.job_id) + "." if facts.hang else "You do not have to do anything."
    if facts.status == RecoveryStatus.FAILED.value:
        advice = f"`squeue --jobs={facts.job_id}` shows its state; `scontrol requeue {facts.job_id}` starts it again."
    elif facts.status == RecoveryStatus.CANCELLED.value:
        advice = f"`squeue --jobs={facts.job_id}` shows its state."
    return Notice(
        NoticeSource.MOVE,
        facts.number,
        Importance.INFO if facts.status == RecoveryStatus.SUCCEEDED.value else Importance.WARNING,
        stage,
        f"{_drill(facts.summary, facts.signal)}{_job(facts.job_id, facts.job_name)}: {cause}",
        "\n".join((did, advice)),
        (job,),
        facts.fault_at or facts.decided_at,
        f"jobs/{facts.job_id}",
        facts.user,
        over_at=facts.ended_at if stage is Stage.OVER else None,
    )


def of_stopped(facts: IncidentFacts) -> Notice:
    """Notice to the owner of a gang that stands still and that no recovery restarts."""
    advice = LOOK_AT_CODE.format(job=facts.job_id)
    return Notice(
        NoticeSource.STOPPED,
        facts.number,
        Importance.WARNING,
        Stage.OPEN if facts.closed_at is None else Stage.OVER,
        f"{_job(facts.job_id, facts.job_name)}: {_words(facts.signal)}",
        (
            f"{_line(facts.summary)}\nUnderstudy has not restarted it. {advice}.\n"
            f"`scontrol requeue {facts.job_id}` restarts it from its last checkpoint."
            if facts.closed_at is None
            else f"Over: {_line(facts.outcome)}"
        ),
        (f"job {facts.job_id}",),
        facts.opened_at,
        f"jobs/{facts.job_id}",
        facts.user,
        over_at=facts.closed_at,
    )


def of_program(facts: ProgramFacts) -> Notice:
    """Notice to the owner of a job whose program failed: no node is blamed, and no recovery follows."""
    over = facts.has_given_up or facts.state in ENDED_STATES
    often = f"It failed {times(facts.failures)}, the last time: " if facts.failures > 1 else ""
    lines = [f"{often}{_line(facts.reason)}"]
    if facts.has_given_up:
        lines.append("The launcher starts it no more.")
    elif over:
        lines.append(f"The job is over: {facts.state.lower().replace('_', ' ')}.")
    else:
        lines.append(
            "The launcher starts it again from its last checkpoint, and ends the job where that does not help."
        )
    lines.append("No node is blamed: look at the program, and at the job's own output.")
    job = f"job {facts.job_id}"
    return Notice(
        NoticeSource.LAUNCH,
        facts.number,
        Importance.WARNING,
        Stage.OVER if over else Stage.OPEN,
        f"{_job(facts.job_id, facts.job_name)}: its program failed",
        "\n".join(lines),
        (job,),
        facts.at,
        f"jobs/{facts.job_id}",
        facts.user,
        over_at=facts.at if over else None,
    )


def of_xid(facts: XidFacts) -> Notice:
    """Notice to the owner of a job whose program made a GPU report an error. Understudy changes nothing."""
    job = f"job {facts.job_id}"
    return Notice(
        NoticeSource.XID,
        facts.number,
        Importance.WARNING,
        Stage.REPORTED,
        f"{job}: its program caused an error on {shown(facts.nodes)}",
        f"{_line(facts.reason)}\nUnderstudy has not restarted the job, and blames no node: look at the program, and at "
        "the job's own output.",
        (job,),
        facts.at,
        f"jobs/{facts.job_id}",
        facts.user,
    )


def of_lemon(facts: RequestFacts) -> Notice:
    return Notice(
        NoticeSource.LEMON,
        facts.number,
        Importance.WARNING,
        Stage.REPORTED,
        f"{facts.subject} fails repeatedly",
        _line(facts.reason),
        (facts.subject,),
        facts.at,
        f"nodes/{facts.subject}",
    )


def of_week(week: int, name: str, lines: Sequence[str], until: float) -> Notice:
    """`week`: counted from 1970-01-05; `name`: as 2026-W47."""
    text = "\n".join(lines)
    return Notice(
        NoticeSource.REPORT, week, Importance.INFO, Stage.REPORTED, f"report of {name}", text, (name,), until, "reports"
    )


def shown(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_MAX]) + (f", … ({len(names)} in all)" if len(names) > SHOWN_MAX else "")


def _job(number: int | None, name: str, user: str = "") -> str:
    return f"job {number}{f' ({_line(name)})' if name else ''}{f' of {_line(user)}' if user else ''}"


def _drill(summary: str, signal: str = "") -> str:
    """A drill is an Xid. What is found of a gang may quote names that its program chooses."""
    return "DRILL: " if WORDS in summary and not signal.startswith("gang_") else ""


def _of_move(move: MoveFacts) -> str:
    about = _job(move.job_id, move.job_name, move.user) if move.job_id is not None else f"recovery {move.number}"
    if move.status in UNDER_WAY:
        return f"Recovery {move.number} of {about} is {_words(move.status)}"
    seconds = f" after {move.ended_at - (move.fault_at or move.decided_at):.1f} s" if move.ended_at is not None else ""
    to = f" with {shown(move.spares)}" if move.spares and move.status in WELL else ""
    why = f": {_line(move.outcome)}" if move.outcome and move.status == RecoveryStatus.FAILED.value else ""
    return f"Recovery {move.number} of {about}{to} {_words(move.status)}{seconds}{why}"


def _cause(move: MoveFacts) -> str:
    if move.hang:
        return "its ranks stopped making steps"
    if not move.nodes:
        return "it was moved"
    cause = _words(move.signal) if move.signal else "taken out of service"
    return f"{shown(move.nodes)}: {cause}"


def _restarted(move: MoveFacts) -> str:
    did = f"Understudy restarted it{f' with {shown(move.spares)}' if move.spares else ''}"
    if move.ended_at is not None:
        did += f"; it stood still for {move.ended_at - (move.fault_at or move.decided_at):.0f} s"
    if move.restore_step is None:
        return f"{did}."
    lost = move.last_step + 1 - move.restore_step if move.last_step is not None else None
    steps = f", and {counted(max(lost, 0), 'step is', 'steps are')} computed again" if lost is not None else ""
    return f"{did}. It went on from step {move.restore_step}{steps}."


def _line(text: str) -> str:
    """Text of others as a part of one line."""
    return " ".join(text.split())


def _words(name: str) -> str:
    return name.replace("_", " ")
