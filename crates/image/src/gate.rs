//! System calls inside of a stopped process.
//!
//! A *gate* is a page of code and some pages of data at an address that programs do not
//! use. The code makes a list of calls one after the other, until one fails or the list
//! ends, and traps: a whole list costs the tracer one stop. Only the first call of a
//! process, which maps the gate, is made with a `syscall` instruction of its vdso.
//!
//! Invariants: a thread that runs a list has all signals blocked but SIGTRAP (a trap
//! with SIGTRAP blocked would reset its action); the caller puts back registers and
//! mask; only one list runs at a time in an address space.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::calls::reg;
use crate::sys::{self, Change};

/// Where the gate lies in every process that is dumped, restored or protected.
pub const GATE: u64 = 0x1a7e_0000_0000;
/// Its bytes.
pub const GATE_BYTES: u64 = 0x2_0000;
const TABLE: u64 = GATE + 0x1000;
const CALLS_MAX: usize = 384;
const ENTRY: usize = 64;
const DATA: u64 = TABLE + (CALLS_MAX * ENTRY) as u64;
const DATA_BYTES: usize = (GATE + GATE_BYTES - DATA) as usize;
const TRAP: u64 = 5;

/// The list runner. rbx points at entries of eight words: number (-1 ends the list), six
/// arguments, result. A result from -4095 to -1 ends the list as well.
#[rustfmt::skip]
const CODE: &[u8] = &[
    // next:
    0x48, 0x8b, 0x03,             // mov  rax, [rbx]
    0x48, 0x83, 0xf8, 0xff,       // cmp  rax, -1
    0x74, 0x2c,                   // je   done
    0x48, 0x8b, 0x7b, 0x08,       // mov  rdi, [rbx+8]
    0x48, 0x8b, 0x73, 0x10,       // mov  rsi, [rbx+16]
    0x48, 0x8b, 0x53, 0x18,       // mov  rdx, [rbx+24]
    0x4c, 0x8b, 0x53, 0x20,       // mov  r10, [rbx+32]
    0x4c, 0x8b, 0x43, 0x28,       // mov  r8,  [rbx+40]
    0x4c, 0x8b, 0x4b, 0x30,       // mov  r9,  [rbx+48]
    0x0f, 0x05,                   // syscall
    0x48, 0x89, 0x43, 0x38,       // mov  [rbx+56], rax
    0x48, 0x83, 0xc3, 0x40,       // add  rbx, 64
    0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, // cmp rax, -4096
    0x76, 0xcd,                   // jbe  next
    0x90, 0x90,
    // done:
    0xcc,                         // int3
];

/// One call: number, six arguments, and whether a failure ends the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    words: [u64; 7],
    must: bool,
}

/// A list of calls with the bytes that their arguments point at.
#[derive(Clone, Default, Debug)]
pub struct List {
    calls: Vec<Call>,
    data: Vec<u8>,
}

impl List {
    /// An empty list.
    pub fn new() -> List {
        List::default()
    }

    fn add(&mut self, number: i64, arguments: &[u64], must: bool) -> usize {
        let mut words = [0; 7];
        words[0] = number as u64;
        words[1..=arguments.len()].copy_from_slice(arguments);
        self.calls.push(Call { words, must });
        self.calls.len() - 1
    }

    /// Adds a call whose failure ends the list. At most six arguments. Its place.
    pub fn call(&mut self, number: i64, arguments: &[u64]) -> usize {
        self.add(number, arguments, true)
    }

    /// Adds a call that may fail. Its place.
    pub fn attempt(&mut self, number: i64, arguments: &[u64]) -> usize {
        self.add(number, arguments, false)
    }

    /// The list with one more call.
    #[must_use]
    pub fn with(mut self, number: i64, arguments: &[u64]) -> List {
        self.call(number, arguments);
        self
    }

    /// Puts bytes beside the list, aligned to 8; their address in the process.
    pub fn bytes(&mut self, bytes: &[u8]) -> u64 {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let at = DATA + self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        at
    }

    /// Puts a path beside the list, with its final zero.
    pub fn path(&mut self, path: &str) -> u64 {
        let at = self.bytes(path.as_bytes());
        self.data.push(0);
        at
    }

    /// True if `calls` more calls with `bytes` more bytes might not fit.
    pub fn is_full(&self, calls: usize, bytes: usize) -> bool {
        self.calls.len() + calls >= CALLS_MAX || self.data.len() + bytes + 16 > DATA_BYTES
    }

    /// True if it has no calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

/// What a list did.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// The result of each call.
    pub results: Vec<i64>,
    /// Threads and processes that were born meanwhile; they are traced and will stop.
    pub born: Vec<i32>,
}

/// The memory of a process as a file.
pub fn memory(pid: i32) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
}

/// What a thread did instead of coming to the end of what it was let run for: it ended, another
/// thread executed a program and took its number, or it met a fault. Comes as an [`io::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// The thread.
    pub tid: i32,
    /// What was told of it, and is not told again.
    pub change: Change,
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "thread {} did not come through: {:?}",
            self.tid, self.change
        )
    }
}

impl std::error::Error for Gone {}

impl Gone {
    /// Why a list or a call failed, if it is this.
    pub fn of(error: &io::Error) -> Option<Gone> {
        error.get_ref()?.downcast_ref().copied()
    }
}

fn gone(tid: i32, change: Change) -> io::Error {
    io::Error::other(Gone { tid, change })
}

/// A failed call as an error.
pub fn failed(number: u64, result: i64) -> io::Error {
    let cause = io::Error::from_raw_os_error(-result as i32);
    io::Error::new(cause.kind(), format!("system call {number}: {cause}"))
}

/// Blocks all signals of a thread that a list could meet.
pub fn quiet(tid: i32) -> io::Result<()> {
    sys::set_mask(tid, !(1 << (TRAP - 1)))
}

/// Runs a list in a stopped thread of a process with a gate. Changes its registers.
///
/// # Errors
/// What a call that must not fail said; EIO if the thread ended meanwhile.
pub fn run(tid: i32, memory: &File, list: &List) -> io::Result<Ran> {
    let mut ran = Ran::default();
    if list.is_empty() {
        return Ok(ran);
    }
    start(tid, memory, list)?.finish(memory, list, &mut ran)?;
    Ok(ran)
}

/// A thread that runs a list.
#[derive(Debug)]
pub(crate) struct Running {
    tid: i32,
    registers: Vec<u64>,
}

/// Lets a stopped thread begin with a list; it then must be finished.
pub(crate) fn start(tid: i32, memory: &File, list: &List) -> io::Result<Running> {
    if list.calls.len() >= CALLS_MAX || list.data.len() > DATA_BYTES {
        return Err(io::Error::other("a list of calls is too long for its gate"));
    }
    let mut table = Vec::with_capacity((list.calls.len() + 1) * ENTRY);
    for call in &list.calls {
        call.words
            .iter()
            .for_each(|w| table.extend_from_slice(&w.to_le_bytes()));
        table.extend_from_slice(&0u64.to_le_bytes());
    }
    table.extend_from_slice(&u64::MAX.to_le_bytes());
    memory.write_all_at(&table, TABLE)?;
    if !list.data.is_empty() {
        memory.write_all_at(&list.data, DATA)?;
    }
    let registers = sys::registers(tid)?;
    let mut running = Running { tid, registers };
    running.go_on(0)?;
    Ok(running)
}

impl Running {
    fn go_on(&mut self, call: usize) -> io::Result<()> {
        self.registers[reg::RIP] = GATE;
        self.registers[reg::RBX] = TABLE + (call * ENTRY) as u64;
        self.registers[reg::ORIG_RAX] = u64::MAX;
        sys::set_registers(self.tid, &self.registers)?;
        sys::resume(self.tid, 0)
    }

    /// Waits for the end of the list that was started, and what it did; births are in `ran`
    /// after an error, too. The thread is stopped then, or has ended.
    pub(crate) fn finish(mut self, memory: &File, list: &List, ran: &mut Ran) -> io::Result<()> {
        let mut next = 0;
        loop {
            to_trap(self.tid, &mut ran.born)?;
            let mut bytes = vec![0u8; (list.calls.len() - next) * ENTRY];
            memory.read_exact_at(&mut bytes, TABLE + (next * ENTRY) as u64)?;
            for (call, entry) in list.calls[next..].iter().zip(bytes.chunks_exact(ENTRY)) {
                let mut word = [0; 8];
                word.copy_from_slice(&entry[56..]);
                let result = i64::from_le_bytes(word);
                ran.results.push(result);
                next += 1;
                if (-4095..0).contains(&result) {
                    if call.must {
                        return Err(failed(call.words[0], result));
                    }
                    break;
                }
            }
            if next >= list.calls.len() {
                return Ok(());
            }
            self.go_on(next)?;
        }
    }
}

/// Waits until a thread traps at the end of a list.
fn to_trap(tid: i32, born: &mut Vec<i32>) -> io::Result<()> {
    loop {
        let Some((_, change)) = sys::wait(tid, true)? else {
            continue;
        };
        match change {
            Change::Stopped {
                signal: libc::SIGTRAP,
                event: 0,
            } => {
                let at = sys::registers(tid)?[reg::RIP];
                if at == GATE + CODE.len() as u64 {
                    return Ok(());
                }
                return Err(gone(tid, change));
            }
            // The list itself cannot go on; or it is another program that has the number now.
            Change::Stopped {
                signal: libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGSYS,
                event: 0,
            }
            | Change::Stopped {
                event: libc::PTRACE_EVENT_EXEC,
                ..
            } => return Err(gone(tid, change)),
            Change::Stopped { event, .. } => {
                let births = [
                    libc::PTRACE_EVENT_CLONE,
                    libc::PTRACE_EVENT_FORK,
                    libc::PTRACE_EVENT_VFORK,
                ];
                if births.contains(&event) {
                    born.push(sys::event_message(tid)? as i32);
                }
                sys::resume(tid, 0)?;
            }
            Change::Ended(_) => return Err(gone(tid, change)),
        }
    }
}

/// Runs a stopped thread to the end of the call that it is in (after a ptrace event).
pub fn to_end_of_call(tid: i32) -> io::Result<()> {
    match end_of_call(tid)? {
        None => Ok(()),
        Some(change) => Err(gone(tid, change)),
    }
}

/// The same for a thread that may not come to it: what it does instead. It may end, or another
/// thread executes a program and takes its number.
pub fn end_of_call(tid: i32) -> io::Result<Option<Change>> {
    sys::to_call(tid)?;
    await_end_of_call(tid)
}

/// Waits for a thread that was let run by [`sys::to_call`] to the entry or end of a call, as
/// [`end_of_call`].
pub fn await_end_of_call(tid: i32) -> io::Result<Option<Change>> {
    const END: i32 = libc::SIGTRAP | 0x80;
    loop {
        match sys::wait(tid, true)? {
            Some((_, Change::Stopped { signal: END, .. })) => return Ok(None),
            Some((
                _,
                change @ (Change::Ended(_)
                | Change::Stopped {
                    event: libc::PTRACE_EVENT_EXEC,
                    ..
                }),
            )) => return Ok(Some(change)),
            // A filter's stop, or one that was asked for: who asks, asks again where this
            // may take it.
            _ => sys::to_call(tid)?,
        }
    }
}

/// Makes one call in a stopped thread with the `syscall` instruction at `instruction`.
/// Changes its registers.
pub fn once(tid: i32, instruction: u64, number: i64, arguments: &[u64]) -> io::Result<i64> {
    enter(tid, instruction, number, arguments)?;
    entered(tid)?;
    left(tid, number)
}

/// Lets a thread run to the entry of a call, which then is to be awaited.
fn enter(tid: i32, instruction: u64, number: i64, arguments: &[u64]) -> io::Result<()> {
    let mut registers = sys::registers(tid)?;
    let places = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8, reg::R9];
    for (place, value) in places.iter().zip(arguments) {
        registers[*place] = *value;
    }
    registers[reg::RAX] = number as u64;
    registers[reg::ORIG_RAX] = u64::MAX;
    registers[reg::RIP] = instruction;
    sys::set_registers(tid, &registers)?;
    sys::to_call(tid)
}

/// Waits for the entry of a call and lets the thread run to its end.
fn entered(tid: i32) -> io::Result<()> {
    match await_end_of_call(tid)? {
        None => sys::to_call(tid),
        Some(change) => Err(gone(tid, change)),
    }
}

/// Waits for the end of a call: its result.
fn left(tid: i32, number: i64) -> io::Result<i64> {
    if let Some(change) = await_end_of_call(tid)? {
        return Err(gone(tid, change));
    }
    let result = sys::registers(tid)?[reg::RAX] as i64;
    if (-4095..0).contains(&result) {
        return Err(failed(number as u64, result));
    }
    Ok(result)
}

/// The address of a `syscall` instruction in a process: its vdso has one.
pub fn instruction(memory: &File, vdso: (u64, u64)) -> io::Result<u64> {
    let mut code = vec![0u8; (vdso.1 - vdso.0) as usize];
    memory.read_exact_at(&mut code, vdso.0)?;
    code.windows(2)
        .position(|two| two == [0x0f, 0x05])
        .map(|at| vdso.0 + at as u64)
        .ok_or_else(|| io::Error::other("the vdso has no system call instruction"))
}

/// Maps the gate into a process by a stopped thread of it. Changes its registers.
pub fn open(tid: i32, memory: &File, vdso: (u64, u64)) -> io::Result<()> {
    let instruction = instruction(memory, vdso)?;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let map = |at: u64, bytes: u64, protection: i32| {
        let arguments = [at, bytes, protection as u64, flags, u64::MAX, 0];
        once(tid, instruction, libc::SYS_mmap, &arguments)
    };
    map(GATE, 0x1000, libc::PROT_READ | libc::PROT_EXEC)?;
    map(
        TABLE,
        GATE_BYTES - 0x1000,
        libc::PROT_READ | libc::PROT_WRITE,
    )?;
    memory.write_all_at(CODE, GATE)
}

/// Takes the gate out of a process. Changes the registers of the thread.
pub fn close(tid: i32, memory: &File, vdso: (u64, u64)) -> io::Result<()> {
    let instruction = instruction(memory, vdso)?;
    once(tid, instruction, libc::SYS_munmap, &[GATE, GATE_BYTES]).map(drop)
}

/// Takes the gates out of several processes, side by side: by a thread of each and the
/// address of its `syscall` instruction. All are stopped then, also after an error.
pub(crate) fn close_all(gates: &[(i32, u64)]) -> io::Result<()> {
    let mut errors = Vec::new();
    let mut each = |tids: Vec<(i32, u64)>, step: &dyn Fn(i32, u64) -> io::Result<()>| {
        let mut went = tids;
        went.retain(|(tid, at)| step(*tid, *at).map_err(|e| errors.push(e)).is_ok());
        went
    };
    let arguments = [GATE, GATE_BYTES];
    let begun = each(gates.to_vec(), &|tid, instruction| {
        enter(tid, instruction, libc::SYS_munmap, &arguments)
    });
    let inside = each(begun, &|tid, _| entered(tid));
    each(inside, &|tid, _| left(tid, libc::SYS_munmap).map(drop));
    errors.into_iter().next().map_or(Ok(()), Err)
}

/// The address of bytes that a list put beside itself, for reading results.
pub fn read(memory: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; bytes];
    memory.read_exact_at(&mut data, at)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jumps_of_the_runner_meet_their_marks() {
        let je = 7;
        assert_eq!(CODE[je], 0x74);
        assert_eq!(je + 2 + usize::from(CODE[je + 1]), CODE.len() - 1);
        // jbe: back to the start.
        let jbe = CODE.len() - 5;
        assert_eq!(CODE[jbe], 0x76);
        assert_eq!((jbe + 2) as i64 + i64::from(CODE[jbe + 1] as i8), 0);
    }
}
