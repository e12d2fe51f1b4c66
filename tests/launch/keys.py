"""A key between launcher and seats, for tests."""

from __future__ import annotations

from understudy_launcher.join_launcher import Greeting
from understudy_wire.tls import make_key

JOB_KEY = make_key()
GREETING = Greeting(JOB_KEY.fingerprint, JOB_KEY.secret, generation=0, port=23456)
