"""What commands answer as JSON is what docs/reference/json.md says, field by field."""

import json
import re
import subprocess

from harness import OUTLIVE, ROOT, Job, damage

# Described elsewhere: in report.md, under Errors, in words.
ELSEWHERE = {"report", "problem", "refusal", "error", "damaged"}


def documented() -> dict[str, set[str]]:
    """Names of fields by schema and kind."""
    page = (ROOT / "docs" / "reference" / "json.md").read_text()
    found = {}
    for title, table in re.findall(r"<!-- fields: (.*?) -->\n\n((?:\|.*\n)+)", page):
        cells = [row.split("|")[1] for row in table.splitlines()[2:]]
        for kind in title.split()[1:] or [""]:
            name = f"{title.split()[0]} {kind}".strip()
            found[name] = set(re.findall(r"`([^`]+)`", " ".join(cells)))
    return found


def fields(value: object, path: str = "") -> set[str]:
    """All names in a document."""
    found = set()
    if isinstance(value, dict):
        for key, below in value.items():
            name = f"{path}.{key}" if path else key
            found.add(name)
            found |= set() if key in ELSEWHERE else fields(below, name)
    elif isinstance(value, list):
        for below in value:
            found |= fields(below, f"{path}[]")
    return found


def test_every_field_is_documented_and_every_documented_field_appears(job: Job) -> None:
    job.hold(40, 0)
    job.hold(100, 50)
    job.survive()
    for n in range(2):  # the newest version cannot be rebuilt
        newest = max(job.containers(n), key=lambda path: path.stat().st_mtime_ns)
        damage(newest)
    partner = max(job.containers(1, "partner"), key=lambda path: path.stat().st_mtime_ns)
    damage(partner)
    newest = str(job.checkpoints()[0]["version"])
    found: dict[str, set[str]] = {}

    def ask(*words: str) -> None:
        done = subprocess.run(
            [OUTLIVE, *words, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            env=job.environment(),
            cwd=job.dir,
        )
        answer = json.loads(done.stdout)
        name = f"{answer['schema']} {answer.get('kind', '')}".strip()
        found.setdefault(name, set()).update(fields(answer))

    store, named = ("--store", str(job.store)), ("--job", "test")
    ask("status", *store)
    ask("checkpoints", *store)
    ask("status", *store, *named)
    ask("checkpoints", "list", *store, *named)
    ask("checkpoints", "show", newest, *store, *named)
    ask("checkpoints", "verify", *store, *named)
    ask("checkpoints", "rehearse", "--lose", "node:2", *store, *named)
    ask("config", "explain")
    ask("doctor")
    ask("checkpoints", "delete", "test", "--yes", *store)
    said = documented()
    said["outlive.checkpoints/1 show"].discard("damaged")
    assert set(found) == set(said)
    for name, names in found.items():
        assert names == said[name], f"{name}: {names ^ said[name]}"
