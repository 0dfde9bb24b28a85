"""Versions that stay and versions that go: `outlive checkpoints pin`, `unpin`, `prune`, `diff`."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, Run, damage, kill, until
from test_full_disk import SPOILS, node_one


def entry(job: Job, version: int) -> dict:
    """What is stored of a version; nothing: it is gone."""
    every = json.loads(job.outlive("checkpoints", "list", "--all", "--json"))["versions"]
    found = [one for one in every if one["version"] == version]
    return found[0] if found else {}


def copies(job: Job, version: int) -> int:
    """Containers of a version, wherever they lie."""
    nodes = [job.node(node) for node in range(job.nodes)]
    return sum(len(list(node.rglob(f"i*-v{version}-n*.ol[cp]"))) for node in nodes)


def own(job: Job, node: int, version: int) -> Path:
    """The container that a node has of its own."""
    return next((job.node(node) / "containers").glob(f"i*-v{version}-n{node}.olc"))


def pins(job: Job) -> list[Path]:
    """All pins."""
    return sorted(job.home.rglob("pin-*.rec"))


def test_a_pin_of_a_running_job_stays_and_so_does_the_version(job: Job) -> None:
    # Nodes 0 and 2 are lost later, with their pins.
    job.steps = 200
    job.hold(60, 30)
    job.hold(140, 70)
    door = job.dir / "door"
    program = job.program("--pause", 65, door)
    run = job.start(program=program, inject=("node:2@version=150",))
    until("the pause", Path(f"{door}.reached").exists)
    kept = job.settled(30)
    said = job.outlive("checkpoints", "pin", kept)
    assert f"version {kept} of incarnation 1 of job test is pinned" in said, said
    assert "was already pinned" in job.outlive("checkpoints", "pin", kept)
    before = copies(job, kept)
    assert before == 6, "a container and a partner's copy for each node"
    again = json.loads(job.outlive("checkpoints", "pin", kept, "--json"))
    assert (again["changed"], again["copies"], again["places"]) == (False, 6, 4), again
    door.touch()
    result = run.end()
    assert result.status == 0, result.err
    job.check(program)
    newest = result.report["checkpoints"]["last"]["partner"]
    assert newest > kept
    # What the lost node had of it is gone, but not what others have of its bytes.
    left = entry(job, kept)
    assert left["pinned"] and not left["half_pinned"], left
    assert len(pins(job)) == 4 and copies(job, kept) >= 4, left
    assert f"pinned       {kept}" in job.outlive("status")
    rows = [row.split() for row in job.outlive("checkpoints", "list").splitlines()]
    assert [row[0] for row in rows if row[-1] == "pinned"] == [str(kept)], rows
    # Nor does it go in a run that begins anew, and takes none of its number.
    job.steps, job.every, job.holds = 60, 7, []
    job.hold(56, 28)
    job.survive("--fresh")
    left = entry(job, kept)
    assert left["pinned"] and left["void"] and copies(job, kept) >= 4, left
    assert "void, pinned" in job.outlive("checkpoints", "list")
    # When it is pinned no more, the next run removes it.
    assert "is pinned no more" in job.outlive("checkpoints", "unpin", kept)
    assert "is not pinned" in job.outlive("checkpoints", "unpin", kept)
    assert pins(job) == []
    job.survive("--fresh")
    assert copies(job, kept) == 0
    assert "OL-100" in job.outlive("checkpoints", "pin", kept, status=64)


def several(job: Job, *options: str) -> list[int]:
    """A job that has ended and kept four versions on disk and with partners; newest first."""
    for step, since in [(40, 0), (65, 50), (90, 75), (115, 100)]:
        job.hold(step, since)
    job.survive("--keep", "4", "--levels", "disk,partner", *options)
    # Of what was being removed at the end, or was given up, something may be left.
    job.outlive("checkpoints", "prune", "--keep", 4, "--yes")
    # On a busy machine one may have been given up, and is listed all the same.
    whole = lambda one: all(level["stable"] for level in one["levels"])  # noqa: E731
    kept = [one["version"] for one in job.checkpoints() if one["levels"] and whole(one)]
    assert len(kept) >= 4, kept
    return kept


def test_what_cannot_be_pinned(job: Job) -> None:
    newest, *older = several(job)
    for version, status, code in [(7777, 74, "OL-404"), (1, 74, "OL-404")]:
        said = job.outlive("checkpoints", "pin", version, status=status)
        assert code in said and "remedy:" in said, said
        assert code in job.outlive("checkpoints", "unpin", version, status=status)
    # A part of it is gone, with every copy.
    for path in [*job.home.rglob(f"i*-v{older[0]}-n1.olc")]:
        path.unlink()
    said = job.outlive("checkpoints", "pin", older[0], status=74)
    assert "OL-404" in said and "no copy of node 1" in said, said
    assert pins(job) == [], "nothing is left of what could not be had"
    # A copy that is missing beside one that is not, and one that is damaged.
    own(job, 1, newest).unlink()
    done = json.loads(job.outlive("checkpoints", "pin", newest, "--json"))
    assert done["changed"] and done["missing"] == 1 and done["copies"] == 5, done
    # Killed on the way, or a node replaced since: it is said, and the same word mends it.
    pins(job)[0].unlink()
    assert entry(job, newest)["half_pinned"]
    assert "half pinned" in job.outlive("checkpoints", "list")
    assert json.loads(job.outlive("checkpoints", "pin", newest, "--json"))["changed"]
    assert not entry(job, newest)["half_pinned"]


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_place_that_takes_no_pin(job: Job, how: str) -> None:
    spoil, code = SPOILS[how]
    with node_one(job, "size=8m") as storage:
        newest = several(job)[0]
        spoil(storage)
        said = job.outlive("checkpoints", "pin", newest, status=74)
        assert code in said and "node-1" in said and "remedy:" in said, said
        assert pins(job) == [] and not entry(job, newest)["pinned"]


def test_another_user_may_not(job: Job) -> None:
    if os.geteuid() != 0:
        from skip import skip

        skip("read-only-store", "being two users takes root")
    newest = several(job)[0]
    for path in [job.dir, *job.dir.parents]:
        path.chmod(path.stat().st_mode | 0o005)
    words = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", OUTLIVE]
    words += ["checkpoints", "pin", newest, "--job", "test", "--store", job.store]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=20)
    assert done.returncode == 74 and "OL-402" in done.stderr, done.stderr
    assert pins(job) == []


def test_prune_keeps_what_it_must(job: Job) -> None:
    newest, *older = several(job)
    pinned = older[1]
    job.outlive("checkpoints", "pin", pinned)
    before = {version: copies(job, version) for version in [newest, *older]}
    dry = json.loads(job.outlive("checkpoints", "prune", "--keep", 1, "--dry-run", "--json"))
    going = dry["versions"]
    replaced = [one for one in going if one["why"] == "replaced"]
    assert {one["why"] for one in going} <= {"replaced", "not-committed"}, dry
    assert [one["version"] for one in replaced] == [one for one in older if one != pinned], dry
    assert not dry["removed"], dry
    assert all(one["levels"] == ["disk", "partner"] for one in replaced), dry
    assert before == {version: copies(job, version) for version in before}, "nothing went"
    # In a script somebody must have agreed; versions of today are not old.
    assert "--yes" in job.outlive("checkpoints", "prune", "--keep", 1, status=64)
    for words in (("--older-than", "1d"), ("--keep", 9), ("--keep", 1, "--level", "shared")):
        assert "nothing would go" in job.outlive("checkpoints", "prune", *words, "--yes")
    bad = ("--keep", 1, "--level", "memory")
    assert "OL-100" in job.outlive("checkpoints", "prune", *bad, status=64)
    # A newer version that is damaged takes no other's place.
    kept = own(job, 0, newest).read_bytes()
    damage(own(job, 0, newest), 0)
    dry = ("--keep", 1, "--level", "disk", "--dry-run", "--json")
    said = job.outlive("checkpoints", "prune", *dry)
    assert older[0] not in [one["version"] for one in json.loads(said)["versions"]], said
    own(job, 0, newest).write_bytes(kept)
    said = job.outlive("checkpoints", "prune", "--keep", 1, "--yes")
    assert f"removed {len(going)} version" in said, said
    left = {version: copies(job, version) for version in before}
    assert left == {one: 6 if one in (newest, pinned) else 0 for one in before}
    assert "nothing would go" in job.outlive("checkpoints", "prune", "--keep", 1, "--yes")
    assert job.outlive("checkpoints", "verify")
    job.outlive("checkpoints", "rehearse", "--lose", "node:1")


def test_prune_of_a_job_that_runs_and_what_was_left_over(job: Job) -> None:
    job.hold(60, 30)
    door = job.dir / "door"
    program = job.program("--pause", 65, door)
    run = job.start("--levels", "disk,partner", program=program)
    until("the pause", Path(f"{door}.reached").exists)
    said = job.outlive("checkpoints", "prune", "--keep", 1, "--yes", status=75)
    assert "OL-502" in said and "--keep" in said, said
    door.touch()
    assert run.end().status == 0
    left_over = [
        job.node(0) / "containers" / ".tmp-7-1-i1-v9-n0.olc",
        job.home / "rehearsal-4194305" / "rank-0",
        job.home / "nodes" / "node-1.lost-7-0" / "records" / "x",
    ]
    for path in left_over:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10_000)
    ours = job.home / f"rehearsal-{os.getpid()}"
    ours.mkdir()
    said = json.loads(job.outlive("checkpoints", "prune", "--keep", 1, "--yes", "--json"))
    assert said["left_over"] >= 3 and said["left_over_bytes"] >= 30_000, said
    assert not any(path.exists() for path in left_over) and ours.exists()


@pytest.fixture(scope="session")
def kill_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that kills a process before one of its acts."""
    source = Path(__file__).parent / "programs" / "kill_at.c"
    built = tmp_path_factory.mktemp("kill_at") / "kill_at.so"
    words = ["cc", "-shared", "-fPIC", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*words, "-o", str(built), str(source), "-ldl"], check=True, timeout=60)
    return built


def files(job: Job) -> set[str]:
    """What is stored, by name; of logs only that they are there."""
    nodes = [path for kind in ("containers", "partner") for path in job.home.rglob(f"{kind}/*")]
    return {str(path.relative_to(job.home)) for path in nodes}


def test_killed_before_each_act(job: Job, kill_at: Path) -> None:
    """Whenever prune is killed, what it keeps is whole, and the next one ends it. The same of
    pin: it has pinned the version, or says that it is pinned in part, or has done nothing."""
    newest, *older = several(job)
    whole, aside = files(job), job.dir / "aside"
    shutil.copytree(job.home, aside)

    def killed(at: int, *words: object) -> bool:
        """Carries it out anew; true if it was killed before that act."""
        shutil.rmtree(job.home)
        shutil.copytree(aside, job.home)
        job.extra = {"LD_PRELOAD": str(kill_at), "KILL_AT": str(at)}
        words = (OUTLIVE, "checkpoints", *words, "--store", job.store, "--job", "test")
        done = subprocess.run(
            [str(word) for word in words], env=job.environment(), capture_output=True, timeout=20
        )
        job.extra = {}
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    prune = ("prune", "--keep", 1, "--yes")
    assert not killed(1 << 30, *prune)
    wanted = files(job)
    assert len(wanted) == 6 and wanted < whole
    acts = 0
    while killed(acts := acts + 1, *prune):
        assert wanted <= files(job) <= whole, acts
        stored = entry(job, newest)["parts"]
        assert all(copy["path"] for part in stored for copy in part["copies"]), acts
        job.outlive("checkpoints", *prune)
        assert files(job) == wanted, acts
    assert acts > 20, acts
    # The last of these states is one that a job goes on from.
    killed(acts // 2, *prune)
    job.steps = 160
    assert job.survive("--keep", "4", "--levels", "disk,partner").said("restored")
    acts = 0
    while killed(acts := acts + 1, "pin", older[0]):
        there = len(pins(job))
        said = entry(job, older[0])
        assert (said["pinned"], said["half_pinned"]) == (there > 0, 0 < there < 4), acts
        assert files(job) == whole
        job.outlive("checkpoints", "unpin" if acts % 2 else "pin", older[0])
        assert len(pins(job)) == (0 if acts % 2 else 4)
    assert acts > 8, acts


def test_diff_of_a_job(job: Job) -> None:
    newest, *older = several(job)
    table = job.outlive("checkpoints", "diff", older[0], newest).splitlines()
    assert table[0] == f"version {older[0]} to version {newest}: 6 ranks compared"
    rows = {row.split()[0]: row for row in table[2:]}
    said = json.loads(job.outlive("checkpoints", "diff", older[0], newest, "--json"))
    assert said["complete"] and set(rows) == {it["name"] for it in said["regions"]} | {"(all)"}
    cells = next(it for it in said["regions"] if it["bytes_after"] == 6 * 8 * job.cells)
    assert cells["ranks_changed"] == 6 and cells["bytes_changed"] > 0, cells
    # Without a second word the newest is meant; a version does not differ from itself.
    assert job.outlive("checkpoints", "diff", older[0]).splitlines() == table
    same = json.loads(job.outlive("checkpoints", "diff", newest, newest, "--json"))
    assert same["ranks_changed"] == 0 and all(it["bytes_changed"] == 0 for it in same["regions"])
    one = json.loads(job.outlive("checkpoints", "diff", older[0], newest, "--rank", 3, "--json"))
    assert one["ranks_compared"] == 1
    assert "OL-200" in job.outlive("checkpoints", "diff", newest, "--rank", 6, status=69)
    assert "OL-404" in job.outlive("checkpoints", "diff", 7777, status=74)
    for path in job.home.rglob(f"i*-v{older[0]}-n2.olc"):
        path.unlink()
    said = job.outlive("checkpoints", "diff", older[0], newest, status=65)
    assert f"not compared: ranks 4, 5, because no copy of node 2 of version {older[0]}" in said


def versions(names: list[str]) -> list[int]:
    """Of containers, by their names."""
    return [int(name.split("-")[1].removeprefix("v")) for name in names]


@pytest.mark.parametrize("nodes", [1, 3])
def test_what_runs_leave_behind_does_not_pile_up(job: Job, nodes: int) -> None:
    """Also where the level partner, which keeps the most, is not in use."""
    job.nodes, job.levels, job.steps = nodes, "memory,disk", 0
    for _ in range(3):
        job.steps += 60
        # Enough of each run that those of the one before are too many, however slow the machine.
        job.holds = []
        for step in (35, 20, 5):
            job.hold(job.steps - step, job.steps - step - 10, "node-crash")
        job.survive()
        kept = [path.name for node in range(nodes) for path in job.containers(node)]
        # The last removal may not have come about before the end.
        assert min(versions(kept)) >= job.steps - 60 and len(kept) <= 3 * nodes, kept


def test_what_an_agent_leaves_behind_does_not_pile_up(job: Job) -> None:
    job.levels = "memory,disk"
    before: list[int] = []

    def anew(run: Run) -> bool:
        newest = job.running("last").get("disk", 0)
        if not before and newest >= 60:
            before.append(newest)
            for node, pid in run.pids("agent").items():
                if node != 0:
                    kill(pid)
        return bool(before) and newest >= before[0] + 340

    job.goes_on(when=anew)
    kept = [path.name for node in range(job.nodes) for path in job.containers(node)]
    assert min(versions(kept)) > before[0] + 50, kept
