//! One connection: connecting, the handshake, then frames.
//!
//! Invariants: bytes are read once and in order; a payload goes straight to the
//! message that it belongs to; what a broken link left of a payload is taken
//! back by [`Incomplete::rollback`].

use outlive_base::{NodeId, Time};

use super::frame::{HEAD_BYTES, RESUME_BYTES, Resume};
use super::machine::{Incoming, Link, Session};
use super::sock::{Done, Sock};
use crate::handshake::{Failure, Handshake, Progress, Secret};
use crate::identity::Identity;
use crate::wire::{Hello, Purpose, Verdict};

/// The last frame of a message.
pub(crate) const LAST: u8 = 1;
/// What stands before a message's bytes: `tag:u32 context:u32 length:u64`.
pub(crate) const MESSAGE_HEAD_BYTES: usize = 16;
/// Nothing is reserved beyond this before it arrives, in bytes.
const RESERVE_BYTES_MAX: usize = 64 << 20;
const BUFFER_BYTES: usize = 8 << 10;

/// A message whose frames are still coming in.
#[derive(Debug, Default)]
pub(crate) struct Incomplete {
    pub(crate) bytes: Vec<u8>,
    whole: usize,
}

impl Incomplete {
    /// A new link begins: a payload that the old one left unfinished comes again.
    pub(crate) fn rollback(&mut self) {
        self.bytes.truncate(self.whole);
    }

    fn expect(&mut self, length: usize) {
        if self.bytes.is_empty() {
            self.bytes.reserve(length);
        } else if let Some(total) = self.total() {
            let missing = total.saturating_sub(self.bytes.len() as u64);
            let missing = usize::try_from(missing).unwrap_or(RESERVE_BYTES_MAX);
            self.bytes
                .reserve_exact(missing.clamp(length, RESERVE_BYTES_MAX.max(length)));
        } else {
            self.bytes.reserve(length);
        }
    }

    /// Length of the whole message with its head, if that is known.
    fn total(&self) -> Option<u64> {
        total(&self.bytes)
    }

    fn complete(&mut self, flags: u8, done: &mut Vec<Vec<u8>>) -> Result<(), End> {
        self.whole = self.bytes.len();
        if self.total().is_some_and(|total| total < self.whole as u64) {
            return Err(End::Broken);
        }
        if flags & LAST != 0 {
            if self.total() != Some(self.whole as u64) {
                return Err(End::Broken);
            }
            self.whole = 0;
            done.push(std::mem::take(&mut self.bytes));
        }
        Ok(())
    }
}

fn total(head: &[u8]) -> Option<u64> {
    let length = head.get(8..MESSAGE_HEAD_BYTES)?;
    let length = u64::from_le_bytes(length.try_into().ok()?);
    Some(length.saturating_add(MESSAGE_HEAD_BYTES as u64))
}

/// Why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It broke, was closed, turned down or speaks something else.
    Broken,
    /// A key or a version that will not change.
    Refused(Failure),
    /// The kernel was replaced.
    Dead,
}

pub(crate) enum Stage {
    Connecting,
    Shaking(Box<Handshake>),
    /// Frames; the caller's first is a welcome.
    Open,
}

/// What is being read.
#[derive(Clone, Copy, Debug)]
enum Reading {
    Head,
    Fresh {
        missing: usize,
        length: usize,
        flags: u8,
    },
    Again {
        missing: usize,
    },
    Welcome,
}

/// See the module.
pub(crate) struct Conn {
    pub(crate) sock: Sock,
    pub(crate) link: Link,
    pub(crate) peer: Option<u32>,
    pub(crate) stage: Stage,
    pub(crate) deadline: Time,
    /// Bytes of the handshake, sent before all else.
    pub(crate) out: Vec<u8>,
    /// The kernel took less than was offered: wait until it is writable.
    pub(crate) full: bool,
    /// Messages follow bare, without frames: what sessions are compared with.
    plain: bool,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    reading: Reading,
}

impl Conn {
    pub(crate) fn new(
        sock: Sock,
        link: Link,
        peer: Option<u32>,
        stage: Stage,
        deadline: Time,
        plain: bool,
    ) -> Conn {
        Conn {
            sock,
            link,
            peer,
            stage,
            deadline,
            out: Vec::new(),
            full: false,
            plain,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            reading: Reading::Head,
        }
    }

    /// The call stands: begin the handshake.
    pub(crate) fn shake(
        &mut self,
        secret: &Secret,
        me: u32,
        peer: u32,
        resume: &Resume,
    ) -> Result<(), End> {
        if !self.sock.connected() {
            return Err(End::Broken);
        }
        let mine = hello(me, peer);
        let begun = Handshake::call(
            secret.clone(),
            mine,
            Purpose::Session,
            &resume.bytes(),
            &mut self.out,
        );
        self.stage = Stage::Shaking(Box::new(begun.map_err(End::Refused)?));
        self.flush_out()
    }

    pub(crate) fn listening(secret: &Secret, me: u32) -> Stage {
        // Whom the caller is shows in its proof.
        let handshake = Handshake::listen(secret.clone(), hello(me, me));
        Stage::Shaking(Box::new(handshake))
    }

    /// Reads on in the handshake. True when its owner must decide (listener) or
    /// it is over (caller).
    pub(crate) fn shake_on(&mut self) -> Result<bool, End> {
        let mut input = [0; 512];
        loop {
            let Stage::Shaking(handshake) = &mut self.stage else {
                return Ok(true);
            };
            let wants = handshake.wants().min(input.len());
            if wants == 0 {
                return Ok(true);
            }
            let count = match self.sock.recv(&mut input[..wants], &mut []) {
                Done::Bytes(0) | Done::Over => return Err(End::Broken),
                Done::Dead => return Err(End::Dead),
                Done::Later => return Ok(false),
                Done::Bytes(count) => count,
            };
            let progress = handshake.feed(&input[..count], &mut self.out);
            let over = match progress {
                Ok(Progress::More) => false,
                Ok(Progress::Decide) => true,
                Ok(Progress::Done(_)) => {
                    self.stage = Stage::Open;
                    true
                }
                Err(failure) => {
                    let _ = self.flush_out(); // A refusal that names the reason.
                    return Err(match failure {
                        Failure::Key | Failure::Version(_) => End::Refused(failure),
                        _ => End::Broken,
                    });
                }
            };
            self.flush_out()?;
            if over {
                return Ok(true);
            }
        }
    }

    /// Who calls, as its proof shows.
    pub(crate) fn caller(&self) -> Option<(u32, Resume)> {
        let Stage::Shaking(handshake) = &self.stage else {
            return None;
        };
        let (remote, purpose, _) = handshake.asked()?;
        let resume = Resume::parse(handshake.asked_header()).ok()?;
        (purpose == Purpose::Session).then_some((remote.identity.peer.0, resume))
    }

    /// The listener's word.
    pub(crate) fn answer(&mut self, verdict: Verdict) -> Result<(), End> {
        let Stage::Shaking(handshake) = &mut self.stage else {
            return Err(End::Broken);
        };
        let answered = handshake.answer(verdict, &mut self.out);
        self.flush_out()?;
        match answered {
            Ok(Some(_)) => {
                self.stage = Stage::Open;
                Ok(())
            }
            _ => Err(End::Broken),
        }
    }

    pub(crate) fn flush_out(&mut self) -> Result<(), End> {
        while !self.out.is_empty() {
            match self.sock.send(&[std::io::IoSlice::new(&self.out)]) {
                Done::Bytes(count) => drop(self.out.drain(..count)),
                Done::Later => {
                    self.full = true;
                    break;
                }
                Done::Over => return Err(End::Broken),
                Done::Dead => return Err(End::Dead),
            }
        }
        Ok(())
    }

    /// Sends what the session has.
    pub(crate) fn write(&mut self, session: &mut Session) -> Result<(), End> {
        self.full = false;
        self.flush_out()?;
        while self.out.is_empty() && session.current() == Some(self.link) && session.has_output() {
            let parts = session.output(self.link);
            let offered: usize = parts.iter().map(|part| part.len()).sum();
            match self.sock.send(&parts) {
                Done::Bytes(count) => {
                    session.wrote(self.link, count);
                    if count < offered {
                        self.full = true;
                        break;
                    }
                }
                Done::Later => {
                    self.full = true;
                    break;
                }
                Done::Over => return Err(End::Broken),
                Done::Dead => return Err(End::Dead),
            }
        }
        Ok(())
    }

    /// Reads frames until nothing is there or `budget` bytes came. Complete
    /// messages go to `done`, links to be closed to `closed`.
    pub(crate) fn read(
        &mut self,
        session: &mut Session,
        incomplete: &mut Incomplete,
        budget: usize,
        done: &mut Vec<Vec<u8>>,
        closed: &mut Vec<Link>,
    ) -> Result<(), End> {
        let mut got = 0;
        loop {
            self.parse(session, incomplete, done, closed)?;
            if got >= budget {
                return Ok(());
            }
            let asked;
            let result = match self.reading {
                Reading::Fresh { missing, .. } if missing >= BUFFER_BYTES => {
                    asked = missing.min(RESERVE_BYTES_MAX);
                    incomplete.bytes.reserve(asked);
                    self.sock.recv_to(&mut incomplete.bytes, asked)
                }
                _ => {
                    self.buffer.copy_within(self.start..self.end, 0);
                    self.end -= self.start;
                    self.start = 0;
                    asked = self.buffer.len() - self.end;
                    self.sock.recv(&mut self.buffer[self.end..], &mut [])
                }
            };
            let count = match result {
                Done::Bytes(0) | Done::Over => return Err(End::Broken),
                Done::Dead => return Err(End::Dead),
                Done::Later => return Ok(()),
                Done::Bytes(count) => count,
            };
            got += count;
            session.heard(self.link);
            match &mut self.reading {
                Reading::Fresh { missing, .. } if *missing >= BUFFER_BYTES => *missing -= count,
                _ => self.end += count,
            }
            if count < asked {
                // The socket is empty: the next wait tells when more is there.
                return self.parse(session, incomplete, done, closed);
            }
        }
    }

    /// Takes from the buffer all that is complete.
    fn parse(
        &mut self,
        session: &mut Session,
        incomplete: &mut Incomplete,
        done: &mut Vec<Vec<u8>>,
        closed: &mut Vec<Link>,
    ) -> Result<(), End> {
        loop {
            let held = self.end - self.start;
            match self.reading {
                Reading::Head if self.plain && session.current() == Some(self.link) => {
                    let head = &self.buffer[self.start..self.end];
                    let Some(total) = total(head) else {
                        return Ok(());
                    };
                    let length = usize::try_from(total).map_err(|_| End::Broken)?;
                    incomplete.bytes.reserve(length.min(RESERVE_BYTES_MAX));
                    self.reading = Reading::Fresh {
                        missing: length,
                        length,
                        flags: LAST,
                    };
                }
                Reading::Head if held >= HEAD_BYTES => {
                    let mut head = [0; HEAD_BYTES];
                    head.copy_from_slice(&self.buffer[self.start..self.start + HEAD_BYTES]);
                    self.start += HEAD_BYTES;
                    let incoming = session.header(self.link, &head).map_err(|_| End::Broken)?;
                    self.reading = match incoming {
                        Incoming::Fresh { length, flags } => {
                            incomplete.expect(length);
                            Reading::Fresh {
                                missing: length,
                                length,
                                flags,
                            }
                        }
                        Incoming::Again { length } => Reading::Again { missing: length },
                        Incoming::Welcome => Reading::Welcome,
                        Incoming::Nothing => Reading::Head,
                    };
                }
                Reading::Fresh {
                    missing,
                    length,
                    flags,
                } if missing == 0 || held > 0 => {
                    let part = held.min(missing);
                    let bytes = &self.buffer[self.start..self.start + part];
                    incomplete.bytes.extend_from_slice(bytes);
                    self.start += part;
                    self.reading = Reading::Fresh {
                        missing: missing - part,
                        length,
                        flags,
                    };
                    if missing == part {
                        if !self.plain {
                            session.received(length);
                        }
                        incomplete.complete(flags, done)?;
                        self.reading = Reading::Head;
                    }
                }
                Reading::Again { missing } if missing == 0 || held > 0 => {
                    let part = held.min(missing);
                    self.start += part;
                    self.reading = if part == missing {
                        Reading::Head
                    } else {
                        Reading::Again {
                            missing: missing - part,
                        }
                    };
                }
                Reading::Welcome if held >= RESUME_BYTES => {
                    let bytes = &self.buffer[self.start..self.start + RESUME_BYTES];
                    let older = session
                        .welcomed(self.link, bytes)
                        .map_err(|_| End::Broken)?;
                    closed.extend(older);
                    incomplete.rollback();
                    self.start += RESUME_BYTES;
                    self.reading = Reading::Head;
                }
                _ => return Ok(()),
            }
        }
    }
}

fn hello(me: u32, peer: u32) -> Hello {
    Hello {
        identity: Identity {
            peer: NodeId(me),
            epoch: 0,
        },
        wanted: NodeId(peer),
        port: 0,
    }
}
