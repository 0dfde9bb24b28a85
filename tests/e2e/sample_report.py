"""A report as `outlive run --report` writes it."""

from typing import Any

# Of a run with one failure.
REPORT: dict[str, Any] = {
    "schema": "outlive.report/1",
    "job": "demo",
    "result": "finished",
    "exit_status": 0,
    "nodes": 2,
    "ranks": 2,
    "restarts": 1,
    "agent_restarts": 0,
    "incarnations": [1, 2],
    "failures": [
        {
            "kind": "node",
            "place": "node:1",
            "cause": "it was killed",
            "injected": True,
            "at_version": 30,
            "at_seconds": 300.0,
            "detect_ms": 500.0,
            "fence_ms": 500.0,
            "rebuild_ms": 1000.0,
            "relaunch_ms": 2000.0,
            "level": "partner",
            "version": 10,
            "versions_lost": 20,
            "rejected": [],
            "uncertain": False,
        }
    ],
    "injected": [],
    "checkpoints": {
        "taken": 5,
        "stable": {"partner": 5},
        "aborted": 0,
        "last": {"partner": 90},
        "bytes": 5000,
        "blocked_ms_max": 800.0,
    },
    "warnings": [],
    "errors": [],
    "seconds": 1100.0,
}
