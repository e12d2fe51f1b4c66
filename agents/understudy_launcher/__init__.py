"""`understudy run`: a gang inside an allocation, with warm standbys, restarted when a node of it fails.

Belongs here: starting the gang through Slurm, watching it, and what to do when it fails (pure: `seating.py`,
`launch_over.py`, `ending.py`, `decide.py`). Must not: any import outside the standard library, judging whether hardware
is healthy (verdicts come from outside), touching a job or a step that is not its own, or a control plane to be there.

Three programs: the launcher on the batch host (`launcher.py`), a seat on every node (`seat.py`), and the interpreters
that wait with their imports done (`warm.py`). Why it is so: docs/adr/0014.
"""
