//! Writing a version at its levels, from the slabs of the local ranks.
//!
//! One container for all ranks of the node (SION-like). The same bytes go, at the
//! same time and straight from the slabs, to the node's disk, over the network to
//! the partner (Buddy: never re-read from the sender's disk; deep-er, section
//! III-D1) and to shared storage; checksums are computed once. A level is reported
//! only after its copy was read back and compared (P1).

use std::io::{IoSlice, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use outlive_base::level::StoreKind;
use outlive_base::{ContainerId, Entity, Error, Level, NodeId, Result};
use outlive_control::node::contents::is_refused;
use outlive_control::node::prints::{PRINTS_MAX, Print};
use outlive_control::node::shell::{Captures, Flush, Target};
use outlive_control::node::{SHORT_BYTES, overwritten};
use outlive_control::refused::Refused;
use outlive_control::told::is_of_connection;
use outlive_network::Stream;
use outlive_vault::{
    Census, ContainerHead, Layout, Part, RankImage, Sealed, Vault, WriteOptions, verify_written,
    write_container,
};

use crate::memory::{Memory, Work, share};
use crate::paced::write_paced;
use crate::peers::{
    StreamReply, StreamRequest, connection_lost, open_stream, read_reply, send_request,
};
use crate::places::Places;
use crate::reports::Reports;

/// A version of this node, ready to be written.
pub struct Writing {
    /// What, and where to.
    pub flush: Flush<Memory>,
    /// Where this node's things are.
    pub places: Arc<Places>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Places {
    /// The container of a version of this node.
    pub fn id_of(&self, captures: &Captures<Memory>) -> ContainerId {
        ContainerId {
            incarnation: captures.source,
            version: captures.version,
            node: self.node,
        }
    }

    /// The container over the slabs.
    ///
    /// # Errors
    /// If what is in them is no complete capture.
    pub fn layout<'a>(&self, captures: &'a Captures<Memory>) -> Result<Layout<'a>> {
        let images = captures
            .slabs
            .iter()
            .map(|(rank, memory)| {
                let table = memory.slab.table().map_err(share)?;
                let data = memory.slab.data().map_err(share)?;
                Ok(RankImage {
                    rank: *rank,
                    table,
                    data,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let head = ContainerHead {
            job_hash: self.job_hash,
            id: self.id_of(captures),
            ranks_total: captures.ranks_total,
        };
        Ok(Layout::new(head, images)?)
    }
}

impl Writing {
    /// The container's name.
    fn id(&self) -> ContainerId {
        self.places.id_of(&self.flush.captures)
    }

    /// Does it, and reports it as asked for.
    pub fn run(self, work: &Reports<Work>) {
        if self.flush.quiet {
            let result = self.run_quietly();
            let _ = work.send(Work::Protected { result });
        } else {
            self.run_aloud(work);
        }
    }

    /// Writes all copies at once and reports each as it is done.
    ///
    /// The partner's copy protects against the loss of one node only together with
    /// the node's own container, so that level waits for both.
    fn run_aloud(self, work: &Reports<Work>) {
        let captures = &self.flush.captures;
        let (source, version) = (captures.source, captures.version);
        // The last copy is told with the end. No other waits for it, for the partner may hang, and
        // shared storage: what is left for the agent it finds at its next turn. Of a short version
        // no level is prepared before the others anyway, until some time has passed.
        let last = Mutex::new(Vec::new());
        let last_level = self.last_level();
        let layout = self.places.layout(captures);
        let short = layout.as_ref().is_ok_and(is_short);
        let report = |level: Level, result: Result<Part>| {
            let done = Work::LevelDone {
                source,
                version,
                level,
                result,
            };
            match last_level {
                Some(last_level) if last_level == level => lock(&last).push(done),
                Some(_) if short => drop(work.leave(done)),
                _ => drop(work.send(done)),
            }
        };
        let mut prints = None;
        let failed = match layout {
            Ok(layout) => {
                let accepted = is_as_known(self.flush.known.as_ref(), || layout.seal());
                let accepted = accepted.and_then(|()| self.accept(&layout));
                if accepted.is_ok() {
                    self.copies(&layout, &report);
                }
                // The sums were computed while copies were written. If none was, nothing is told: who
                // waits for the word that all failed waits for no sums.
                prints = layout.has_sums().then(|| prints_of(&layout));
                accepted.err()
            }
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            for target in &self.flush.targets {
                report(target.level(), Err(error.clone()));
            }
        }
        // The slabs are released before the slots may be used again.
        drop(self);
        let mut last = std::mem::take(&mut *lock(&last));
        last.extend(prints.map(|prints| Work::Printed {
            source,
            version,
            prints,
        }));
        last.push(Work::FlushOver { source, version });
        let _ = work.send(Work::Together(last));
    }

    /// Unless it holds numbers that a version may not hold.
    fn accept(&self, layout: &Layout<'_>) -> Result<()> {
        let Refused { nan, infinite } = self.flush.refused;
        if !nan && !infinite {
            return Ok(());
        }
        let counts = |census: Census| nan && census.nan > 0 || infinite && census.infinite > 0;
        match layout.prints().find(|print| counts(print.census)) {
            Some(print) => {
                let version = self.flush.captures.version;
                Err(is_refused(&print_of(print), version))
            }
            None => Ok(()),
        }
    }

    /// The level whose copy ends the writing; of shared storage's copy nobody knows when it does.
    fn last_level(&self) -> Option<Level> {
        let levels = || self.flush.targets.iter().map(|target| target.level());
        let last = levels().max()?;
        if last.store() == StoreKind::Shared {
            return None;
        }
        levels().find(|level| level.has_partner()).or(Some(last))
    }

    fn copies(&self, layout: &Layout<'_>, report: &(impl Fn(Level, Result<Part>) + Sync)) {
        let copy = |target: Target| {
            let sealed = self.copy(layout, target);
            sealed.map(|sealed| self.part(target, &sealed))
        };
        let short = is_short(layout);
        std::thread::scope(|scope| {
            let mut partner = None;
            for &target in &self.flush.targets {
                match target {
                    Target::Disk | Target::Group(_) => {}
                    Target::Memory if short => report(target.level(), copy(target)),
                    Target::Partner(_) => {
                        let thread = (!short).then(|| start(scope, move || copy(target)));
                        partner = Some((target, thread))
                    }
                    // Without another thread they follow each other.
                    _ => match start(scope, move || report(target.level(), copy(target))) {
                        Ok(thread) => drop(thread),
                        Err(_) => report(target.level(), copy(target)),
                    },
                }
            }
            let mut stored = self.flush.targets.iter();
            if !stored.any(|target| target.level().store().is_of_nodes()) {
                return;
            }
            let own = copy(Target::Disk);
            for target in &self.flush.targets {
                if matches!(target, Target::Disk | Target::Group(_)) {
                    report(target.level(), own.clone());
                }
            }
            if let Some((target, thread)) = partner {
                let copied = match thread {
                    Some(Ok(thread)) => thread
                        .join()
                        .unwrap_or_else(|_| Err(Error::internal("a copy panicked"))),
                    Some(Err(_)) | None => copy(target),
                };
                report(target.level(), own.and(copied));
            }
        });
    }

    /// Writes all copies without reporting levels: they are committed already.
    fn run_quietly(self) -> Result<()> {
        let layout = self.places.layout(&self.flush.captures)?;
        is_as_known(self.flush.known.as_ref(), || layout.seal())?;
        // The node's own container is one, however many levels it serves.
        let own = |target: &Target| matches!(target, Target::Disk | Target::Group(_));
        let first = self.flush.targets.iter().copied().find(own);
        let others = self.flush.targets.iter().copied().filter(|it| !own(it));
        let targets: Vec<Target> = first.into_iter().chain(others).collect();
        std::thread::scope(|scope| {
            let copies: Vec<_> = targets
                .into_iter()
                .map(|target| {
                    let (this, layout) = (&self, &layout);
                    let copy = move || this.copy(layout, target).map(drop);
                    start(scope, copy).map_err(|_| copy)
                })
                .collect();
            copies.into_iter().try_for_each(|copy| match copy {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::internal("a copy panicked"))),
                Err(copy) => copy(),
            })
        })
    }

    fn part(&self, target: Target, sealed: &Sealed) -> Part {
        let holder = match target {
            Target::Memory | Target::Disk | Target::Group(_) => self.places.node,
            Target::Partner(partner) => partner,
            Target::Shared => NodeId::LAUNCHER,
        };
        Part {
            node: self.places.node,
            id: self.id(),
            length: sealed.length,
            digest: sealed.digest,
            holder,
            ranks: self
                .flush
                .captures
                .slabs
                .iter()
                .map(|(rank, _)| *rank)
                .collect(),
            parity: None,
        }
    }

    fn copy(&self, layout: &Layout<'_>, target: Target) -> Result<Sealed> {
        match target {
            Target::Memory => Ok(layout.seal()),
            Target::Disk | Target::Group(_) => self.write(layout, &self.places.store, 0),
            Target::Shared => {
                self.write(layout, &self.places.shared, self.flush.shared_bytes_per_s)
            }
            Target::Partner(partner) => self.stream(layout, partner),
        }
    }

    /// Writes this node's container, so many bytes a second at most; 0: as many as it can.
    fn write(&self, layout: &Layout<'_>, vault: &Vault, rate: u64) -> Result<Sealed> {
        let (store, key) = (&**vault.store(), vault.container_key(self.id()));
        let sealed = match rate {
            0 => write_container(store, &key, layout, &WriteOptions::default())?,
            rate => write_paced(layout, (store, &key), rate)?,
        };
        verify_written(store, &key, Some(&sealed))?;
        Ok(sealed)
    }

    fn stream(&self, layout: &Layout<'_>, partner: NodeId) -> Result<Sealed> {
        let request = StreamRequest::Store {
            id: self.id(),
            length: layout.length(),
        };
        kept_or_new(
            self.places.line_out.take(partner, self.flush.partner_epoch),
            |mut stream| {
                send_request(&mut stream, partner, &request)?;
                self.send(layout, partner, stream)
            },
            || {
                let stream = open_stream(&self.places.endpoint, partner, &request)?;
                self.send(layout, partner, stream)
            },
        )
    }

    /// Sends the container on a stream that was asked for it, and reads what became of it.
    fn send(&self, layout: &Layout<'_>, partner: NodeId, mut stream: Stream) -> Result<Sealed> {
        let lost = |error: std::io::Error| {
            let doing = format!("while it was sent {}", self.id());
            connection_lost(partner, &doing, &error)
        };
        let mut waiting: Vec<&[u8]> = Vec::with_capacity(16);
        for segment in layout.segments() {
            waiting.push(segment);
            if waiting.len() == 16 {
                write_vectored_all(&mut stream, &waiting).map_err(lost)?;
                waiting.clear();
            }
        }
        write_vectored_all(&mut stream, &waiting).map_err(lost)?;
        stream.flush().map_err(lost)?;
        let sealed = layout.seal();
        match read_reply(&mut stream, partner)? {
            StreamReply::Stored { digest } if digest == sealed.digest => {
                self.places.line_out.leave(stream);
                Ok(sealed)
            }
            StreamReply::Stored { .. } => Err(Error::new(
                outlive_base::Code::Corrupt,
                Entity::Node(partner.0),
                format!(
                    "the partner's copy of {} reads back with another digest",
                    self.id()
                ),
                "check the partner's storage and memory",
            )),
            StreamReply::Refused(error) => Err(Error::new(
                error.code(),
                Entity::Node(partner.0),
                format!(
                    "could not keep a copy: {}: {}",
                    error.entity(),
                    error.reason()
                ),
                error.remedy(),
            )),
            StreamReply::Coming { .. } | StreamReply::Working | StreamReply::Shown { .. } => {
                Err(Error::internal("an odd answer on a stream"))
            }
        }
    }
}

/// Unless something has overwritten what was captured since its bytes were known.
fn is_as_known(known: Option<&Part>, seal: impl FnOnce() -> Sealed) -> Result<()> {
    let Some(known) = known else {
        return Ok(());
    };
    if seal() == known.sealed() {
        return Ok(());
    }
    let reason = format!(
        "staging memory no longer holds what was captured of {}: something has written over it",
        known.id
    );
    Err(overwritten(Entity::Node(known.node.0), &reason))
}

/// What the first regions hold.
fn prints_of(layout: &Layout<'_>) -> Vec<Print> {
    layout.prints().take(PRINTS_MAX).map(print_of).collect()
}

fn print_of(print: outlive_vault::Print<'_>) -> Print {
    Print {
        rank: print.rank,
        region: print.region.to_owned(),
        bytes: print.bytes,
        digest: print.digest,
        nan: print.census.nan,
        infinite: print.census.infinite,
    }
}

fn is_short(layout: &Layout<'_>) -> bool {
    layout.length() <= SHORT_BYTES
}

/// Starts a thread; a process that may have no more of them is no reason to panic.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new()
        .name("outlive-copy".into())
        .spawn_scoped(scope, work)
}

fn write_vectored_all(out: &mut impl Write, segments: &[&[u8]]) -> std::io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = segments.iter().map(|bytes| IoSlice::new(bytes)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match out.write_vectored(rest) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Uses what was kept of the last time, else something new. What was kept may have ended since
/// it was looked at, at a partner that was started anew or by something between that forgets
/// idle connections: then nothing is wrong with the partner, and it is asked once more.
fn kept_or_new<S, T>(
    kept: Option<S>,
    with_kept: impl FnOnce(S) -> Result<T>,
    with_new: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match kept.map(with_kept) {
        Some(Err(error)) if is_of_connection(&error) => {
            tracing::info!(%error, "a kept stream had ended");
            with_new()
        }
        Some(done) => done,
        None => with_new(),
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::{Code, Incarnation, Rank, Version};

    use super::*;

    fn failed(code: Code) -> Result<u32> {
        Err(Error::new(code, Entity::Node(1), "it failed", "wait"))
    }

    #[test]
    fn what_has_been_overwritten_since_it_was_sealed_is_not_written_again() {
        let id = ContainerId {
            incarnation: Incarnation(1),
            version: Version(3),
            node: NodeId(0),
        };
        let seal = |digest| Sealed {
            id,
            length: 8192,
            digest,
        };
        let known = Part {
            node: NodeId(0),
            id,
            length: 8192,
            digest: 5,
            holder: NodeId(0),
            ranks: [Rank(0)].into_iter().collect(),
            parity: None,
        };
        let check = |known, found| {
            let result = is_as_known(known, || seal(found));
            result.map_err(|error| error.code())
        };
        assert_eq!(check(Some(&known), 5), Ok(()));
        assert_eq!(check(Some(&known), 4), Err(Code::SharedMemory));
        assert_eq!(check(None, 4), Ok(()), "it is the first to say");
    }

    #[test]
    fn a_kept_stream_that_has_ended_costs_no_version() {
        let kept = |code| kept_or_new(Some(()), |()| failed(code), || Ok(2));
        assert_eq!(kept(Code::Network), Ok(2));
        // What the partner itself refuses it would refuse again.
        let refused = kept(Code::Io).map_err(|error| error.code());
        assert_eq!(refused, Err(Code::Io));
        assert_eq!(kept_or_new(Some(1), Ok, || failed(Code::Io)), Ok(1));
        let none = kept_or_new(None, |()| Ok(1), || failed(Code::Network));
        assert_eq!(none.map_err(|error| error.code()), Err(Code::Network));
    }
}
