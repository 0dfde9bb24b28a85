//! A rank's calls, one at a time, and the helper that keeps connections alive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use outlive_base::rng::Sequence;
use outlive_base::{Code, Entity, Error, Time};
use outlive_network::session::{Mesh, Totals};

use crate::setup::Setup;
use crate::state::{ANY_SOURCE, ANY_TAG, Buffer, CONTEXT_USER, Request, State, Status};

/// Ranks that close wait so long for each other.
const LINGER: Time = Time::from_secs(5);

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
    /// Joins the job and waits until all ranks are there. They are heard of through few: a
    /// rank meets two for each doubling of their number, others when it first needs them.
    ///
    /// # Errors
    /// As [`Comm::join`], or the error of a peer that does not come within `give_up`.
    pub fn open(setup: Setup) -> Result<Comm, Error> {
        let comm = Comm::join(setup)?;
        comm.barrier()?;
        Ok(comm)
    }

    /// Joins the job without waiting for anybody. A rank that is not there yet is waited for
    /// when it is first sent to or received from by name, for `give_up`.
    ///
    /// # Errors
    /// What [`Mesh::new`] says.
    pub fn join(setup: Setup) -> Result<Comm, Error> {
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
            state: Mutex::new(State::new(mesh, step, chaos)),
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
        Ok(Comm {
            shared,
            helper,
            rank,
            size,
        })
    }

    /// This process.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How many ranks it has a session with: those that it spoke or listened to by name, and
    /// those that called.
    pub fn peers(&self) -> usize {
        let state = lock(&self.shared.state);
        state.mesh.met().filter(|peer| *peer != self.rank).count()
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
