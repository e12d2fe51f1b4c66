"""The control plane: sees the fleet, judges it, and acts on it through Slurm.

Data flows one way: ingest → live and store → snapshot → detect → decide → recover → Slurm, and comes back only as
a new observation. `docs/architecture.md` has a paragraph for each room.
"""
