"""Signals of Slurm: the warning and the end."""

from __future__ import annotations

import signal
from signal import SIGINT, SIGTERM, SIGUSR1, SIGUSR2

from understudy_launcher.signals import Meaning, Signals


def warned(by: signal.Signals, at: float) -> Signals:
    signals = Signals(by)
    signals.warned_at = at
    return signals


def test_the_warning_is_the_configured_signal_and_every_other_is_the_end() -> None:
    signals = Signals(SIGUSR1)
    assert signals.meaning(SIGUSR1, 10.0) is Meaning.WARNING
    assert signals.meaning(SIGTERM, 10.0) is Meaning.END
    assert signals.meaning(SIGINT, 10.0) is Meaning.END
    assert warned(SIGUSR1, at=10.0).meaning(SIGUSR1, 20.0) is Meaning.WARNING


def test_sigterm_is_the_warning_once_and_the_end_at_the_end_of_the_grace_time() -> None:
    assert Signals(SIGTERM).meaning(SIGTERM, 10.0) is Meaning.WARNING
    signals = warned(SIGTERM, at=10.0)
    assert signals.meaning(SIGTERM, 11.0) is Meaning.NOTHING, "it came to the step and to the batch script"
    assert signals.meaning(SIGTERM, 12.1) is Meaning.END


def test_after_the_end_nothing_is_a_warning() -> None:
    signals = Signals(SIGTERM)
    signals.ending_for = SIGINT
    assert signals.meaning(SIGTERM, 10.0) is Meaning.END
    assert signals.meaning_of_a_steps(SIGTERM) is Meaning.NOTHING


def test_of_signals_to_a_step_only_the_first_warning_is_for_the_launcher() -> None:
    assert Signals(SIGUSR1).meaning_of_a_steps(SIGUSR1) is Meaning.WARNING
    assert Signals(SIGUSR1).meaning_of_a_steps(SIGUSR2) is Meaning.NOTHING
    assert warned(SIGUSR1, at=10.0).meaning_of_a_steps(SIGUSR1) is Meaning.NOTHING
