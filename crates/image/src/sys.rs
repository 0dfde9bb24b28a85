//! The kernel interfaces that no safe library offers: ptrace, kcmp, clone3 with
//! chosen numbers. All `unsafe` of this crate is here and in `rights`, but for taking
//! descriptors over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_long, c_void};
use std::io;
use std::marker::PhantomData;

use crate::model::SIGINFO_BYTES;

/// Options under which every process is traced.
pub const OPTIONS: u64 = (libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESECCOMP) as u64;

/// Size of the registers that [`registers`] reads, in words.
pub const WORDS: usize = 27;
const XSTATE_MAX: usize = 65_536;
const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;

pub(crate) fn answer(value: c_long) -> io::Result<c_long> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// A ptrace request whose address and data are plain numbers.
fn request(what: u32, tid: i32, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: the requests made here take no pointer into this process.
    let result = unsafe { libc::ptrace(what, tid, address as *mut c_void, data as *mut c_void) };
    answer(result).map(drop)
}

/// Attaches without stopping.
pub fn seize(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, OPTIONS)
}

/// Attaches without stopping; the thread ends if this process does.
pub fn seize_for_life(tid: i32) -> io::Result<()> {
    let options = OPTIONS | libc::PTRACE_O_EXITKILL as u64;
    request(libc::PTRACE_SEIZE, tid, 0, options)
}

/// Ends a traced thread with its tracer from now on, so that it never runs unwatched.
pub fn end_with_tracer(tid: i32) -> io::Result<()> {
    let options = OPTIONS | libc::PTRACE_O_EXITKILL as u64;
    request(libc::PTRACE_SETOPTIONS, tid, 0, options)
}

/// Stops a seized thread.
pub fn interrupt(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Lets a stopped thread run, with a signal (0: none).
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as u64)
}

/// Lets a stopped thread run to the next entry or exit of a call.
pub fn to_call(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, 0)
}

/// Leaves a thread in its group stop, but tells of what comes.
pub fn listen(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Lets a thread go.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as u64)
}

/// The message of a ptrace event: the number of a new thread, for one.
pub fn event_message(tid: i32) -> io::Result<u64> {
    let mut message = 0u64;
    // SAFETY: PTRACE_GETEVENTMSG writes one unsigned long to the address in `data`.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            tid,
            std::ptr::null_mut::<c_void>(),
            &raw mut message,
        )
    };
    answer(result).map(|_| message)
}

/// One PTRACE_GETREGSET or PTRACE_SETREGSET; the bytes that the kernel moved.
fn regset(what: u32, tid: i32, kind: usize, at: *mut c_void, bytes: usize) -> io::Result<usize> {
    let mut vector = libc::iovec {
        iov_base: at,
        iov_len: bytes,
    };
    // SAFETY: the vector describes `bytes` bytes that the callers below own.
    let result = unsafe { libc::ptrace(what, tid, kind, &raw mut vector) };
    answer(result).map(|_| vector.iov_len)
}

/// The general registers: `struct user_regs_struct`.
pub fn registers(tid: i32) -> io::Result<Vec<u64>> {
    let mut words = vec![0u64; WORDS];
    let at = words.as_mut_ptr().cast();
    let got = regset(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, at, WORDS * 8)?;
    if got == WORDS * 8 {
        Ok(words)
    } else {
        // A 32-bit thread shows fewer.
        Err(io::Error::from_raw_os_error(libc::ENOEXEC))
    }
}

/// Sets the general registers.
pub fn set_registers(tid: i32, words: &[u64]) -> io::Result<()> {
    let mut words = words.to_vec();
    words.resize(WORDS, 0);
    let at = words.as_mut_ptr().cast();
    regset(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, at, WORDS * 8).map(drop)
}

/// The floating-point and vector state, as XSAVE (not compacted) lays it out.
pub fn xstate(tid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; XSTATE_MAX];
    let at = bytes.as_mut_ptr().cast();
    let got = regset(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, at, XSTATE_MAX)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Sets the floating-point and vector state.
pub fn set_xstate(tid: i32, bytes: &[u8]) -> io::Result<()> {
    let mut bytes = bytes.to_vec();
    let at = bytes.as_mut_ptr().cast();
    regset(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, at, bytes.len()).map(drop)
}

/// The blocked signals (the mask to come back to, inside of sigsuspend).
pub fn mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: PTRACE_GETSIGMASK writes the 8 bytes that `address` announces.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, tid, 8usize, &raw mut mask) };
    answer(result).map(|_| mask)
}

/// Sets the blocked signals.
pub fn set_mask(tid: i32, mask: u64) -> io::Result<()> {
    let mut mask = mask;
    // SAFETY: PTRACE_SETSIGMASK reads the 8 bytes that `address` announces.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, tid, 8usize, &raw mut mask) };
    answer(result).map(drop)
}

/// The data of pending signals, in their order: of the process, or of one thread.
pub fn queued(tid: i32, of_process: bool) -> io::Result<Vec<Vec<u8>>> {
    const PEEK_AT_ONCE: usize = 32;
    let mut found: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut buffer = vec![0u8; PEEK_AT_ONCE * SIGINFO_BYTES];
        let arguments = libc::ptrace_peeksiginfo_args {
            off: found.len() as u64,
            flags: u32::from(of_process),
            nr: PEEK_AT_ONCE as i32,
        };
        // SAFETY: PTRACE_PEEKSIGINFO reads the arguments and writes `nr` siginfo_t at most.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_PEEKSIGINFO,
                tid,
                &raw const arguments,
                buffer.as_mut_ptr(),
            )
        };
        let got = answer(result)? as usize;
        let infos = buffer.chunks_exact(SIGINFO_BYTES).take(got);
        found.extend(infos.map(<[u8]>::to_vec));
        if got < PEEK_AT_ONCE {
            return Ok(found);
        }
    }
}

/// Address, bytes and signature of the registered restartable sequences; address 0 if
/// there are none, or if the kernel (before 5.13) cannot tell.
pub fn rseq(tid: i32) -> io::Result<(u64, u32, u32)> {
    let mut words = [0u32; 6];
    // SAFETY: `struct ptrace_rseq_configuration` has 24 bytes, as announced.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_RSEQ_CONFIGURATION,
            tid,
            24usize,
            words.as_mut_ptr(),
        )
    };
    match answer(result) {
        Ok(_) => {
            let address = u64::from(words[0]) | u64::from(words[1]) << 32;
            Ok((address, words[2], words[3]))
        }
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok((0, 0, 0)),
        Err(error) => Err(error),
    }
}

/// The head of the robust futex list, 0 if there is none.
pub fn robust_list(tid: i32) -> io::Result<u64> {
    let (mut head, mut length) = (0u64, 0usize);
    // SAFETY: both addresses are valid for the one word that is written to each.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid,
            &raw mut head,
            &raw mut length,
        )
    };
    answer(result).map(|_| head)
}

/// True if two descriptors share one open file description (kcmp(2), KCMP_FILE).
pub fn same_file(pid: i32, fd: i32, other_pid: i32, other_fd: i32) -> io::Result<bool> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, pid, other_pid, 0, fd, other_fd) };
    answer(result).map(|order| order == 0)
}

/// How a traced thread changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It ended with this wait status.
    Ended(i32),
    /// It stopped: signal, and the ptrace event in the upper bits.
    Stopped {
        /// The signal.
        signal: i32,
        /// PTRACE_EVENT_..., or 0.
        event: i32,
    },
}

thread_local! {
    /// What was told of threads that nobody waited for, while an [`Others`] is there.
    static OTHERS: RefCell<Option<VecDeque<(i32, Change)>>> = const { RefCell::new(None) };
}

/// While it is there, [`wait`] for one thread takes note of what happens to others, and a later
/// wait tells it.
///
/// A kernel tells the end of a process's first thread only when all others are reaped: a tracer
/// that waits for that one alone, while the process ends or executes a program, would wait for
/// ever. It is for a tracer that also waits for all (-1): children of other kinds that its
/// thread made are reaped, too.
#[derive(Debug)]
pub struct Others(PhantomData<*const ()>);

impl Others {
    /// From now on, for this thread; one at a time.
    #[expect(clippy::new_without_default, reason = "it is not a value but a state")]
    pub fn new() -> Others {
        OTHERS.with_borrow_mut(|others| *others = Some(VecDeque::new()));
        Others(PhantomData)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        OTHERS.with_borrow_mut(|others| *others = None);
    }
}

/// Takes the oldest note of a thread, or of any (-1).
fn noted(tid: i32) -> Option<(i32, Change)> {
    OTHERS.with_borrow_mut(|others| {
        let others = others.as_mut()?;
        let place = others.iter().position(|(of, _)| tid < 0 || *of == tid)?;
        others.remove(place)
    })
}

fn note(told: (i32, Change)) {
    OTHERS.with_borrow_mut(|others| others.iter_mut().for_each(|o| o.push_back(told)));
}

fn is_exec(change: Change) -> bool {
    matches!(change, Change::Stopped { event, .. } if event == libc::PTRACE_EVENT_EXEC)
}

/// True for a thread that is stopped where it executed a program (PTRACE_EVENT_EXEC).
pub fn is_at_exec(tid: i32) -> bool {
    // SAFETY: plain data, valid when zero.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let at = (&raw mut info).cast::<c_void>() as usize;
    let asked = request(libc::PTRACE_GETSIGINFO, tid, 0, at as _);
    asked.is_ok() && info.si_code >> 8 == libc::PTRACE_EVENT_EXEC
}

/// What has happened to a thread that the caller traces: `None`, nothing. Its end is left to
/// whoever waits for it: a tracer whose process is also the parent would take it from there.
///
/// # Errors
/// ECHILD if it is not traced.
pub fn seen(tid: i32) -> io::Result<Option<Change>> {
    let asked = |what: i32| {
        // SAFETY: plain data, valid when zero.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = what | libc::WNOHANG | libc::__WALL;
        // SAFETY: `info` is valid for one.
        let asked = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, flags) };
        match asked {
            0 => Ok(info),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let there = asked(libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT)?;
    // SAFETY: what `waitid` fills in, or zero.
    let (pid, told) = unsafe { (there.si_pid(), there.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    match there.si_code {
        libc::CLD_EXITED => return Ok(Some(Change::Ended(told << 8))),
        libc::CLD_KILLED => return Ok(Some(Change::Ended(told))),
        libc::CLD_DUMPED => return Ok(Some(Change::Ended(told | 0x80))),
        _ => {}
    }
    let stopped = asked(libc::WSTOPPED)?;
    // SAFETY: as above. It may have been killed meanwhile: then nothing is told yet.
    let (pid, told) = unsafe { (stopped.si_pid(), stopped.si_status()) };
    Ok((pid != 0).then_some(Change::Stopped {
        signal: told & 0xff,
        event: told >> 8,
    }))
}

/// Waits for a thread, or for any (-1) that the calling thread traces or made. `None`
/// with `block` false: nothing has changed.
///
/// With -1 those of other threads are left to them: a tracer is a thread, and several
/// may work in one process, each with programs of its own. Orphans, which come to the
/// first thread of the process, can be waited for by their number.
///
/// # Errors
/// ECHILD if there is nothing to wait for.
pub fn wait(tid: i32, block: bool) -> io::Result<Option<(i32, Change)>> {
    let take_note = tid > 0 && OTHERS.with_borrow(Option::is_some);
    let mut flags = libc::__WALL;
    if !block {
        flags |= libc::WNOHANG;
    }
    if tid < 0 || take_note {
        flags |= libc::__WNOTHREAD;
    }
    if let Some(told) = noted(tid) {
        return Ok(Some(told));
    }
    let whom = if take_note { -1 } else { tid };
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for one int.
        let pid = unsafe { libc::waitpid(whom, &raw mut status, flags) };
        if pid < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted && block {
                continue;
            }
            return Err(error);
        }
        if pid == 0 {
            return Ok(None);
        }
        let change = if libc::WIFSTOPPED(status) {
            Change::Stopped {
                signal: libc::WSTOPSIG(status),
                event: status >> 16,
            }
        } else {
            Change::Ended(status)
        };
        let exec = is_exec(change);
        if exec {
            // It is not where older notes saw it.
            while noted(pid).is_some() {}
        }
        if whom != tid && pid != tid {
            note((pid, change));
            if exec && event_message(pid).is_ok_and(|former| former == tid as u64) {
                // It goes on under the number of its process.
                return Ok(Some((tid, Change::Ended(0))));
            }
            continue;
        }
        return Ok(Some((pid, change)));
    }
}

/// Sends a signal to a process.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    answer(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// Sends a signal to a thread.
pub fn thread_kill(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    answer(unsafe { libc::syscall(libc::SYS_tkill, tid, signal) }).map(drop)
}

/// Makes a child that waits until `gate` (the read end of a pipe) is closed on the other
/// side, then ends: a skeleton to be seized. With `pid`, that number (clone3(2),
/// set_tid: needs CAP_CHECKPOINT_RESTORE).
///
/// The child makes three system calls and nothing else, so it may come from a program
/// with threads.
pub fn skeleton(pid: Option<i32>, gate: [i32; 2]) -> io::Result<i32> {
    let mut wanted = pid.unwrap_or(0);
    let mut arguments = [0u64; 11];
    arguments[4] = libc::SIGCHLD as u64;
    if pid.is_some() {
        arguments[8] = (&raw mut wanted) as u64;
        arguments[9] = 1;
    }
    // SAFETY: `struct clone_args` has 88 bytes here; no flag shares memory, so the child
    // has its own copy of this stack. It makes plain system calls only and never returns.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            arguments.as_mut_ptr(),
            std::mem::size_of_val(&arguments),
        )
    };
    if answer(child)? == 0 {
        // SAFETY: as above; the buffer is on the child's own stack.
        unsafe {
            let mut byte = 0u8;
            libc::syscall(libc::SYS_close, gate[1]);
            libc::syscall(libc::SYS_read, gate[0], &raw mut byte, 1);
            libc::syscall(libc::SYS_exit_group, 70);
        }
        unreachable!("exit_group does not return");
    }
    Ok(child as i32)
}

/// Sets a limit of another process.
pub fn set_limit(pid: i32, resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: `limit` is read only; the null pointer asks for no old value.
    let result = unsafe { libc::prlimit64(pid, resource, &raw const limit, std::ptr::null_mut()) };
    answer(result.into()).map(drop)
}

/// The limits of a process, by resource number.
pub fn limits(pid: i32) -> io::Result<Vec<(u64, u64)>> {
    let one = |resource: u32| {
        let mut limit = libc::rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` is valid for one structure; the null pointer sets nothing.
        let result = unsafe { libc::prlimit64(pid, resource, std::ptr::null(), &raw mut limit) };
        answer(result.into()).map(|_| (limit.rlim_cur, limit.rlim_max))
    };
    (0..16).map(one).collect()
}

/// The CPUs that a thread may run on, as bits.
pub fn affinity(tid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; 1024];
    // SAFETY: the buffer has the announced length.
    let got = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            bytes.len(),
            bytes.as_mut_ptr(),
        )
    };
    bytes.truncate(answer(got)? as usize);
    Ok(bytes)
}

/// Sets the CPUs that a thread may run on.
pub fn set_affinity(tid: i32, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer has the announced length and is only read.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            bytes.len(),
            bytes.as_ptr(),
        )
    };
    answer(result).map(drop)
}

/// A clock in ns.
pub fn clock_ns(clock: i32) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for one structure.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// True if the other side of a pipe is gone.
pub fn hung_up(fd: i32) -> io::Result<bool> {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `one` is one structure.
    answer(unsafe { libc::poll(&raw mut one, 1, 0) }.into())?;
    Ok(one.revents & libc::POLLHUP != 0)
}

/// The kernel's `struct termios` (TCGETS) of an open terminal, its rows and columns and
/// its foreground process group (0 if it is not our controlling terminal).
pub fn terminal(fd: i32) -> io::Result<(Vec<u8>, (u16, u16), i32)> {
    let mut termios = vec![0u8; 36];
    // SAFETY: the kernel's termios has 36 bytes on x86-64.
    answer(unsafe { libc::ioctl(fd, libc::TCGETS, termios.as_mut_ptr()) }.into())?;
    let mut size = [0u16; 4];
    // SAFETY: struct winsize is four shorts.
    unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, size.as_mut_ptr()) };
    let mut group = 0i32;
    // SAFETY: the group is one int.
    unsafe { libc::ioctl(fd, libc::TIOCGPGRP, &raw mut group) };
    Ok((termios, (size[0], size[1]), group))
}

/// Sets what [`terminal`] read.
pub fn set_terminal(fd: i32, termios: &[u8], size: (u16, u16)) -> io::Result<()> {
    if termios.len() == 36 {
        // SAFETY: the kernel reads 36 bytes.
        answer(unsafe { libc::ioctl(fd, libc::TCSETS, termios.as_ptr()) }.into())?;
    }
    if size == (0, 0) {
        return Ok(());
    }
    let size = [size.0, size.1, 0, 0];
    // SAFETY: struct winsize is four shorts.
    answer(unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, size.as_ptr()) }.into()).map(drop)
}

/// Copies up to `length` bytes between pipes without taking them out (tee(2)).
pub fn tee(from: i32, to: i32, length: usize) -> io::Result<usize> {
    // SAFETY: plain numbers.
    let got = unsafe { libc::tee(from, to, length, libc::SPLICE_F_NONBLOCK) };
    answer(got as c_long).map(|got| got as usize)
}

/// A copy of a descriptor of ours, at or above a number; it stays open over exec.
pub fn duplicate_above(fd: i32, least: i32) -> io::Result<i32> {
    // SAFETY: plain numbers.
    answer(unsafe { libc::fcntl(fd, libc::F_DUPFD, least) }.into()).map(|fd| fd as i32)
}

/// True if a file can be mapped with MAP_SYNC: it is on DAX.
pub fn maps_synchronously(fd: i32) -> bool {
    // SAFETY: a new mapping of one page at an address of the kernel's choice, which nothing
    // touches and which is unmapped at once.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            fd,
            0,
        );
        at != libc::MAP_FAILED && libc::munmap(at, 4096) == 0
    }
}

/// Closes a descriptor by number.
pub fn close(fd: i32) {
    // SAFETY: the callers own the number; a bad one is an error that changes nothing.
    unsafe { libc::close(fd) };
}

/// Sets the status flags of an open file.
pub fn set_status_flags(fd: i32, flags: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    answer(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }.into()).map(drop)
}

/// A descriptor, at or above a number, on which each call fails with EBADF.
pub fn useless_above(least: i32) -> io::Result<i32> {
    // SAFETY: a path that ends with zero, and plain numbers.
    let fd = answer(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_PATH) }.into())? as i32;
    let number = duplicate_above(fd, least);
    close(fd);
    number
}

/// A new eventfd with its counter.
pub fn event(counter: u64) -> io::Result<i32> {
    let low = counter.min(u64::from(u32::MAX)) as u32;
    // SAFETY: plain numbers.
    let fd = answer(unsafe { libc::eventfd(low, 0) }.into())? as i32;
    let rest = counter - u64::from(low);
    if rest > 0 {
        // SAFETY: 8 bytes are read from a live word.
        unsafe { libc::write(fd, (&raw const rest).cast(), 8) };
    }
    Ok(fd)
}

/// A connected pair of stream sockets.
pub fn socket_pair() -> io::Result<[i32; 2]> {
    let mut pair = [0; 2];
    // SAFETY: the array has room for two descriptors.
    let result =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) };
    answer(result.into()).map(|_| pair)
}

/// A pipe: read end, write end.
pub fn pipe() -> io::Result<[i32; 2]> {
    let mut pair = [0; 2];
    // SAFETY: the array has room for two descriptors.
    answer(unsafe { libc::pipe(pair.as_mut_ptr()) }.into()).map(|_| pair)
}
