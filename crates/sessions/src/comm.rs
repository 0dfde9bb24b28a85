//! Point-to-point messages: sending, receiving, requests, and the helper that
//! keeps connections alive.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use outlive_base::rng::Sequence;
use outlive_base::{Code, Entity, Error, Time};
use outlive_network::session::{Mesh, Totals};

use crate::setup::Setup;

/// A receive from whichever rank sends first.
pub const ANY_SOURCE: u32 = u32::MAX;
/// A receive of whichever tag comes first.
pub const ANY_TAG: u32 = u32::MAX;
/// The traffic of programs, and that of collectives.
pub(crate) const CONTEXT_USER: u32 = 0;
pub(crate) const CONTEXT_COLLECTIVE: u32 = 1;
/// Ranks that close wait so long for each other.
const LINGER: Time = Time::from_secs(5);

/// A nonblocking operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Request(pub u64);

/// What was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The sender.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Length in bytes.
    pub bytes: usize,
}

/// The caller's bytes until the operation is complete.
#[derive(Clone, Copy)]
struct Buffer {
    data: *mut u8,
    bytes: usize,
}

// SAFETY: the caller of a nonblocking operation promises that the bytes stay
// and are left alone until it completes; the helper thread never touches them
// (it only keeps connections alive).
unsafe impl Send for Buffer {}

enum Operation {
    Send {
        context: u32,
        tag: u32,
        buffer: Buffer,
        offset: usize,
    },
    Receive {
        from: u32,
        context: u32,
        tag: u32,
        buffer: Buffer,
    },
    Done(Status),
    Failed(Error),
}

/// Everything behind the lock.
pub(crate) struct State {
    pub(crate) mesh: Mesh,
    operations: BTreeMap<u64, Operation>,
    next: u64,
    /// Unfinished sends to each rank, in order.
    sends: Vec<VecDeque<u64>>,
    /// Unfinished receives, in order.
    receives: Vec<u64>,
    step: Time,
    chaos: Option<(Sequence, u64)>,
    /// Counts collectives: their tag.
    pub(crate) collectives: u32,
}

struct Shared {
    state: Mutex<State>,
    stop: Mutex<bool>,
    stopped: Condvar,
    in_call: AtomicBool,
    /// Counts the program's calls: while it calls, the helper keeps out of the way.
    calls: AtomicU64,
}

/// The ranks of a job, as one of them sees them.
pub struct Comm {
    shared: Arc<Shared>,
    helper: Option<JoinHandle<()>>,
    rank: u32,
    size: u32,
}

/// One call of the program.
pub(crate) struct Call<'a> {
    pub(crate) state: MutexGuard<'a, State>,
    in_call: &'a AtomicBool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.in_call.store(false, Ordering::Release);
    }
}

impl Comm {
    /// Joins the job and waits until all ranks are there.
    ///
    /// # Errors
    /// What [`Mesh::new`] says, or the error of a peer that does not come within
    /// `give_up`.
    pub fn open(setup: Setup) -> Result<Comm, Error> {
        let chaos = setup.chaos.map(|chaos| {
            let sequence = Sequence::new(chaos.seed, u64::from(setup.options.rank));
            (sequence, chaos.one_in)
        });
        let job_hash = xxhash_rust::xxh3::xxh3_64(format!("sessions:{}", setup.job).as_bytes());
        let reliable = setup.options.reliable;
        let step = Time(setup.options.session.heartbeat.0 / 2);
        let mesh = Mesh::new(setup.options, setup.key, job_hash)?;
        let (rank, size) = (mesh.rank(), mesh.size());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                mesh,
                operations: BTreeMap::new(),
                next: 1,
                sends: (0..size).map(|_| VecDeque::new()).collect(),
                receives: Vec::new(),
                step,
                chaos,
                collectives: 0,
            }),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            in_call: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        });
        let helper = if reliable && size > 1 {
            Some(start_helper(shared.clone(), step.into())?)
        } else {
            None
        };
        let comm = Comm {
            shared,
            helper,
            rank,
            size,
        };
        comm.barrier()?;
        Ok(comm)
    }

    /// This process.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// What has happened to the connections.
    pub fn totals(&self) -> Totals {
        lock(&self.shared.state).mesh.totals()
    }

    pub(crate) fn call(&self) -> Result<Call<'_>, Error> {
        if self.shared.in_call.swap(true, Ordering::Acquire) {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                "another thread is in a call",
                "let one thread communicate, or take a lock around calls",
            ));
        }
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        let mut call = Call {
            state: lock(&self.shared.state),
            in_call: &self.shared.in_call,
        };
        call.state.misfortune();
        Ok(call)
    }

    /// Sends `body`; returns once the bytes may be reused.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a rank or tag that is not, and that of a
    /// session that failed.
    pub fn send(&self, body: &[u8], to: u32, tag: u32) -> Result<(), Error> {
        self.check(to, tag, false)?;
        self.call()?.state.send(body, to, CONTEXT_USER, tag)
    }

    /// Receives into `out`; waits as long as the sender's session lives.
    ///
    /// # Errors
    /// As [`Comm::send`]; [`Code::InvalidArgument`] if the message is longer.
    pub fn recv(&self, out: &mut [u8], from: u32, tag: u32) -> Result<Status, Error> {
        self.check(from, tag, true)?;
        self.call()?.state.recv(out, from, CONTEXT_USER, tag)
    }

    /// Begins to send.
    ///
    /// # Safety
    /// `data` points to `bytes` bytes that stay and are not changed until the
    /// request is complete.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub unsafe fn isend(
        &self,
        data: *const u8,
        bytes: usize,
        to: u32,
        tag: u32,
    ) -> Result<Request, Error> {
        self.check(to, tag, false)?;
        let mut call = self.call()?;
        let buffer = Buffer {
            data: data.cast_mut(),
            bytes,
        };
        call.state.post_send(buffer, to, CONTEXT_USER, tag)
    }

    /// Begins to receive.
    ///
    /// # Safety
    /// `data` points to `bytes` bytes that stay and are not used until the
    /// request is complete.
    ///
    /// # Errors
    /// As [`Comm::recv`].
    pub unsafe fn irecv(
        &self,
        data: *mut u8,
        bytes: usize,
        from: u32,
        tag: u32,
    ) -> Result<Request, Error> {
        self.check(from, tag, true)?;
        let mut call = self.call()?;
        let buffer = Buffer { data, bytes };
        Ok(call.state.post_receive(buffer, from, CONTEXT_USER, tag))
    }

    /// Waits until the request is complete and ends it.
    ///
    /// # Errors
    /// That of the operation; [`Code::NotOpen`] for an unknown request.
    pub fn wait(&self, request: Request) -> Result<Status, Error> {
        self.call()?.state.wait(request)
    }

    /// The status if the request is complete; then it ends.
    ///
    /// # Errors
    /// As [`Comm::wait`].
    pub fn test(&self, request: Request) -> Result<Option<Status>, Error> {
        let mut call = self.call()?;
        if !call.state.complete(request)? {
            call.state.progress(Time::ZERO)?;
        }
        if call.state.complete(request)? {
            call.state.end(request).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Sends and receives at once.
    ///
    /// # Errors
    /// As [`Comm::send`] and [`Comm::recv`].
    pub fn sendrecv(
        &self,
        body: &[u8],
        to: u32,
        out: &mut [u8],
        from: u32,
        tag: u32,
    ) -> Result<Status, Error> {
        self.check(to, tag, false)?;
        self.check(from, tag, true)?;
        self.call()?
            .state
            .exchange(body, to, out, from, CONTEXT_USER, tag)
    }

    /// Fault injection: breaks the connection with `peer`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a rank that is not.
    pub fn break_link(&self, peer: u32) -> Result<(), Error> {
        self.check(peer, 0, false)?;
        self.call()?.state.mesh.break_link(peer);
        Ok(())
    }

    /// Fault injection: all descriptors vanish, as with a new kernel.
    ///
    /// # Errors
    /// If another thread is in a call.
    pub fn lose_descriptors(&self) -> Result<(), Error> {
        self.call()?.state.mesh.lose_descriptors();
        Ok(())
    }

    fn check(&self, rank: u32, tag: u32, any: bool) -> Result<(), Error> {
        let wrong = |what: String| {
            Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                what,
                "see outlive_sessions.h",
            ))
        };
        if rank >= self.size && !(any && rank == ANY_SOURCE) {
            return wrong(format!("rank {rank} of {}", self.size));
        }
        if tag == ANY_TAG && !any {
            return wrong("a send with any tag".into());
        }
        Ok(())
    }

    /// Waits for all ranks and leaves the job. Dropping leaves without waiting.
    ///
    /// # Errors
    /// That of a session that failed before.
    pub fn close(self) -> Result<(), Error> {
        let last = self.barrier();
        lock(&self.shared.state).mesh.finish(LINGER);
        last
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        *lock(&self.shared.stop) = true;
        self.shared.stopped.notify_all();
        if let Some(helper) = self.helper.take() {
            // It looks at `stop` at least twice a heartbeat.
            let _ = helper.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that says "alive", reads and reconnects while the program computes.
fn start_helper(shared: Arc<Shared>, every: Duration) -> Result<JoinHandle<()>, Error> {
    let run = move || {
        let mut stop = lock(&shared.stop);
        let mut seen = 0;
        while !*stop {
            let waited = shared.stopped.wait_timeout(stop, every);
            stop = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *stop {
                return;
            }
            drop(stop);
            let calls = shared.calls.load(Ordering::Relaxed);
            if calls != seen {
                // It does all this in its calls; its lock is left alone.
                seen = calls;
                stop = lock(&shared.stop);
                continue;
            }
            match shared.state.try_lock() {
                // An error stays in its session, and the next call tells it.
                Ok(mut state) => drop(state.mesh.progress(Time::ZERO, |_| false)),
                Err(TryLockError::WouldBlock) => {} // The program does it.
                Err(TryLockError::Poisoned(_)) => return,
            }
            stop = lock(&shared.stop);
        }
    };
    let named = std::thread::Builder::new().name("outlive-comm".into());
    named.spawn(run).map_err(|error| {
        Error::new(
            Code::Network,
            Entity::Call,
            format!("no thread: {error}"),
            "raise the limit of processes (ulimit -u)",
        )
    })
}

impl State {
    /// Faults for tests; see [`crate::setup::Chaos`].
    fn misfortune(&mut self) {
        let Some((random, one_in)) = &mut self.chaos else {
            return;
        };
        if random.below(*one_in) != 0 {
            return;
        }
        let kind = random.below(4);
        let peer = random.below(u64::from(self.mesh.size())) as u32;
        if kind == 0 {
            self.mesh.lose_descriptors();
        } else {
            self.mesh.break_link(peer);
        }
    }

    pub(crate) fn send(
        &mut self,
        body: &[u8],
        to: u32,
        context: u32,
        tag: u32,
    ) -> Result<(), Error> {
        if self.sends[to as usize].is_empty() {
            let mut offset = 0;
            while !self.mesh.offer(to, context, tag, body, &mut offset)? {
                self.progress(self.step)?;
            }
            return Ok(());
        }
        let buffer = Buffer {
            data: body.as_ptr().cast_mut(),
            bytes: body.len(),
        };
        let request = self.post_send(buffer, to, context, tag)?;
        self.wait(request).map(drop)
    }

    pub(crate) fn recv(
        &mut self,
        out: &mut [u8],
        from: u32,
        context: u32,
        tag: u32,
    ) -> Result<Status, Error> {
        let buffer = Buffer {
            data: out.as_mut_ptr(),
            bytes: out.len(),
        };
        let request = self.post_receive(buffer, from, context, tag);
        self.wait(request)
    }

    pub(crate) fn exchange(
        &mut self,
        body: &[u8],
        to: u32,
        out: &mut [u8],
        from: u32,
        context: u32,
        tag: u32,
    ) -> Result<Status, Error> {
        let receive = Buffer {
            data: out.as_mut_ptr(),
            bytes: out.len(),
        };
        let receive = self.post_receive(receive, from, context, tag);
        let sent = self.send(body, to, context, tag);
        if let Err(error) = sent {
            // The buffer must not be used after this call.
            self.receives.retain(|other| *other != receive.0);
            self.operations.remove(&receive.0);
            return Err(error);
        }
        self.wait(receive)
    }

    fn post(&mut self, operation: Operation) -> Request {
        let number = self.next;
        self.next += 1;
        self.operations.insert(number, operation);
        Request(number)
    }

    fn post_send(
        &mut self,
        buffer: Buffer,
        to: u32,
        context: u32,
        tag: u32,
    ) -> Result<Request, Error> {
        let request = self.post(Operation::Send {
            context,
            tag,
            buffer,
            offset: 0,
        });
        self.sends[to as usize].push_back(request.0);
        self.push(to)?;
        Ok(request)
    }

    fn post_receive(&mut self, buffer: Buffer, from: u32, context: u32, tag: u32) -> Request {
        let request = self.post(Operation::Receive {
            from,
            context,
            tag,
            buffer,
        });
        self.receives.push(request.0);
        self.fill();
        request
    }

    /// Hands over what the sessions take.
    fn push(&mut self, to: u32) -> Result<(), Error> {
        while let Some(number) = self.sends[to as usize].front().copied() {
            let Some(Operation::Send {
                context,
                tag,
                buffer,
                offset,
            }) = self.operations.get_mut(&number)
            else {
                self.sends[to as usize].pop_front();
                continue;
            };
            // SAFETY: the promise of the one who began the send.
            let body = unsafe { bytes(buffer.data, buffer.bytes) };
            if !self.mesh.offer(to, *context, *tag, body, offset)? {
                return Ok(());
            }
            let status = Status {
                source: to,
                tag: *tag,
                bytes: buffer.bytes,
            };
            self.operations.insert(number, Operation::Done(status));
            self.sends[to as usize].pop_front();
        }
        Ok(())
    }

    /// Gives messages that came to the receives that want them, in order.
    fn fill(&mut self) {
        let mut at = 0;
        while at < self.receives.len() {
            let number = self.receives[at];
            if self.fill_one(number) {
                self.receives.remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn fill_one(&mut self, number: u64) -> bool {
        let Some(Operation::Receive {
            from,
            context,
            tag,
            buffer,
        }) = self.operations.get(&number)
        else {
            return true;
        };
        let (from, context, tag, buffer) = (*from, *context, *tag, *buffer);
        let sources = if from == ANY_SOURCE {
            0..self.mesh.size()
        } else {
            from..from + 1
        };
        for source in sources {
            let fits = |message: &outlive_network::session::Message| {
                message.context() == context && (tag == ANY_TAG || message.tag() == tag)
            };
            let found = self.mesh.inbox(source).iter().position(fits);
            let Some(message) = found.and_then(|index| self.mesh.take(source, index)) else {
                continue;
            };
            let body = message.body();
            let done = if body.len() > buffer.bytes {
                Operation::Failed(Error::new(
                    Code::InvalidArgument,
                    Entity::Rank(source),
                    format!("{} bytes for a buffer of {}", body.len(), buffer.bytes),
                    "receive into a larger buffer",
                ))
            } else {
                if !body.is_empty() {
                    // SAFETY: the promise of the one who began the receive, and
                    // the length was compared.
                    unsafe {
                        core::ptr::copy_nonoverlapping(body.as_ptr(), buffer.data, body.len())
                    };
                }
                Operation::Done(Status {
                    source,
                    tag: message.tag(),
                    bytes: body.len(),
                })
            };
            self.operations.insert(number, done);
            return true;
        }
        false
    }

    pub(crate) fn progress(&mut self, wait: Time) -> Result<(), Error> {
        let State {
            mesh,
            operations,
            receives,
            ..
        } = self;
        let wanted = |peer: u32| {
            receives.iter().any(|number| {
                matches!(operations.get(number), Some(Operation::Receive { from, .. })
                    if *from == peer || *from == ANY_SOURCE)
            })
        };
        mesh.progress(wait, wanted)?;
        for to in 0..self.mesh.size() {
            self.push(to)?;
        }
        self.fill();
        Ok(())
    }

    fn complete(&self, request: Request) -> Result<bool, Error> {
        match self.operations.get(&request.0) {
            None => Err(Error::new(
                Code::NotOpen,
                Entity::Call,
                "no such request",
                "wait for each request once",
            )),
            Some(operation) => Ok(matches!(
                operation,
                Operation::Done(_) | Operation::Failed(_)
            )),
        }
    }

    pub(crate) fn wait(&mut self, request: Request) -> Result<Status, Error> {
        while !self.complete(request)? {
            if let Err(error) = self.progress(self.step) {
                // The buffer must not be used after this call.
                self.receives.retain(|other| *other != request.0);
                self.operations.remove(&request.0);
                return Err(error);
            }
        }
        self.end(request)
    }

    fn end(&mut self, request: Request) -> Result<Status, Error> {
        match self.operations.remove(&request.0) {
            Some(Operation::Done(status)) => Ok(status),
            Some(Operation::Failed(error)) => Err(error),
            _ => Err(Error::internal("a request that is not complete was ended")),
        }
    }
}

/// A slice of the caller's memory; `data` may be null if it is empty.
///
/// # Safety
/// `data` points to `count` readable bytes that do not change while the slice
/// lives.
pub(crate) unsafe fn bytes<'a>(data: *const u8, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(data, count) }
}
