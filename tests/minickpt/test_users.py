"""Programs of ordinary users, and kernels that cannot save what runs."""

from collections.abc import Callable
from pathlib import Path

from machine import Machine
from survival import scenario

Make = Callable[..., Machine]

PLACES = """
if [ $BOOT = 1 ]; then
    echo "of root" >/dax/secret
    chmod 600 /dax/secret
    mkdir /dax/home
    chown 1000:1000 /dax/home
fi
"""


def test_a_program_of_an_ordinary_user(machine: Make, outlive: dict[str, Path]) -> None:
    """Started by root, user 1000 with groups, an ambient capability, a smaller bounding set, a
    mask and limits is the same after each death. A link that it puts in the place of its open
    file gives it nothing of root's: the descriptor is useless, and that is told.
    """
    after = 'echo "SECRET $(cat /dax/secret)"'
    text = scenario("/bin/user /dax/stop", ["null", "panic"], early=PLACES, after=after)
    with machine(text, extra=outlive) as m:
        said = m.expect("user is (.*)", 120)[1]
        for want in (
            *("Uid: 1000 1000 1000 1000", "Groups: 7 1000 70000", "CapEff: 0000000000002000"),
            *("CapAmb: 0000000000002000", "umask 27 files 300 400 dumpable 1"),
        ):
            assert want in said, said
        m.expect("user ok", 60)
        for boot in (2, 3):
            m.expect(f"BOOT {boot} ", 240)
            if boot == 2:
                # From then on it leads nowhere.
                m.expect(r"OL-110.*descriptor 3 of process \d+: .*/dax/home/mine.*EBADF", 120)
            m.expect("user ok", 120, never="BAD")
        m.expect("EXIT 0", 240, never="BAD|EXIT [1-9]")
        m.expect("SECRET of root$", 30)


BLIND = """
mkdir -p /dax/memory
NEXT="--memory /dax/memory --kernel /dax/boot/vmlinuz --initrd /dax/boot/initrd"
case $BOOT in
1)
    mount -t debugfs none /sys/kernel/debug
    echo 0 >/sys/kernel/debug/kprobes/enabled
    outlive minickpt run $NEXT -- /bin/true; echo "REFUSED $?"
    echo 1 >/sys/kernel/debug/kprobes/enabled
    outlive minickpt run $NEXT -- /bin/regstress 2 0 3000000 /dax/stop & P=$!
    until omkctl query | grep -q "registered 1"; do kill -0 $P || echo BAD; usleep 200000; done
    usleep 1000000
    echo 0 >/sys/kernel/debug/kprobes/enabled
    outlive minickpt status
    outlive-inject panic
    ;;
2)
    outlive minickpt restore $NEXT; echo "RESTORED $?"
    outlive minickpt last --memory /dax/memory
    ;;
esac
"""


def test_without_kprobes_nothing_goes_on_with_old_registers(
    machine: Make, outlive: dict[str, Path]
) -> None:
    """Someone switches all kprobes off: nothing is started then, the status says it, and at a
    death what ran on the other processor is lost by name instead of restored as it once was.
    """
    with machine(BLIND, extra=outlive) as m:
        m.expect("OL-309.*kprobes are switched off", 120)
        m.expect("REFUSED 69", 30)
        m.expect("panics caught .*kprobes are switched off", 120)
        m.expect("BOOT 2 ", 120)
        m.expect(r"thread \d+ ran on a processor that never answered", 120)
        m.expect("RESTORED [1-9]", 30)
        m.expect("not restored .*never answered", 30)
