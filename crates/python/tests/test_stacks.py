"""A Python program says where its threads are, in a deadlock too."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from conftest import Protected, binary

DEADLOCK = """
import threading
import outlive

lock = threading.Lock()

def waits_for_ever():
    print("ready", flush=True)
    with lock:
        pass

lock.acquire()
other = threading.Thread(target=waits_for_ever, daemon=True)
other.start()
other.join()
"""


def started(text: str) -> subprocess.Popen[bytes]:
    running = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    return running


def looked_at(pid: int) -> dict[str, object]:
    command = [str(binary()), "stacks", str(pid), "--json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    (process,) = json.loads(done.stdout)["processes"]
    return dict(process)


def test_a_deadlock_is_told_with_functions_and_lines() -> None:
    running = started(DEADLOCK)
    try:
        for _ in range(3):
            said = str(looked_at(running.pid)["python"])
            assert "in waits_for_ever" in said and "in join" in said, said
            # Each answer is one answer.
            assert said.count("in waits_for_ever") == 1, said
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_a_program_that_does_not_import_it_is_left_alone() -> None:
    running = started(DEADLOCK.replace("import outlive", ""))
    try:
        assert looked_at(running.pid)["python"] is None
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_a_signal_that_is_in_use_is_left_to_the_program() -> None:
    program = """
import signal
from pathlib import Path
number = signal.SIGRTMIN + 11
signal.signal(number, lambda *_: print("mine", flush=True))
import outlive
signal.raise_signal(number)
files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
assert not any("outlive-python-stacks" in str(name) for name in files), files
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"mine\n"
    assert signal.getsignal(signal.SIGRTMIN + 11) is not None


def test_a_job_in_a_deadlock_is_named_with_its_functions_and_goes_on(protected: Protected) -> None:
    options = ["--every", "2", "--backoff", "0", "--on-hang", "restart", "--hang-timeout", "2s"]
    report, out = protected.run(options, "deadlock.py")
    (entry,) = report["hangs"]
    (place,) = entry["places"]
    assert place["does"] == "waiting in waits_for_the_other", entry
    assert place["file"] == "deadlock.py" and place["line"] > 0, entry
    text = Path(entry["file"]).read_text()
    # Both threads, and the place above them; who called each.
    assert text.count("in waits_for_the_other") == 2 + 1, text
    assert text.count(" in takes") == 2, text
    assert report["restarts"] == 1 and report["failures"][0]["kind"] == "hang", report
    assert f"sum {sum(range(20))}" in out, out
