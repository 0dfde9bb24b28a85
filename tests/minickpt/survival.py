"""What tests share in which programs outlive their kernel: `outlive minickpt run`, a
panic, `restore`; and the times by part.
"""

import re

from machine import MEMORY_MIB, Machine

# The program is protected at the first boot and restored at each later one;
# then the kernel dies, DEATHS times.
SCENARIO = """
mkdir -p /dax/memory
NEXT="--kernel /dax/boot/vmlinuz --initrd /dax/boot/initrd"
NEXT="--memory /dax/memory $NEXT"
{early}
if [ $BOOT = 1 ]; then
    echo "CLOCK $CLOCK"
    # Numbers that the next kernels' own scripts do not come to.
    echo 1000 >/proc/sys/kernel/ns_last_pid
    outlive minickpt run $NEXT -- {words} & P=$!
else
    line=$(cat /proc/cmdline)
    line=${{line##*tsc_early_khz=}}
    echo "HANDED ON ${{line%% *}}"
    outlive minickpt restore $NEXT & P=$!
    told=0
    for range in $(grep -l "System RAM" /sys/firmware/memmap/*/type); do
        range=${{range%/type}}
        told=$((told + $(cat $range/end) - $(cat $range/start) + 1))
    done
    echo "TOLD OF $((told >> 20)) MiB"
fi
until omkctl query | grep -qE "state (empty|acked).* registered [1-9]"; do
    usleep 200000
    kill -0 $P 2>/dev/null || break
done
# It is registered before it runs.
until [ $BOOT = 1 ] || omkctl times | grep -q " resumed " || ! kill -0 $P 2>/dev/null; do
    usleep 100000
done
[ $BOOT = 1 ] || omkctl times
if [ $BOOT -le {deaths} ]; then
    # What an image holds that could not be restored.
    kill -0 $P || {{ echo "BAD ended"; omkctl dump | grep -v VMA; }}
    {before}
    outlive-inject $(echo "{kinds}" | cut -d' ' -f$BOOT)
    echo "BAD not dead"
fi
{last}
touch /dax/stop
wait $P; echo "EXIT $?"
rm /dax/stop
{after}
"""
# A restore before the file system of the memory is mounted.
EARLY = """
if [ $BOOT = 2 ]; then
    umount /dax
    for i in 1 2; do outlive minickpt restore --memory /dax/memory; echo "EARLY $?"; done
    outlive minickpt run --memory /dax/memory -- /bin/true; echo "EARLY RUN $?"
    rm -r /dax/memory
    mount -t ext4 -o dax=always /dev/pmem0 /dax
fi
"""

WAIT = "usleep 1500000"


def scenario(words: str, kinds: list[str], **pieces: str) -> str:
    """The program `words` through the deaths `kinds`. Pieces of shell: `early` at every
    boot, `before` each death, `last` before the program is told to stop, `after` its end.
    """
    usual = {"early": "", "before": WAIT, "last": WAIT, "after": ""}
    return SCENARIO.format(
        words=words, deaths=len(kinds), kinds=" ".join(kinds), **{**usual, **pieces}
    )


def survive(m: Machine, boots: int, timeout_s: float = 240.0) -> list[float]:
    """Through all boots to the end of the program; prints the times, gives our share of
    a bare boot at each.
    """
    clocks = []
    for boot in range(2, boots + 2):
        m.expect(f"BOOT {boot} ", timeout_s)
        clocks.append(int(m.expect(r"HANDED ON (\d+)", timeout_s)[1]))
        # By our own segments: the kernel was told of all memory, not of a crash area.
        told = int(m.expect(r"TOLD OF (\d+) MiB", timeout_s)[1])
        assert told > MEMORY_MIB * 9 // 10, told
    # The clock of the first kernel, through all the others.
    first = int(m.expect_past(r"^CLOCK (\d+)")[1])
    assert set(clocks) == {clocks[0]}, clocks
    assert abs(clocks[0] - first) < first // 100, (first, clocks)
    m.expect("^TIMES", timeout_s, never="BAD|OL-")
    m.expect("EXIT 0", timeout_s, never="BAD|EXIT [1-9]|OL-")
    text, shares = table(m)
    print(text)
    return shares


PARTS = ("saved", "kernel", "module", "files", "restored", "armed", "resumed")


def table(m: Machine) -> tuple[str, list[float]]:
    """Times by part of each survival beside the bare boot of the same machine, whose
    first boot made the file system: that time is taken off. And our share of the bare boot
    for each. All by the machine's own counter, which starts with its power.
    """
    boot = m.expect_past(r"BOOT 1 uptime (\S+), of it (\S+) to (\S+) for .* ticks (\d+)")
    clock, before, after = (float(value) for value in boot.groups()[:3])
    rows = ["from the panic to, in s: " + " ".join(f"{name:>8}" for name in PARTS)]
    rows[0] += "    image rebuild  rearm  sum, of a bare boot"
    bare, shares = 0.0, []
    for _, line in m.lines:
        if not (said := re.search(r"^TIMES generation (\d+) khz (\d+) (.*)", line)):
            continue
        bare = int(boot[4]) / int(said[2]) / 1e3 - (after - before)
        values = said[3].split()
        at = {name: float(s) for name, s in zip(values[::2], values[1::2], strict=True)}
        ours = (at["saved"], at["restored"] - at["files"], at["resumed"] - at["restored"])
        shares.append(sum(ours) / bare)
        rows.append(
            f"death {said[1]:>3}                 "
            + " ".join(f"{at[name]:8.3f}" for name in PARTS)
            + "".join(f"  {value:6.3f}" for value in ours)
            + f"  {sum(ours):.3f}  {100 * shares[-1]:.0f} %"
        )
    rows.append(
        f"a bare boot: {bare:.2f} s from power-on to the mounted file system,"
        f" {clock - (after - before):.2f} of them by the kernel's clock"
    )
    return "\n".join(rows), shares
