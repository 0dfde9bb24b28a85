//! The steps of a restore inside of one skeleton: lists of calls for credentials, the
//! kernel's notes on memory, pending signals, and the first stops of what is born.

use std::fs::File;
use std::io;

use crate::gate::{self, List};
use crate::model::{Credentials, Process, SIGINFO_BYTES};
use crate::procfs;
use crate::sys::{self, Change};
use crate::together::Calls;

const PR_SET_MM: u64 = 35;
const PR_SET_MM_MAP: u64 = 14;

/// Pending signals that go through the gate in one list.
const QUEUED_AT_ONCE: usize = 16;

/// Sends pending signals again, to thread `tid` or to the process `pid`; a thread in a
/// restore has them blocked. Those with data are sent by the thread itself: the kernel
/// lets nobody else say that it sent them.
pub(crate) fn pending(
    (pid, tid): (i32, i32),
    to_process: bool,
    (signals, queued): (u64, &[Vec<u8>]),
    memory: &File,
) -> io::Result<()> {
    let mut kept = signals & !(1 << (libc::SIGKILL - 1)) & !(1 << (libc::SIGTRAP - 1));
    for part in queued.chunks(QUEUED_AT_ONCE) {
        let mut list = List::new();
        for info in part {
            let mut whole = info.clone();
            whole.resize(SIGINFO_BYTES, 0);
            let number = u64::from(whole[0]);
            if signals & (1 << (number - 1)) == 0 {
                continue;
            }
            kept &= !(1 << (number - 1));
            let at = list.bytes(&whole);
            // More may have been queued than the limit of this process lets in.
            if to_process {
                list.attempt(libc::SYS_rt_sigqueueinfo, &[pid as u64, number, at]);
            } else {
                let whom = [pid as u64, tid as u64, number, at];
                list.attempt(libc::SYS_rt_tgsigqueueinfo, &whom);
            }
        }
        gate::run(tid, memory, &list)?;
    }
    for signal in (1..=64).filter(|signal| kept & (1 << (signal - 1)) != 0) {
        sys::thread_kill(tid, signal)?;
    }
    Ok(())
}

/// Who has it, may set all of this.
const CAP_SETPCAP: u32 = 8;
/// `SECBIT_NO_SETUID_FIXUP`: users change, capabilities stay.
const NO_FIXUP: u64 = 1 << 2;
const CAPABILITIES: u32 = 64;

/// Users, groups and capabilities of one thread, if they differ from our `own`, and whether its
/// process may be looked into.
pub(crate) fn credentials(own: &Credentials, process: &Process, list: &mut List) {
    let want = &process.credentials;
    if own != want {
        identity(own, want, list);
    }
    if let Some(dumpable) = process.dumpable {
        // A change of users ends it, so it comes after.
        let value = u64::from(dumpable);
        list.attempt(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, value]);
    }
}

fn identity(own: &Credentials, want: &Credentials, list: &mut List) {
    if want.no_new_privs {
        list.call(
            libc::SYS_prctl,
            &[libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0],
        );
    }
    let [inheritable, permitted, effective, bounding, ambient] = want.capabilities;
    let all = own.capabilities[2] & 1 << CAP_SETPCAP != 0;
    if all {
        let bits = NO_FIXUP | u64::from(own.securebits);
        list.call(libc::SYS_prctl, &[libc::PR_SET_SECUREBITS as u64, bits]);
        // What is inherited and ambient may be set while we have it, what is bounded after.
        let [_, held, usable, ..] = own.capabilities;
        capset([usable, held, inheritable], list, List::call);
        each_ambient(ambient, list);
        let gone = own.capabilities[3] & !bounding;
        for bit in (0..CAPABILITIES).filter(|bit| gone & 1 << bit != 0) {
            let drop = libc::PR_CAPBSET_DROP as u64;
            list.call(libc::SYS_prctl, &[drop, u64::from(bit)]);
        }
    }
    if own.groups != want.groups {
        let groups: Vec<u8> = want.groups.iter().flat_map(|g| g.to_le_bytes()).collect();
        let at = list.bytes(&groups);
        list.call(libc::SYS_setgroups, &[want.groups.len() as u64, at]);
    }
    let three = |ids: [u32; 4]| [u64::from(ids[0]), u64::from(ids[1]), u64::from(ids[2])];
    if own.gid != want.gid {
        list.call(libc::SYS_setresgid, &three(want.gid));
        // The number of before comes back, never an error.
        list.call(libc::SYS_setfsgid, &[u64::from(want.gid[3])]);
    }
    if own.uid != want.uid {
        list.call(libc::SYS_setresuid, &three(want.uid));
        list.call(libc::SYS_setfsuid, &[u64::from(want.uid[3])]);
    }
    if all {
        let bits = u64::from(want.securebits);
        list.call(libc::SYS_prctl, &[libc::PR_SET_SECUREBITS as u64, bits]);
        capset([effective, permitted, inheritable], list, List::call);
    } else if own.uid == want.uid && own.capabilities != want.capabilities {
        capset([effective, permitted, inheritable], list, List::attempt);
    }
}

/// Version 3 of capset(2): effective, permitted, inheritable, low words first.
fn capset(sets: [u64; 3], list: &mut List, add: fn(&mut List, i64, &[u64]) -> usize) {
    let header = list.bytes(&[0x2008_0522u32.to_le_bytes(), 0u32.to_le_bytes()].concat());
    let words = [0, 32]
        .into_iter()
        .flat_map(|shift| sets.map(|set| (set >> shift) as u32));
    let bytes: Vec<u8> = words.flat_map(|w| w.to_le_bytes()).collect();
    let data = list.bytes(&bytes);
    add(list, libc::SYS_capset, &[header, data]);
}

fn each_ambient(ambient: u64, list: &mut List) {
    let change = libc::PR_CAP_AMBIENT as u64;
    let clear = [change, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0, 0, 0];
    list.call(libc::SYS_prctl, &clear);
    for bit in (0..CAPABILITIES).filter(|bit| ambient & 1 << bit != 0) {
        let raise = [
            change,
            libc::PR_CAP_AMBIENT_RAISE as u64,
            u64::from(bit),
            0,
            0,
        ];
        list.call(libc::SYS_prctl, &raise);
    }
}

/// The kernel's notes on the address space: /proc, brk.
pub(crate) fn layout(process: &Process, exe: Option<i32>, lane: &mut Calls) {
    lane.room(1, process.layout.auxv.len() + 128);
    let auxv = lane.list.bytes(&process.layout.auxv);
    let mut map: Vec<u8> = process
        .layout
        .bounds
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    map.extend_from_slice(&auxv.to_le_bytes());
    map.extend_from_slice(&(process.layout.auxv.len() as u32).to_le_bytes());
    map.extend_from_slice(&exe.unwrap_or(-1).to_le_bytes());
    let at = lane.list.bytes(&map);
    // /proc/PID/cmdline and brk depend on it, the program's own work does not.
    let arguments = [PR_SET_MM, PR_SET_MM_MAP, at, map.len() as u64, 0];
    lane.list.attempt(libc::SYS_prctl, &arguments);
}

/// Installs a seccomp program.
pub(crate) fn filter(program: &[u8], lane: &mut Calls) {
    lane.room(2, program.len() + 32);
    let code = lane.list.bytes(program);
    let mut head = ((program.len() / 8) as u64).to_le_bytes().to_vec();
    head.extend_from_slice(&code.to_le_bytes());
    let head = lane.list.bytes(&head);
    const SET_MODE_FILTER: u64 = 1;
    lane.list
        .call(libc::SYS_seccomp, &[SET_MODE_FILTER, 0, head]);
}

/// Takes a fresh child into ptrace and opens its gate.
pub(crate) fn open_skeleton(pid: i32) -> io::Result<()> {
    sys::seize(pid)?;
    sys::interrupt(pid)?;
    match sys::wait(pid, true)? {
        Some((_, Change::Stopped { .. })) => {}
        other => return Err(io::Error::other(format!("skeleton {pid}: {other:?}"))),
    }
    gate::quiet(pid)?;
    let vdso = crate::dump::vdso(&procfs::mappings(pid)?)?;
    let memory = gate::memory(pid)?;
    gate::open(pid, &memory, vdso)?;
    // A fork inherits the registration; its memory is about to go.
    let (area, bytes, signature) = sys::rseq(pid)?;
    if area != 0 {
        const UNREGISTER: u64 = 1;
        let arguments = [area, u64::from(bytes), UNREGISTER, u64::from(signature)];
        gate::run(pid, &memory, &List::new().with(libc::SYS_rseq, &arguments))?;
    }
    Ok(())
}

/// Waits for the first stop of threads or processes that were just born.
pub(crate) fn first_stops(tids: &[i32]) -> io::Result<()> {
    for tid in tids {
        match sys::wait(*tid, true)? {
            Some((_, Change::Stopped { .. })) => gate::quiet(*tid)?,
            other => return Err(io::Error::other(format!("newborn {tid}: {other:?}"))),
        }
    }
    Ok(())
}

/// Refuses other than `want` births.
pub(crate) fn expect(tids: &[i32], want: usize) -> io::Result<()> {
    if tids.len() == want {
        return Ok(());
    }
    let what = format!("{} are there, {want} expected", tids.len());
    Err(io::Error::other(what))
}
