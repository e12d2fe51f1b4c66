"""What becomes of each kind of job with each fault, measured on a real cluster: `make promise`.

`cells.py` is the matrix, `job.py` and `rank.py` the jobs, `faults.py` what breaks, `bench.py` one site with a gang of
each kind, `__main__.py` the program.
"""
