"""What becomes of each kind of job with each fault, measured on real clusters: `make promise`.

`cells.py` is the matrix, `rank.py` a rank, `bench.py` one site with a gang of each kind, `__main__.py` the program.
"""
