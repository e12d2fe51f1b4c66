"""`make bench-recovery`: the same job, the same faults, under `understudy run` and under what people use today.

Belongs here: the job (`job.py`), who runs it (`sides.py`), what breaks (`faults.py`), and what follows from what was
written down (`judge.py`: pure). Must not: promises; those are tests.
"""
