//! One client of the server, from its first request to its end. One thread serves it.
//!
//! Invariants: a client reaches its own job's regions alone; what it announces is bounded before
//! anything is reserved, and one chunk is all that is reserved; whatever takes long ends when the
//! client is gone, when its bound has passed, or when the server ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error};
use outlive_codec::Digest;
use outlive_network::JobKey;
use outlive_network::channel::{Channel, within};

use crate::fault::{Fault, Outcome, invalid};
use crate::store::{Hold, How, RING_HEAD_BYTES, Store};
use crate::stream::{Incoming, Next, Outgoing, hear, next_length, say, unexpected};
use crate::sum::Sum;
use crate::wire::{About, Message, Part};

/// A client that waits gets a sign of life this often.
const BUSY_EVERY: Duration = Duration::from_secs(1);

/// What all sessions of a server share.
#[derive(Debug)]
pub struct Desk {
    /// The regions.
    pub store: Store,
    /// Differs between any two starts.
    pub instance: u128,
    /// The abstract Unix socket, or empty.
    pub unix: String,
    /// The server is about to end.
    pub ending: AtomicBool,
    /// A peer that moves no byte for this long, where it should, is gone.
    pub silence: Duration,
}

impl Desk {
    /// What a client is told when the server ends.
    pub fn farewell(&self) -> Error {
        Error::new(
            Code::ServerLost,
            Entity::Call,
            "the memory server is being ended",
            "connect to another one, or to this one when it runs again",
        )
    }

    fn check(&self) -> io::Result<()> {
        match self.ending.load(Ordering::Relaxed) {
            true => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the server ends",
            )),
            false => Ok(()),
        }
    }

    /// The patience with a peer that should move bytes before `until`.
    pub fn patience(&self, until: Instant) -> impl FnMut(Duration) -> io::Result<()> + '_ {
        let mut silent = within(self.silence);
        move |idle| {
            self.check()?;
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long"));
            }
            silent(idle)
        }
    }
}

/// One client.
pub struct Session<'a> {
    desk: &'a Desk,
    channel: Channel,
    job: &'a str,
    key: Arc<JobKey>,
    /// It came by the Unix socket: descriptors can be handed over.
    local: bool,
    last_sign: Instant,
}

impl<'a> Session<'a> {
    /// A client that has shown its job's key.
    pub fn new(
        desk: &'a Desk,
        channel: Channel,
        job: &'a str,
        key: Arc<JobKey>,
        local: bool,
    ) -> Session<'a> {
        Session {
            desk,
            channel,
            job,
            key,
            local,
            last_sign: Instant::now(),
        }
    }

    /// Serves it until it leaves.
    ///
    /// # Errors
    /// Why the connection ended, if the client did not just leave.
    pub fn serve(mut self) -> io::Result<()> {
        loop {
            let desk = self.desk;
            let request = match hear(&mut self.channel, &mut |_| desk.check()) {
                Ok(request) => request,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(self.leave(error)),
            };
            self.last_sign = Instant::now();
            // Nobody who ends answers any more: the socket for direct access may be closed
            // already, and a client that saw this would take the server for one far away.
            desk.check().map_err(|error| self.leave(error))?;
            match self.answer(request) {
                Ok(()) => {}
                Err(Fault::Told(error)) => self.say(&Message::Failed(error))?,
                Err(Fault::Gone(error)) => return Err(self.leave(error)),
            }
        }
    }

    /// Refuses whatever it wants, once.
    ///
    /// # Errors
    /// Those of the channel.
    pub fn refuse(mut self, error: Error) -> io::Result<()> {
        hear(&mut self.channel, &mut within(BUSY_EVERY))?;
        self.say(&Message::Failed(error))
    }

    /// Tells the client if the server is what ends, as far as that goes.
    fn leave(&mut self, error: io::Error) -> io::Error {
        if self.desk.ending.load(Ordering::Relaxed) {
            let farewell = Message::Failed(self.desk.farewell());
            let _ = say(
                &mut self.channel,
                &farewell,
                &mut within(Duration::from_millis(250)),
            );
        }
        error
    }

    fn say(&mut self, message: &Message) -> io::Result<()> {
        say(&mut self.channel, message, &mut within(self.desk.silence))
    }

    /// While something takes long: ends it when nobody waits for it any more, and tells the
    /// client that it goes on.
    fn tick(&mut self) -> io::Result<()> {
        self.desk.check()?;
        if self.channel.is_over() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.last_sign.elapsed() >= BUSY_EVERY {
            self.say(&Message::Busy)?;
            self.last_sign = Instant::now();
        }
        Ok(())
    }

    fn done(&mut self, value: u64) -> Outcome<()> {
        Ok(self.say(&Message::Done(value))?)
    }

    fn answer(&mut self, request: Message) -> Outcome<()> {
        let (store, job) = (&self.desk.store, self.job);
        match request {
            Message::Hello => {
                let (memory, free, quota, used) = store.room(job);
                let about = About {
                    instance: self.desk.instance,
                    unix: self.desk.unix.clone(),
                    memory,
                    free,
                    quota,
                    used,
                };
                Ok(self.say(&Message::About(about))?)
            }
            Message::Allocate(name, bytes, kind) => {
                let new = store.allocate(job, &name, bytes, kind, &mut || self.tick())?;
                self.done(new.into())
            }
            Message::Delete(name) => {
                store.delete(job, &name, &mut || self.tick())?;
                self.done(0)
            }
            Message::Stat(name) => {
                let stat = store.stat(job, &name)?;
                Ok(self.say(&Message::Region(stat))?)
            }
            Message::List(after) => {
                let listing = store.list(job, &after);
                Ok(self.say(&Message::Listing(listing))?)
            }
            Message::Put(part, bound, inline) => self.put(&part, ms(bound), inline),
            Message::Get(part, bound, digest) => self.get(&part, ms(bound), digest),
            Message::Lend(part, bound, writes, known) => self.lend(&part, ms(bound), writes, known),
            Message::Wait(name, after, bound) => {
                let puts = store.wait(job, &name, after, ms(bound), &mut || self.tick())?;
                self.done(puts)
            }
            Message::Push(name, length, bound, inline) => {
                self.push(&name, length, ms(bound), inline)
            }
            Message::Pop(name, bound) => self.pop(&name, ms(bound)),
            Message::Digest(part, bound) => self.digest(&part, ms(bound)),
            Message::Sum(part, bound, sources) => {
                let key = self.key.clone();
                let sum = Sum {
                    store,
                    job,
                    key: &key,
                    sealed: self.channel.is_sealed(),
                    silence: self.desk.silence / 2,
                };
                sum.run(&part, ms(bound), &sources, &mut || self.tick())?;
                self.done(0)
            }
            _ => Err(unexpected().into()),
        }
    }

    fn hold(&mut self, part: &Part, how: How, bound: Duration) -> Outcome<Hold<'a>> {
        let (store, job) = (&self.desk.store, self.job);
        store.hold(job, part, how, bound, &mut || self.tick())
    }

    fn put(&mut self, part: &Part, bound: Duration, inline: Option<Vec<u8>>) -> Outcome<()> {
        let hold = self.hold(part, How::Write, bound)?;
        let file = hold.file.clone();
        let write = |at: u64, bytes: &[u8]| file.write_all_at(bytes, part.offset + at);
        self.take(&hold, part.length, inline, &write)?;
        hold.finish()?;
        self.done(part.length)
    }

    /// Takes the bytes of a put or push: those that came with it, or a stream.
    fn take(
        &mut self,
        hold: &Hold<'_>,
        length: u64,
        inline: Option<Vec<u8>>,
        write: &dyn Fn(u64, &[u8]) -> io::Result<()>,
    ) -> Outcome<()> {
        if let Some(bytes) = inline {
            if bytes.len() as u64 != length {
                return Err(unexpected().into());
            }
            hold.begin();
            return write(0, &bytes).map_err(|_| hold.broken().into());
        }
        self.say(&Message::Go)?;
        let mut patience = self.desk.patience(hold.until());
        let mut stream = Incoming::new(length);
        let mut buffer = vec![0; next_length(length)];
        let (mut at, mut failed) = (0, None);
        loop {
            let wants = stream.wants();
            match stream.next(&mut self.channel, &mut buffer, &mut patience)? {
                Next::Bytes => {
                    hold.begin();
                    // What cannot be kept is still heard to its end, so that the client, who
                    // listens only then, can be told.
                    if failed.is_none() && write(at, &buffer[..wants]).is_err() {
                        failed = Some(hold.broken());
                    }
                    at += wants as u64;
                    patience(Duration::ZERO)?;
                }
                Next::Failed(error) => return Err(error.into()),
                Next::End => return failed.map_or(Ok(()), |error| Err(error.into())),
            }
        }
    }

    fn get(&mut self, part: &Part, bound: Duration, digest: bool) -> Outcome<()> {
        let hold = self.hold(part, How::Read, bound)?;
        let file = hold.file.clone();
        let read = |at: u64, out: &mut [u8]| file.read_exact_at(out, part.offset + at);
        self.give(&hold, part.length, digest, &read)
    }

    /// Reads a part and says what it is.
    fn digest(&mut self, part: &Part, bound: Duration) -> Outcome<()> {
        let hold = self.hold(part, How::Read, bound)?;
        let mut digest = Digest::new();
        let mut buffer = vec![0; next_length(part.length)];
        let mut at = 0;
        while at < part.length {
            let chunk = &mut buffer[..next_length(part.length - at)];
            if hold.file.read_exact_at(chunk, part.offset + at).is_err() {
                return Err(hold.broken().into());
            }
            digest.update(chunk);
            at += chunk.len() as u64;
            self.tick()?;
        }
        drop(hold);
        Ok(self.say(&Message::End(Some(digest.finish())))?)
    }

    /// Gives the bytes of a get or pop as a stream.
    fn give(
        &mut self,
        hold: &Hold<'_>,
        length: u64,
        digest: bool,
        read: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> Outcome<()> {
        let mut patience = self.desk.patience(hold.until());
        let mut stream = Outgoing::new(digest);
        let mut buffer = vec![0; next_length(length)];
        let mut at = 0;
        while at < length {
            let part = &mut buffer[..next_length(length - at)];
            if read(at, part).is_err() {
                return Err(hold.broken().into());
            }
            stream.send(&mut self.channel, part, &mut patience)?;
            at += part.len() as u64;
            patience(Duration::ZERO)?;
        }
        Ok(stream.end(&mut self.channel, &mut patience)?)
    }

    fn lend(&mut self, part: &Part, bound: Duration, writes: bool, known: u64) -> Outcome<()> {
        if !self.local {
            let reason = "direct access is for clients of the same machine";
            return Err(invalid(&part.name, reason).into());
        }
        let how = if writes {
            How::LendWrite
        } else {
            How::LendRead
        };
        let hold = self.hold(part, how, bound)?;
        let follows = hold.number != known;
        self.say(&Message::Lent(hold.number, follows))?;
        if follows {
            let file: &File = &hold.file;
            let patience = &mut within(self.desk.silence);
            self.channel.send_descriptor(file.as_fd(), patience)?;
        }
        // How long the client may take is judged by those who wait for the part.
        let desk = self.desk;
        match hear(&mut self.channel, &mut |_| desk.check())? {
            Message::Return(true) => hold.finish()?,
            Message::Return(false) => drop(hold),
            _ => return Err(unexpected().into()),
        }
        self.done(0)
    }

    fn push(
        &mut self,
        name: &str,
        length: u64,
        bound: Duration,
        inline: Option<Vec<u8>>,
    ) -> Outcome<()> {
        let (store, job) = (&self.desk.store, self.job);
        let (hold, start) = store.hold_push(job, name, length, bound, &mut || self.tick())?;
        let (file, size) = (hold.file.clone(), hold.bytes);
        let write = |at: u64, bytes: &[u8]| {
            wrapped(
                size,
                start + RING_HEAD_BYTES + at,
                bytes.len(),
                |to, range| file.write_all_at(&bytes[range], to),
            )
        };
        self.take(&hold, length, inline, &write)?;
        let head = length.to_le_bytes();
        let headed = wrapped(size, start, head.len(), |to, range| {
            file.write_all_at(&head[range], to)
        });
        headed.map_err(|_| hold.broken())?;
        hold.pushed(length)?;
        self.done(length)
    }

    fn pop(&mut self, name: &str, bound: Duration) -> Outcome<()> {
        let (store, job) = (&self.desk.store, self.job);
        let (hold, start) = store.hold_pop(job, name, bound, &mut || self.tick())?;
        let (file, size) = (hold.file.clone(), hold.bytes);
        let read_at = |at: u64, out: &mut [u8]| {
            wrapped(size, at, out.len(), |from, range| {
                file.read_exact_at(&mut out[range], from)
            })
        };
        let mut head = [0; RING_HEAD_BYTES as usize];
        read_at(start, &mut head).map_err(|_| hold.broken())?;
        let length = u64::from_le_bytes(head);
        if length > size - RING_HEAD_BYTES {
            return Err(hold.broken().into());
        }
        self.say(&Message::Length(length))?;
        let read = |at: u64, out: &mut [u8]| read_at(start + RING_HEAD_BYTES + at, out);
        self.give(&hold, length, true, &read)?;
        let mut patience = self.desk.patience(hold.until());
        match hear(&mut self.channel, &mut patience)? {
            Message::Taken => hold.popped(length)?,
            _ => return Err(unexpected().into()),
        }
        self.done(length)
    }
}

/// Calls `part` for one or two stretches of a ring of `size` bytes: with the offset in the ring
/// and the range of the caller's bytes.
fn wrapped(
    size: u64,
    at: u64,
    length: usize,
    mut part: impl FnMut(u64, std::ops::Range<usize>) -> io::Result<()>,
) -> io::Result<()> {
    let from = at % size;
    let first = length.min(usize::try_from(size - from).unwrap_or(usize::MAX));
    part(from, 0..first)?;
    if first < length {
        part(0, first..length)
    } else {
        Ok(())
    }
}

fn ms(bound: u32) -> Duration {
    Duration::from_millis(bound.into())
}
