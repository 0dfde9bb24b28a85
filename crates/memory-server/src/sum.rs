//! Parity that the server computes itself: it pulls the sources and adds them (XOR) into a part of
//! a region, segment by segment, so that the nodes pay neither arithmetic nor a second write
//! (NAM XOR: DEEP-ER, sections II-B2 and III-D). With one source it is a copy; with the parity
//! and what is left, it is the part that was lost.
//!
//! Until the first segment is written the target has its old content, whatever a source does.
//!
//! Invariants: as many bytes as sources times one chunk are held, in the kernel's buffers, and two
//! chunks here; once it is written to, the target is torn unless every source came whole.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error};
use outlive_codec::add;
use outlive_network::JobKey;
use outlive_network::channel::{Channel, within};

use crate::fault::{Fault, Outcome, Tick, invalid};
use crate::store::{Hold, How, Store};
use crate::stream::{Incoming, Next, next_length, say};
use crate::wire::{CHUNK_BYTES, Message, Part, SOURCES_MAX, Source};

/// Bound of a connection to a source.
const CONNECT: Duration = Duration::from_secs(3);

/// What a sum needs of its server.
pub struct Sum<'a> {
    /// The regions.
    pub store: &'a Store,
    /// The job whose they are.
    pub job: &'a str,
    /// Its key: sources show it, too.
    pub key: &'a JobKey,
    /// Whether the bytes are to be encrypted on their way.
    pub sealed: bool,
    /// A source that sends nothing for this long is lost.
    pub silence: Duration,
}

/// A source that is open.
enum Open<'a> {
    Region(Hold<'a>, u64),
    Remote(Box<Remote>),
}

/// One that another process serves.
struct Remote {
    channel: Channel,
    stream: Incoming,
    name: String,
}

impl<'a> Sum<'a> {
    /// Adds up the sources into `part`.
    ///
    /// # Errors
    /// Those of holding the parts; [`Code::Network`] if a source is lost or silent,
    /// [`Code::Corrupt`] if its bytes were changed on the way, and what a source itself says. In
    /// all these cases the target is torn if a segment was written.
    pub fn run(
        &self,
        part: &Part,
        bound: Duration,
        sources: &[Source],
        tick: Tick<'_>,
    ) -> Outcome<()> {
        check(part, sources)?;
        let target = self.store.hold(self.job, part, How::Write, bound, tick)?;
        let mut open = Vec::new();
        for source in sources {
            let it = self.open(source, bound, tick)?;
            open.push((it, source.length));
        }
        let mut sum = vec![0; next_length(part.length)];
        let mut piece = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < part.length {
            let sum = &mut sum[..next_length(part.length - at)];
            sum.fill(0);
            for (source, length) in &mut open {
                let piece = &mut piece[..next_length(length.saturating_sub(at))];
                if !piece.is_empty() {
                    self.pull(source, at, piece, tick)?;
                    add(sum, piece);
                }
            }
            target.begin();
            if target.file.write_all_at(sum, part.offset + at).is_err() {
                return Err(target.broken().into());
            }
            at += sum.len() as u64;
            tick()?;
            if Instant::now() > target.until() {
                return Err(too_late(part).into());
            }
        }
        for (source, _) in &mut open {
            self.end(source, tick)?;
        }
        Ok(target.finish()?)
    }

    fn open(&self, source: &Source, bound: Duration, tick: Tick<'_>) -> Outcome<Open<'a>> {
        let part = Part {
            name: source.name.clone(),
            offset: source.offset,
            length: source.length,
        };
        let Some(addr) = source.at else {
            let hold = self.store.hold(self.job, &part, How::Read, bound, tick)?;
            return Ok(Open::Region(hold, source.offset));
        };
        let name = addr.to_string();
        let called = Channel::call(addr, self.job, self.key, self.sealed, CONNECT);
        let mut channel = called.map_err(|error| match error.code() {
            Code::AgentUnreachable | Code::AgentTimeout => lost(&name, error.reason()),
            _ => error,
        })?;
        let ms = u32::try_from(bound.as_millis()).unwrap_or(u32::MAX);
        let asked = Message::Get(part, ms, true);
        say(&mut channel, &asked, &mut within(self.silence))
            .map_err(|error| lost(&name, &error.to_string()))?;
        tick()?;
        let stream = Incoming::new(source.length);
        Ok(Open::Remote(Box::new(Remote {
            channel,
            stream,
            name,
        })))
    }

    fn pull(&self, source: &mut Open<'_>, at: u64, out: &mut [u8], tick: Tick<'_>) -> Outcome<()> {
        match source {
            Open::Region(hold, offset) => {
                let read = hold.file.read_exact_at(out, *offset + at);
                read.map_err(|_| hold.broken().into())
            }
            Open::Remote(remote) => match self.next(remote, out, tick)? {
                Next::Bytes => Ok(()),
                Next::Failed(error) => Err(says(&remote.name, error).into()),
                Next::End => Err(lost(&remote.name, "its bytes end early").into()),
            },
        }
    }

    /// The source must also say that it is whole.
    fn end(&self, source: &mut Open<'_>, tick: Tick<'_>) -> Outcome<()> {
        let Open::Remote(remote) = source else {
            return Ok(());
        };
        match self.next(remote, &mut [], tick)? {
            Next::End => Ok(()),
            Next::Failed(error) => Err(says(&remote.name, error).into()),
            Next::Bytes => Err(lost(&remote.name, "it does not end").into()),
        }
    }

    fn next(&self, remote: &mut Remote, out: &mut [u8], tick: Tick<'_>) -> Outcome<Next> {
        let mut gone = None;
        let mut silent = within(self.silence);
        let patience = &mut |idle| {
            // The client that wants the sum may be gone, or the server end: that is not the source's.
            if let Err(error) = tick() {
                gone = Some(error);
                return Err(io::ErrorKind::Interrupted.into());
            }
            silent(idle)
        };
        let next = remote.stream.next(&mut remote.channel, out, patience);
        match (next, gone) {
            (_, Some(error)) => Err(Fault::Gone(error)),
            (Ok(next), None) => Ok(next),
            (Err(error), None) => Err(lost(&remote.name, &error.to_string()).into()),
        }
    }
}

fn check(part: &Part, sources: &[Source]) -> Result<(), Error> {
    let refuse = |reason: String| Err(invalid(&part.name, reason));
    if sources.is_empty() || sources.len() > SOURCES_MAX {
        return refuse(format!(
            "{} sources: 1 to {SOURCES_MAX} can be added",
            sources.len()
        ));
    }
    for source in sources {
        let end = source.offset.saturating_add(source.length);
        let here = source.at.is_none() && source.name == part.name;
        if source.length > part.length {
            return refuse(format!("source '{}' is longer than the part", source.name));
        }
        let meet = source.offset < part.offset.saturating_add(part.length) && part.offset < end;
        if here && meet {
            return refuse("a source overlaps the part that takes the sum".into());
        }
    }
    Ok(())
}

fn lost(source: &str, reason: &str) -> Error {
    Error::new(
        Code::Network,
        Entity::Address(source.to_owned()),
        format!("the source was lost: {reason}"),
        "the sum is incomplete: do it again when the source is back, or without it",
    )
}

/// What a source says itself. Its end is not the end of this server.
fn says(source: &str, error: Error) -> Error {
    if error.code() == Code::ServerLost {
        return lost(source, error.reason());
    }
    let reason = format!("the source {source} says: {}", error.reason());
    Error::new(error.code(), error.entity().clone(), reason, error.remedy())
}

fn too_late(part: &Part) -> Error {
    crate::fault::late(&part.name, "the sources did not come")
}
