"""The level shared in an object store: a job that outlives its cluster."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Job
from objects import Objects, served


@pytest.fixture
def bucket(job: Job, tmp_path: Path) -> Iterator[Objects]:
    """An empty bucket; the job has its credentials."""
    with served(tmp_path) as objects:
        job.extra |= objects.environment()
        job.beyond = "shared"
        job.levels = "memory,disk,shared"
        yield objects


def options(bucket: Objects) -> tuple[str, ...]:
    return ("--object-store", bucket.url)


def test_a_job_goes_on_where_nothing_but_the_bucket_is_left(job: Job, bucket: Objects) -> None:
    job.steps, steps = 60, job.steps
    job.hold(55, 40, "all-nodes")
    first = job.survive(*options(bucket))
    saved = first.report["checkpoints"]["last"]["shared"]
    assert saved >= 40
    shutil.rmtree(job.store)
    job.steps = steps
    second = job.survive(*options(bucket))
    assert second.said("restored") == [saved] * job.ranks, second.out
    (note,) = [it for it in second.report["warnings"] if it["code"] == "OL-404"]
    assert bucket.url in note["reason"], note
