"""Metrics with a series for each managed job that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from understudy_controlplane.api.exported.metric import Metric, Sample, labels_text
from understudy_controlplane.api.exported.source import JOBS_MAX, Source
from understudy_controlplane.fleet import training
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.steps import StepTable


def _of_jobs(value: Callable[[Source, Job], float | None]) -> Callable[[Source], Iterator[Sample]]:
    def samples(source: Source) -> Iterator[Sample]:
        for job in source.jobs:
            found = value(source, job)
            if found is not None:
                yield f'{{job_id="{job.slurm.job_id}"}}', found

    return samples


def _job_info(source: Source) -> Iterator[Sample]:
    for job in source.jobs:
        labels = labels_text(job_id=str(job.slurm.job_id), user=job.slurm.user, partition=job.slurm.partition)
        yield labels, 1.0


def _step(source: Source, job: Job) -> float | None:
    table = source.snapshot.progress.tables.get(job.key)
    return table.number if table is not None else None


def _step_age(source: Source, job: Job) -> float | None:
    table = source.snapshot.progress.tables.get(job.key)
    return source.now - table.advanced_at if table is not None and table.advanced_at else None


def _of_training(value: Callable[[StepTable], float | None]) -> Callable[[Source, Job], float | None]:
    def of_job(source: Source, job: Job) -> float | None:
        table = source.snapshot.progress.tables.get(job.key)
        return value(table) if table is not None else None

    return of_job


def _mfu(source: Source, job: Job) -> float | None:
    table = source.snapshot.progress.tables.get(job.key)
    return training.mfu(table, source.snapshot.gpus_on) if table is not None else None


def _launch(source: Source, job: Job) -> float | None:
    gang = source.snapshot.progress.gangs.get(job.key)
    return gang.state.launch if gang is not None else None


def _spares_in_allocation(source: Source, job: Job) -> float | None:
    gang = source.snapshot.progress.gangs.get(job.key)
    return len(gang.spares) if gang is not None else None


def _job(name: str, documentation: str, value: Callable[[Source, Job], float | None]) -> Metric[Source]:
    return Metric(name, documentation, _of_jobs(value), ("job_id",), f"managed running jobs, {JOBS_MAX} at most")


JOBS: tuple[Metric[Source], ...] = (
    Metric(
        "job_info",
        f"1; a managed job that runs. Of more than {JOBS_MAX}, those of the most nodes.",
        _job_info,
        ("job_id", "user", "partition"),
        f"managed running jobs, {JOBS_MAX} at most",
    ),
    _job("job_nodes", "Nodes of the job.", lambda _, job: job.slurm.node_count),
    _job("job_restarts", "How many times Slurm has requeued the job.", lambda _, job: job.slurm.restart_count),
    _job("job_launch", "Launches of the gang within this allocation, as its launcher counts.", _launch),
    _job("job_spares", "Spares within the allocation that are left.", _spares_in_allocation),
    _job("job_step", "Number of the newest step that a rank has finished.", _step),
    _job("job_step_age_seconds", "Time since a rank last reported a new step.", _step_age),
    _job("job_step_seconds", "Duration of a step, of the usual rank.", _of_training(training.step_seconds)),
    _job("job_loss", "Loss that the ranks observed last, their mean.", _of_training(training.loss)),
    _job("job_grad_norm", "Gradient norm that the usual rank observed last.", _of_training(training.grad_norm)),
    _job(
        "job_tokens_per_second",
        "Tokens that the gang processes, where its ranks observe them.",
        _of_training(training.tokens_per_second),
    ),
    _job(
        "job_mfu_ratio",
        "Model FLOPs utilization: what the model needs for its tokens, of what its GPUs could do in BF16 by their data "
        "sheets.",
        _mfu,
    ),
)
