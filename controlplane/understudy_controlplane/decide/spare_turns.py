"""Orders gangs that want the same spare: shares of accounts, then Slurm's priority. Pure."""

from __future__ import annotations

from understudy_controlplane.config import Config
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.snapshot import Snapshot


def turn(snapshot: Snapshot, config: Config, job: Job) -> tuple[bool, int, int]:
    """Sort key: accounts that have not had their share before those that have, then the higher priority in Slurm, in
    which QOS and shares count as the site has set them, then the older job.
    """
    return bool(share_had(snapshot, config, job)), -job.slurm.priority, job.key.job_id


def share_had(snapshot: Snapshot, config: Config, job: Job) -> str:
    """Text if the job's account has had more of the spares of the last week than its share; else empty."""
    account, all_taken = job.slurm.account, sum(snapshot.history.spares_taken.values())
    share, taken = config.spares.account_shares.get(account), snapshot.history.spares_taken.get(account, 0)
    if share is None or taken <= share * all_taken:
        return ""
    return f"account {account} has had {taken} of {all_taken} spares within a week, more than its share of {share:.0%}"
