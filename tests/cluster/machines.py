"""A cluster of namespaces on this machine, made by the test that uses it.

Each machine has its own network, processes, host name, /tmp and /dev/shm, and an ssh
server; a switch joins them. All of it is inside one outer namespace of processes, and is
gone when the first of those is killed. Nothing is installed: what the machines need beside
the system's programs lies in ``.deps/cluster`` (``scripts/deps.sh``), laid over their /usr.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / ".deps" / "cluster"
NET = "10.86.0"
BOUND_S = 30

ROOM = r"""
set -e
mount --make-rprivate /
[ ! -d "$PROGRAMS/usr" ] || mount -t overlay overlay -o "lowerdir=$PROGRAMS/usr:/usr" /usr
# What sshd and munge ask of the list of users.
grep -v '^\(sshd\|munge\|slurm\):' /etc/passwd > "$STATE/passwd"
echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin' >> "$STATE/passwd"
mount --bind "$STATE/passwd" /etc/passwd
hostname room
ip link set lo up
ip link add br0 type bridge stp_state 0 forward_delay 0
ip address add "$NET.1/24" dev br0
ip link set br0 up
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns
mount -t tmpfs -o mode=700 tmpfs "$HOME"
mkdir -m 700 "$HOME/.ssh"
cp "$STATE/ssh-config" "$HOME/.ssh/config"
cp "$STATE/known" "$HOME/.ssh/known_hosts"
cp "$STATE/id" "$HOME/.ssh/id_ed25519"
chmod 600 "$HOME"/.ssh/*
mount --bind "$STATE/hosts" /etc/hosts
[ -z "$SLURM" ] || . "$STATE/slurm.sh"
touch "$STATE/room.ready"
while :; do sleep 3600 & wait "$!"; done
"""

# On each machine, with Slurm: its own directories, the cluster's files, and its server.
SLURM = r"""
mkdir -p /run/munge /run/slurm /run/slurm-log
mkdir -p /etc/slurm 2>/dev/null || { mount -t tmpfs tmpfs /etc/munge; }
mount -t tmpfs tmpfs /var/spool
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir -p /var/spool/slurmd /var/spool/slurmctld
mount --bind "$STATE/slurm" /etc/slurm
cp "$STATE/munge.key" /run/munge.key && chmod 600 /run/munge.key
munged --force --key-file=/run/munge.key --socket=/run/munge/munge.socket.2 \
    --pid-file=/run/munge/munged.pid --log-file=/run/munge/log --seed-file=/run/munge/seed
if [ "$NAME" = room ]; then slurmctld -c; else slurmd; fi
"""

SLURM_CONF = """\
ClusterName=tests
SlurmctldHost=room({net}.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm-log/slurmctld
SlurmdLogFile=/run/slurm-log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=5
TCPTimeout=2
KillWait=3
WaitTime=0
InactiveLimit=0
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=n[1-{count}] CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# Switches, where a test has them: a line for each leaf, and one that joins them.
TREE = "TopologyPlugin=topology/tree\n"
TOP = "SwitchName=top Switches={leaves}\n"

CABLE = r"""
set -e
ip netns delete "$NAME" 2>/dev/null || :
ip link delete "v-$NAME" 2>/dev/null || :
ip netns add "$NAME"
ip link add "v-$NAME" type veth peer name eth0 netns "$NAME"
ip link set "v-$NAME" master br0 up
ip -n "$NAME" link set lo up
ip -n "$NAME" address add "$ADDRESS/24" dev eth0
ip -n "$NAME" link set eth0 up
"""

MACHINE = r"""
set -e
hostname "$NAME"
mkdir -p /run/state && mount --bind "$STATE" /run/state
for dir in /dev/shm /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$dir"; done
# The test's own directories stay in sight below the machine's /tmp.
mkdir -p /run/outside && mount --bind "$SHARED" /run/outside
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p "$SHARED" && mount --move /run/outside "$SHARED"
mkdir -p /run/sshd
cp "$STATE/id.pub" "$HOME/.ssh/authorized_keys"
/usr/sbin/sshd -f /dev/null -h "$STATE/host" -o PidFile=none -o UsePAM=no -o StrictModes=no \
    -o PermitRootLogin=yes -o ClientAliveInterval=3 -o MaxStartups=100
[ -z "$SLURM" ] || . "$STATE/slurm.sh"
touch "$STATE/$NAME.ready"
# The first process of a machine buries those that nobody waits for.
while :; do sleep 3600 & wait "$!"; done
"""


def missing() -> str | None:
    """What this machine lacks for a cluster."""
    if os.geteuid() != 0:
        return "namespaces of machines take root"
    for tool in ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "mount"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    if not (PROGRAMS / "usr/sbin/sshd").exists() and not Path("/usr/sbin/sshd").exists():
        return "no ssh server; make deps fetches one"
    tried = subprocess.run(
        ["unshare", "-m", "-n", "-p", "-f", "-u", "true"], capture_output=True, text=True
    )
    return f"namespaces: {tried.stderr.strip()}" if tried.returncode != 0 else None


def missing_slurm() -> str | None:
    """What it lacks for one under Slurm."""
    for tool in ("slurmctld", "slurmd", "munged", "srun"):
        places = [PROGRAMS / "usr/sbin" / tool, PROGRAMS / "usr/bin" / tool]
        if not any(path.exists() for path in places) and shutil.which(tool) is None:
            return f"no {tool}; make deps fetches it"
    return None


class Machines:
    """Machines n1 to nN, and the room that they stand in, where the launcher runs."""

    def __init__(
        self, base: Path, count: int, slurm: bool = False, switches: dict[str, str] | None = None
    ) -> None:
        self.shared = base
        self.slurm = slurm
        self.switches = switches or {}
        self.state = base / "state"
        self.state.mkdir()
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self.inits: dict[str, int] = {}
        self.outer: subprocess.Popen[bytes] | None = None
        self._write_files()
        try:
            self._open_room()
            for name in self.names:
                self.boot(name)
        except BaseException:
            self.close()
            raise

    def _write_files(self) -> None:
        for key in ("id", "host"):
            path = str(self.state / key)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        lines = ["127.0.0.1 localhost", f"{NET}.1 room"]
        lines += [f"{self.address(name)} {name}" for name in self.names]
        (self.state / "hosts").write_text("\n".join(lines) + "\n")
        kind, key, *_ = (self.state / "host.pub").read_text().split()
        (self.state / "known").write_text(f"n*,{NET}.* {kind} {key}\n")
        (self.state / "slurm").mkdir()
        conf = SLURM_CONF.format(net=NET, count=len(self.names))
        if self.switches:
            leaves = [f"SwitchName={name} Nodes={of}\n" for name, of in self.switches.items()]
            top = TOP.format(leaves=",".join(self.switches))
            (self.state / "slurm" / "topology.conf").write_text("".join([*leaves, top]))
            conf += TREE
        (self.state / "slurm" / "slurm.conf").write_text(conf)
        # Of version 1, or the server looks for one itself and ends.
        (self.state / "slurm" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.state / "slurm.sh").write_text(SLURM)
        (self.state / "munge.key").write_bytes(os.urandom(128))
        # Ours alone counts: nothing of the person who runs the tests.
        (self.state / "ssh-config").write_text(
            "Host *\n BatchMode yes\n ConnectTimeout 5\n GlobalKnownHostsFile /dev/null\n"
        )

    def address(self, name: str) -> str:
        return f"{NET}.{10 + int(name[1:])}"

    def _variables(self, **more: str) -> dict[str, str]:
        places = {"STATE": self.state, "SHARED": self.shared, "PROGRAMS": PROGRAMS}
        given = {name: str(path) for name, path in places.items()}
        given |= {"NET": NET, "HOME": "/root", "SLURM": "yes" if self.slurm else ""}
        return os.environ | given | more

    def _start(self, words: list[str], ready: str, **more: str) -> subprocess.Popen[bytes]:
        mark = self.state / f"{ready}.ready"
        mark.unlink(missing_ok=True)
        with open(self.state / f"{ready}.log", "ab") as log:
            process = subprocess.Popen(
                words,
                env=self._variables(**more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + BOUND_S
        while not mark.exists():
            if process.poll() is not None or time.monotonic() > until:
                text = (self.state / f"{ready}.log").read_text(errors="replace")
                raise RuntimeError(f"{ready} did not start:\n{text}")
            time.sleep(0.01)
        return process

    def _open_room(self) -> None:
        kinds = ["-m", "-n", "-p", "-f", "-u", "-i", "--mount-proc", "--kill-child=KILL"]
        self.outer = self._start(["unshare", *kinds, "sh", "-c", ROOM], "room", NAME="room")
        self.inits["room"] = child_of(self.outer.pid)

    def boot(self, name: str, up_s: int = 0) -> None:
        """Starts a machine, with nothing of what it had in memory before. By its own clock it
        has been up for ``up_s`` longer than this one."""
        self._in_room(["sh", "-c", CABLE], NAME=name, ADDRESS=self.address(name)).check_returncode()
        kinds = ["-m", "-u", "-p", "-i", "-f", "--mount-proc", "--kill-child=KILL"]
        if up_s:
            kinds += ["-T", "--boottime", str(up_s), "--monotonic", str(up_s)]
        words = ["ip", "netns", "exec", name, "unshare", *kinds, "sh", "-c", MACHINE]
        # `ip netns exec` and unshare become one another: the machine's first process is the
        # only child.
        process = self._start([*self._enter("room"), *words], name, NAME=name)
        self.inits[name] = child_of(inner(process.pid))

    def _enter(self, name: str) -> list[str]:
        return ["nsenter", "-t", str(self.inits[name]), "-m", "-n", "-p", "-u", "-i", "--"]

    def _in_room(self, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._enter("room"), *words],
            env=self._variables(**more),
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )

    def words(self, name: str, *words: object) -> list[str]:
        """The command that runs another on a machine, or in the room."""
        return [*self._enter(name), *(str(word) for word in words)]

    def run(self, name: str, *words: object) -> str:
        """Runs on a machine; its output."""
        done = subprocess.run(
            self.words(name, *words), capture_output=True, text=True, timeout=BOUND_S
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def cut(self, name: str) -> None:
        """Pulls the cable."""
        self._in_room(["ip", "link", "set", f"v-{name}", "down"]).check_returncode()

    def heal(self, name: str) -> None:
        """Puts the cable back."""
        self._in_room(["ip", "link", "set", f"v-{name}", "up"]).check_returncode()

    def drop(self, *ways: tuple[str, str]) -> None:
        """From now on nothing passes from the first to the second of each pair; ``room`` is
        where the launcher runs. A table of the switch, so that each way is one of its own."""
        lines = ["table bridge cuts {}", "delete table bridge cuts", "table bridge cuts {"]
        hooks: dict[str, list[str]] = {"forward": [], "input": [], "output": []}
        for source, to in ways:
            if to == "room":
                hooks["input"].append(f'iifname "v-{source}" drop')
            elif source == "room":
                hooks["output"].append(f'oifname "v-{to}" drop')
            else:
                hooks["forward"].append(f'iifname "v-{source}" oifname "v-{to}" drop')
        for hook, rules in hooks.items():
            lines.append(f"chain {hook} {{ type filter hook {hook} priority 0;")
            lines += [*rules, "}"]
        done = self._in_room(["nft", "\n".join([*lines, "}"])])
        assert done.returncode == 0, done.stderr

    def open_only(self, *ports: str) -> None:
        """A firewall: connections are made to no other ports, between machines and with the
        room."""
        call = "tcp flags & (syn | ack) == syn"
        rule = f"{call} tcp dport != {{ {', '.join(ports)} }} drop"
        hooks = ["forward", "input", "output"]
        chains = [
            f"chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}" for hook in hooks
        ]
        done = self._in_room(["nft", "\n".join(["table bridge wall {", *chains, "}"])])
        assert done.returncode == 0, done.stderr

    def close_room(self) -> None:
        """A firewall of the launcher's machine: it connects to others, and nobody to it."""
        rule = "tcp flags & (syn | ack) == syn drop"
        chain = f"chain input {{ type filter hook input priority 0; {rule}; }}"
        done = self._in_room(["nft", f"table bridge door {{\n{chain}\n}}"])
        assert done.returncode == 0, done.stderr

    def end(self, name: str) -> None:
        """All processes of a machine end at once; its network still answers."""
        os.kill(self.inits[name], signal.SIGKILL)

    def power_off(self, name: str) -> None:
        """As if the current failed: nothing answers."""
        self.cut(name)
        self.end(name)

    def wait_for_slurm(self) -> None:
        """Until Slurm calls all machines idle."""
        until = time.monotonic() + BOUND_S
        while time.monotonic() < until:
            words = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
            idle = subprocess.run(self.words("room", *words), capture_output=True, text=True)
            if idle.stdout.strip() == str(len(self.names)):
                return
            time.sleep(0.1)
        raise RuntimeError(f"Slurm's machines are not idle: {idle.stdout}{idle.stderr}")

    def close(self) -> None:
        """Ends everything."""
        if self.outer is not None:
            init = self.inits.get("room")
            if init is not None:
                os.kill(init, signal.SIGKILL)
            else:
                self.outer.kill()
            self.outer.wait(timeout=BOUND_S)
            self.outer = None


def child_of(pid: int) -> int:
    """The only child of a process, once it has one."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(children) == 1:
            return int(children[0])
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} has no child")


def inner(pid: int) -> int:
    """The process that ``nsenter`` waits for: it forks to enter a namespace of processes."""
    return child_of(pid)
