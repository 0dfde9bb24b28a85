#!/bin/busybox sh
# The first process of the emulated machine: protected memory, the module, then
# the scenario of the test. The machine ends when the scenario does.
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/pts && mount -t devpts none /dev/pts
mount -t tmpfs none /tmp
echo 1 >/proc/sys/kernel/panic_on_oops
export PATH=/bin HOME=/tmp
read -r addr size </area
insmod /modules/outlive_minickpt.ko area_addr="$addr" area_size="$size" $(sed -n 's/.*omk=\([^ ]*\).*/\1/p' /proc/cmdline | tr , ' ')
for module in libnvdimm nd_btt nd_pmem nd_e820; do
    insmod /modules/$module.ko
done
for module in /modules/fs/*.ko; do
    [ ! -e "$module" ] || insmod "$module"
done
insmod /modules/outlive_inject.ko
# The disk appears when its driver has looked at it: 20 s at most.
for _ in $(seq 200); do
    [ -b /dev/pmem0 ] && break
    usleep 100000
done
uptime() { cut -d' ' -f1 /proc/uptime; }
BEFORE=$(uptime) AFTER=$BEFORE
BOOT=$(($(omkctl query | sed -n 's/.* panics \([0-9]*\) .*/\1/p') + 1))
export BOOT
if [ -e /boot/initrd ]; then
    # By its path: the shell takes its own program otherwise.
    # Blocks of 2 MiB at their boundaries, for huge pages.
    /bin/mke2fs -q -t ext4 -b 4096 -J size=8 -m 0 \
        -E lazy_itable_init=0,stride=512,stripe_width=512 /dev/pmem0
    AFTER=$(uptime)
fi
mount -t ext4 -o dax=always /dev/pmem0 /dax || echo "MOUNT FAILED"
MOUNTED=$(uptime) TICKS=$(omkctl ticks)
if [ -e /boot/initrd ]; then
    mkdir -p /dax/boot && cp /boot/initrd /boot/vmlinuz /dax/boot/ && sync && rm /boot/*
fi
omkctl mark 4
echo "BOOT $BOOT uptime $MOUNTED, of it $BEFORE to $AFTER for what only a first boot does, ticks $TICKS"
omkctl query
CLOCK=$(omkctl clock)
# As the product does it; see docs/design/minickpt-kernel.md.
sed -i "s/$/ tsc_early_khz=$CLOCK/" /next-line
# Loads the next kernel.
arm() { omkctl kload /dax/boot/vmlinuz /dax/boot/initrd "$(cat /next-line)"; }
. /scenario.sh
echo "SCENARIO END"
poweroff -f
