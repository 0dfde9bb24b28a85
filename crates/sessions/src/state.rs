//! What is under way: sends, receives, requests, and the matching of messages to them.
//!
//! Invariants: see the crate. Sends to one rank are handed over one after the other; a message
//! goes to the first receive that wants it.

use std::collections::{BTreeMap, VecDeque};

use outlive_base::rng::Sequence;
use outlive_base::{Code, Entity, Error, Time};
use outlive_network::session::{Mesh, Message};

/// A receive from whichever rank sends first.
pub const ANY_SOURCE: u32 = u32::MAX;
/// A receive of whichever tag comes first.
pub const ANY_TAG: u32 = u32::MAX;
/// The traffic of programs, and that of collectives.
pub(crate) const CONTEXT_USER: u32 = 0;
pub(crate) const CONTEXT_COLLECTIVE: u32 = 1;

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
pub(crate) struct Buffer {
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
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
    /// Unfinished sends to each rank that has some, in order.
    sends: BTreeMap<u32, VecDeque<u64>>,
    /// Unfinished receives, in order.
    receives: Vec<u64>,
    step: Time,
    chaos: Option<(Sequence, u64)>,
    /// Counts collectives: their tag.
    pub(crate) collectives: u32,
}

impl State {
    /// Nothing is under way over `mesh`; a wait looks around every `step`.
    pub(crate) fn new(mesh: Mesh, step: Time, chaos: Option<(Sequence, u64)>) -> State {
        State {
            mesh,
            operations: BTreeMap::new(),
            next: 1,
            sends: BTreeMap::new(),
            receives: Vec::new(),
            step,
            chaos,
            collectives: 0,
        }
    }

    /// Faults for tests; see [`crate::setup::Chaos`].
    pub(crate) fn misfortune(&mut self) {
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
        if !self.sends.contains_key(&to) {
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

    pub(crate) fn post_send(
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
        self.sends.entry(to).or_default().push_back(request.0);
        self.push(to)?;
        Ok(request)
    }

    pub(crate) fn post_receive(
        &mut self,
        buffer: Buffer,
        from: u32,
        context: u32,
        tag: u32,
    ) -> Request {
        let request = self.post(Operation::Receive {
            from,
            context,
            tag,
            buffer,
        });
        self.receives.push(request.0);
        if from != ANY_SOURCE {
            self.mesh.meet(from);
        }
        self.fill();
        request
    }

    /// Hands over what the sessions take.
    fn push(&mut self, to: u32) -> Result<(), Error> {
        while let Some(number) = self.sends.get(&to).and_then(VecDeque::front).copied() {
            let Some(Operation::Send {
                context,
                tag,
                buffer,
                offset,
            }) = self.operations.get_mut(&number)
            else {
                self.sent(to);
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
            self.sent(to);
        }
        Ok(())
    }

    /// The first send to `to` is over.
    fn sent(&mut self, to: u32) {
        if let Some(queue) = self.sends.get_mut(&to) {
            queue.pop_front();
            if queue.is_empty() {
                self.sends.remove(&to);
            }
        }
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
        let fits = |message: &Message| {
            message.context() == context && (tag == ANY_TAG || message.tag() == tag)
        };
        let of = |source| {
            let place = self.mesh.inbox(source).iter().position(fits);
            place.map(|place| (source, place))
        };
        let found = match from {
            ANY_SOURCE => self.mesh.met().find_map(of),
            _ => of(from),
        };
        let Some((source, place)) = found else {
            return false;
        };
        let Some(message) = self.mesh.take(source, place) else {
            return false;
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
                unsafe { core::ptr::copy_nonoverlapping(body.as_ptr(), buffer.data, body.len()) };
            }
            Operation::Done(Status {
                source,
                tag: message.tag(),
                bytes: body.len(),
            })
        };
        self.operations.insert(number, done);
        true
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
        let mut next = self.sends.first_key_value().map(|(to, _)| *to);
        while let Some(to) = next {
            self.push(to)?;
            next = self.sends.range(to + 1..).next().map(|(to, _)| *to);
        }
        self.fill();
        Ok(())
    }

    pub(crate) fn complete(&self, request: Request) -> Result<bool, Error> {
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

    pub(crate) fn end(&mut self, request: Request) -> Result<Status, Error> {
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
