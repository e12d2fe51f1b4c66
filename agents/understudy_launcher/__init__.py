"""`understudy run`: a gang inside an allocation, with warm standbys, restarted when a node of it fails.

Three programs: the launcher on the batch host (`launcher.py`), a seat on every node (`seat.py`), and the interpreters
that wait with their imports done (`warm.py`). What to do when the gang fails is judged purely (`launch_start.py`,
`launch_over.py`, `launch_leftovers.py`, `decide.py`). The launcher needs nothing but Python and no control plane,
touches no job or step that is not its own, and does not judge hardware: verdicts come from outside. Why it is so:
docs/adr/0014.
"""
