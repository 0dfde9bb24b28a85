"""Sites as they are found: ssh that would ask, names and files that are wrong, homes that take
nothing, shells that greet. Each ends within seconds with what helps, or is of no consequence."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BOUND_S, OUTLIVE, Cluster
from skip import skip

# A window that asks for a password, and that nobody sees.
ASKS = "#!/bin/sh\nexec sleep 1000\n"
# How ssh is set up where it would ask, and what helps.
QUESTIONS = {
    "password": ("PubkeyAuthentication no\n UserKnownHostsFile {known}\n", "ssh-copy-id"),
    "host key": ("UserKnownHostsFile /dev/null\n StrictHostKeyChecking ask\n", "known_hosts"),
}
HOME = r"""
set -e
cp -a /root/.ssh /tmp/ssh
mount -t tmpfs -o size=1m,mode=700 tmpfs /root
cp -a /tmp/ssh /root/.ssh
"""
FULL = "head -c 2m /dev/zero > /root/fill 2> /dev/null && exit 1 || :"
READ_ONLY = "mount -o remount,ro /root"


def run_options(cluster: Cluster, hosts: str, spares: int = 0) -> list[object]:
    return ["--hosts", cluster.hosts(hosts), "--spares", spares]


def on_a_terminal(cluster: Cluster, *words: object, **more: str) -> tuple[int, str]:
    """Runs outlive where somebody could be asked, on a screen or in a window; its status and what
    it says, within half a minute."""
    if shutil.which("script") is None:
        skip("machines", "no script, which makes a terminal")
    line = shlex.join(str(word) for word in (OUTLIVE, *words))
    done = subprocess.run(
        cluster.machines.words("room", "script", "-qec", line, "/dev/null"),
        env=os.environ | {"HOME": "/root", "DISPLAY": ":0"} | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("question", QUESTIONS)
def test_ssh_that_would_ask_is_no_wait(cluster: Cluster, question: str) -> None:
    setup, helps = QUESTIONS[question]
    config, window = cluster.dir / "ask.conf", cluster.dir / "window"
    known = cluster.machines.state / "known"
    config.write_text(f"Host *\n GlobalKnownHostsFile /dev/null\n {setup.format(known=known)}")
    window.write_text(ASKS)
    window.chmod(0o755)
    store = ["--store", cluster.dir / "store"]
    hosts = ["--hosts", cluster.hosts("n1\n"), "--remote-shell", f"ssh -F {config}"]
    run = ["run", "--job", "heat", *store, *hosts, "--spares", 0, "--", "true"]
    status, text = on_a_terminal(cluster, *run, SSH_ASKPASS=str(window))
    assert status == 69 and "OL-504" in text and helps in text, text
    status, text = on_a_terminal(cluster, "doctor", *store, *hosts, SSH_ASKPASS=str(window))
    assert status == 69 and "FAIL  answer" in text and helps in text, text
    # The same with ssh as outlive starts it.
    if question == "password":
        cluster.machines.run("n1", "sh", "-c", "mv /root/.ssh/authorized_keys /root/.ssh/gone")
        run = cluster.start(*run_options(cluster, "n1\n"), "--", "true", job="other")
        _, text = cluster.end(run, 69)
        assert "Permission denied" in text and helps in text, text


def test_a_name_that_means_nothing_is_passed_over_with_what_helps(cluster: Cluster) -> None:
    hosts = "nowhere slots=2\nn1 slots=2\n"
    report, text = cluster.end(cluster.start(*run_options(cluster, hosts, 1), "--", "true"))
    assert "nowhere cannot be reached" in text and "correct it in the list of hosts" in text, text
    assert report["failures"][0]["place"] == "node:0", text
    said = cluster.tell(69, "doctor", "--store", cluster.dir, "--hosts", cluster.hosts(hosts))
    assert "nowhere: " in said and "correct it in the list of hosts" in said, said


@pytest.mark.parametrize("spoil", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_a_home_that_takes_nothing_is_not_needed(cluster: Cluster, spoil: str) -> None:
    cluster.machines.run("n1", "sh", "-c", HOME + spoil)
    more = ["--remote-executable", "/nowhere/outlive", "--start", "each"]
    words = [*run_options(cluster, "n1\n"), *more, "--", "sh", "-c", "echo was here; cd"]
    report, text = cluster.end(cluster.start(*words))
    assert report["failures"] == [] and "was here" in text, text


def test_what_falls_short_on_a_machine_is_told(cluster: Cluster) -> None:
    """One sees another store and has hardly any room; the other, with the same, is well. The job
    begins when the store is there."""
    store = cluster.dir / "store"
    store.mkdir()
    for mount in (f"size=50m tmpfs {store}", "size=1m tmpfs /dev/shm"):
        cluster.machines.run("n1", "sh", "-c", f"mount -t tmpfs -o {mount}")
    plan = [*run_options(cluster, "n1\nn2\n"), "--levels", "memory,shared", "--start", "each"]
    run = cluster.start(*plan, "--", "sleep", "1")
    said = cluster.wait_for(run, "start 2 did not open")
    assert "n1: shared store: " in said and "n1: space: " in said, said
    cluster.machines.run("n1", "umount", "-l", store)
    report, text = cluster.end(run)
    short = [it for it in report["warnings"] if it["code"] == "OL-311"]
    assert {it["entity"] for it in short} == {"n1"}, text
    found = {it["reason"].partition(":")[0] for it in short}
    assert found == {"shared store", "/dev/shm", "space"}, text


def test_a_host_that_is_named_twice_is_refused(cluster: Cluster) -> None:
    hosts = cluster.hosts("n1 slots=2\nn2\nn1 slots=2\n")
    _, text = cluster.end(cluster.start("--hosts", hosts, "--", "true"), 64)
    assert "OL-100" in text and "names n1 twice" in text and "slots=N" in text, text


def test_a_file_of_hosts_from_windows_is_read(cluster: Cluster) -> None:
    hosts = "\ufeff# The machines\r\nn1 slots=2\t# the first\r\n\r\nn2:2\r\n"
    report, text = cluster.end(cluster.start(*run_options(cluster, hosts), "--", "true"))
    assert report["nodes"] == 2 and report["failures"] == [], text


@pytest.mark.parametrize("reached", [True, False], ids=["reached", "by relay"])
def test_shells_that_greet_are_passed_over(cluster: Cluster, reached: bool) -> None:
    """A line, and words without the end of one, on both outputs; the second time the agents find
    their way to the launcher over the same connections."""
    greeting = "echo Welcome; echo Be careful >&2; printf 'Load: '; printf 'No mail. ' >&2\n"
    cluster.machines.run("n1", "sh", "-c", f"echo {shlex.quote(greeting)} > /root/.bashrc")
    greeted = subprocess.run(
        cluster.machines.words("room", "ssh", "n1", "true"),
        env=os.environ | {"HOME": "/root"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert greeted.stdout == "Welcome\nLoad: ", greeted
    if not reached:
        if shutil.which("nft") is None:
            skip("machines", "no nft")
        cluster.machines.close_room()
    more = ["--remote-executable", "/nowhere/outlive", "--start", "each"]
    words = ["--", "sh", "-c", "echo was here"]
    hosts = "n1\nn2\n"
    report, text = cluster.end(cluster.start(*run_options(cluster, hosts), *more, *words))
    assert report["failures"] == [] and text.count("was here") == 2, text
    doctor = ["doctor", "--store", cluster.dir, "--hosts", cluster.hosts(hosts), "--json"]
    found = json.loads(cluster.tell(0, *doctor))
    grades = [check["grade"] for host in found["hosts"] for check in host["checks"]]
    assert "fail" not in grades, found


@pytest.mark.parametrize("there", [[], ["scontrol"]], ids=["neither", "no srun"])
def test_an_allocation_without_slurms_commands_is_refused(
    cluster: Cluster, there: list[str]
) -> None:
    commands = cluster.dir / "commands"
    commands.mkdir()
    for name in there:
        path = commands / name
        path.write_text("#!/bin/sh\necho n1\n")
        path.chmod(0o755)
    missing = "srun" if there else "scontrol"
    within = ("/usr/bin/env", f"PATH={commands}", "SLURM_JOB_NODELIST=n1", "SLURM_JOB_ID=1")
    words = ["--hosts", "slurm", "--", "/bin/true"]
    _, text = cluster.end(cluster.start(*words, within=within), 64)
    assert f"there is no {missing} in PATH" in text and "module load" in text, text
    assert not Path(cluster.dir / "store").exists(), "nothing was begun"
