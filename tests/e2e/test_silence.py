"""Nodes that freeze, are cut off or become slow; and no false alarm."""

import os
import subprocess
import time

import pytest
from harness import Job

SHORT = ("--suspect-timeout", "300ms", "--dead-timeout", "1500ms", "--heartbeat", "50ms")


@pytest.mark.parametrize("node", [0, 2])
def test_a_frozen_node(job: Job, node: int) -> None:
    job.hold(74, 50)
    result = job.survive(*SHORT, inject=(f"freeze:node:{node}@version=75",))
    failure = result.failure()
    assert failure["place"] == f"node:{node}" and "silent" in failure["cause"]
    assert failure["detect_ms"] >= 1000, "not before its time"
    assert failure["version"] >= 50
    assert 0 < failure["suspected_ms"] < failure["detect_ms"]


def test_a_frozen_node_at_the_default_bounds(job: Job) -> None:
    result = job.survive(inject=("freeze:node:1@version=75",))
    failure = result.failure()
    assert failure["place"] == "node:1"
    # Suspected, then given up, before the 10 s by which its replacement has begun.
    assert 0 < failure["suspected_ms"] < failure["detect_ms"], failure
    order = [result.err.index(what) for what in ("silent for", "node:1 lost", "takes the place of")]
    assert order == sorted(order), result.err


def test_a_frozen_node_that_wakes_in_time(job: Job) -> None:
    result = job.survive(*SHORT, inject=("freeze:node:1@version=45,for=700ms",))
    assert result.failures == []


def test_a_frozen_agent_is_replaced_or_wakes(job: Job) -> None:
    result = job.survive(*SHORT, inject=("freeze:agent:1@version=45,for=500ms",))
    assert result.failures == []


def test_a_node_that_is_cut_off_for_a_while(job: Job) -> None:
    result = job.survive(*SHORT, inject=("partition:node:1@version=45,for=500ms",))
    assert result.failures == []


def test_a_node_that_is_cut_off_for_good(job: Job) -> None:
    job.steps = 800
    result = job.survive(*SHORT, inject=("partition:node:1@version=45",))
    assert result.failure()["place"] == "node:1"


def test_a_slow_node_stops_nobody(job: Job) -> None:
    calm = job.survive()
    job.survive("--fresh", inject=("slow:node:1@version=25,rate=100KiB",))
    assert calm.failures == []


def test_a_frozen_rank_is_not_taken_for_a_dead_node(job: Job) -> None:
    result = job.survive(*SHORT, inject=("freeze:rank:3@version=45,for=2500ms",))
    assert result.failures == []


@pytest.mark.alone
def test_no_false_alarm_under_full_load(job: Job) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "20"))
    job.steps, job.sleep_us = int(seconds * 200), 3000
    burners = [
        subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], env=job.environment())
        for _ in range(os.cpu_count() or 2)
    ]
    begun = time.monotonic()
    try:
        result = job.survive(bound_s=seconds * 4 + 60)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert result.failures == [] and result.report["restarts"] == 0
    assert "silent" not in result.err and "OL-304" not in result.codes()
    assert result.report["checkpoints"]["aborted"] == 0, result.err
    assert time.monotonic() - begun >= seconds * 0.5
