//! Writing a version at its levels, from the slabs of the local ranks.
//!
//! One container for all ranks of the node (SION-like). The same bytes go, at the
//! same time and straight from the slabs, to the node's disk, over the network to
//! the partner (Buddy: never re-read from the sender's disk; deep-er, section
//! III-D1) and to shared storage; checksums are computed once. A level is reported
//! only after its copy was read back and compared (P1).

use std::io::{IoSlice, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use crossbeam_channel::Sender;
use outlive_base::{ContainerId, Error, Incarnation, Level, NodeId, Rank, Result, Version};
use outlive_capture::slab::Slab;
use outlive_control::told::is_of_connection;
use outlive_network::{Endpoint, Stream};
use outlive_vault::{
    ContainerHead, Layout, NodeStore, Part, RankImage, Sealed, SharedStore, Spares, WriteHook,
    WriteOptions, verify_written, write_container,
};

use crate::core::Work;
use crate::faults::Faults;
use crate::peers::{
    StreamReply, StreamRequest, connection_lost, open_stream, read_reply, send_request,
};
use crate::ranks::share;

/// A version of a node that is so short is written by one thread, one copy after the
/// other: each is over before another thread has begun. Shared storage has a thread of
/// its own all the same, for it may hang.
pub const SHORT_BYTES: u64 = 8 << 20;

/// Where a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// It stays where it is: the slabs are the copy.
    Memory,
    /// The node's own storage.
    Disk,
    /// The storage of this node.
    Partner(NodeId),
    /// Shared storage.
    Shared,
}

impl Target {
    /// The level that this copy is for.
    pub const fn level(self) -> Level {
        match self {
            Target::Memory => Level::Memory,
            Target::Disk => Level::Disk,
            Target::Partner(_) => Level::Partner,
            Target::Shared => Level::Shared,
        }
    }
}

/// A version of this node, ready to be written.
pub struct Flush {
    /// The incarnation of the capture.
    pub source: Incarnation,
    /// The version.
    pub version: Version,
    /// This node.
    pub node: NodeId,
    /// The job, as on the wire.
    pub job_hash: u64,
    /// Ranks of the whole job.
    pub ranks_total: u32,
    /// The local ranks' captures.
    pub slabs: Vec<(Rank, Arc<Slab>)>,
    /// Where to.
    pub targets: Vec<Target>,
    /// Node storage.
    pub store: Arc<NodeStore>,
    /// Shared storage.
    pub shared: Arc<SharedStore>,
    /// For the partner.
    pub endpoint: Arc<Endpoint>,
    /// A stream to the partner that may be there from the last time.
    pub idle: Arc<Idle>,
    /// The partner's present holder; a stream with an older one is of no use.
    pub partner_epoch: u64,
    /// Faults in force.
    pub faults: Arc<Faults>,
}

/// The stream to the partner between two versions: to make one costs both ends more than
/// a short version does.
#[derive(Default)]
pub struct Idle(Mutex<Option<Stream>>);

impl Idle {
    /// What was left, if its peer is this one, of this epoch or a newer, and has not
    /// ended it.
    fn take(&self, peer: NodeId, epoch: u64) -> Option<Stream> {
        let stream = lock(&self.0).take();
        let same = |stream: &Stream| {
            let with = stream.peer();
            with.peer == peer && with.epoch >= epoch && stream.is_idle()
        };
        stream.filter(same)
    }

    fn leave(&self, stream: Stream) {
        *lock(&self.0) = Some(stream);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies the faults in force to writes.
pub struct Hook<'a>(pub &'a Faults);

impl WriteHook for Hook<'_> {
    fn write(&self, _path: &Path, _offset: u64, bytes: usize) -> std::io::Result<()> {
        self.0.before_write(bytes as u64)
    }
}

/// The same for shared storage, which has room when a node's own is full.
struct SharedHook<'a>(&'a Faults);

impl WriteHook for SharedHook<'_> {
    fn write(&self, _path: &Path, _offset: u64, bytes: usize) -> std::io::Result<()> {
        self.0.slow_down(bytes as u64);
        Ok(())
    }
}

impl Flush {
    /// The container's name.
    pub fn id(&self) -> ContainerId {
        ContainerId {
            incarnation: self.source,
            version: self.version,
            node: self.node,
        }
    }

    /// Writes all copies at once and reports each as it is done.
    ///
    /// The partner's copy protects against the loss of one node only together with
    /// the node's own container, so that level waits for both.
    pub fn run(self, work: &Sender<Work>) {
        let (source, version) = (self.source, self.version);
        // The partner's copy is the last of all but shared storage's: it is told with the end.
        // No other copy waits for it, for the partner may hang.
        let last = Mutex::new(Vec::new());
        let report = |level: Level, result: Result<Part>| {
            let done = Work::LevelDone {
                source,
                version,
                level,
                result,
            };
            match level {
                Level::Partner if !self.has(Level::Shared) => lock(&last).push(done),
                _ => drop(work.send(done)),
            }
        };
        match self.layout() {
            Ok(layout) => self.copies(&layout, &report),
            Err(error) => {
                for target in &self.targets {
                    report(target.level(), Err(error.clone()));
                }
            }
        }
        // The slabs are released before the slots may be used again.
        drop(self);
        let mut last = std::mem::take(&mut *lock(&last));
        last.push(Work::FlushOver { source, version });
        let _ = work.send(Work::Together(last));
    }

    fn has(&self, level: Level) -> bool {
        self.targets.iter().any(|target| target.level() == level)
    }

    fn copies(&self, layout: &Layout<'_>, report: &(impl Fn(Level, Result<Part>) + Sync)) {
        let copy = |target: Target| {
            let sealed = self.copy(layout, target);
            sealed.map(|sealed| self.part(target, &sealed))
        };
        let short = layout.length() <= SHORT_BYTES;
        std::thread::scope(|scope| {
            let mut partner = None;
            for &target in &self.targets {
                match target {
                    Target::Disk => {}
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
            if !self.has(Level::Disk) && !self.has(Level::Partner) {
                return;
            }
            let own = copy(Target::Disk);
            if self.has(Level::Disk) {
                report(Level::Disk, own.clone());
            }
            if let Some((target, thread)) = partner {
                let copied = match thread {
                    Some(Ok(thread)) => thread
                        .join()
                        .unwrap_or_else(|_| Err(Error::internal("a copy panicked"))),
                    Some(Err(_)) | None => copy(target),
                };
                report(Level::Partner, own.and(copied));
            }
        });
    }

    /// Leaves out the levels that are not in `levels`.
    pub fn keep_targets(&mut self, levels: outlive_protocols::commit::Levels) {
        self.targets
            .retain(|target| levels.contains(target.level()));
    }

    /// Writes all copies without reporting levels: they are committed already.
    pub fn run_quietly(self) -> Result<()> {
        let layout = self.layout()?;
        std::thread::scope(|scope| {
            let copies: Vec<_> = self
                .targets
                .iter()
                .map(|&target| {
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

    /// The container over the slabs.
    pub fn layout(&self) -> Result<Layout<'_>> {
        let images = self
            .slabs
            .iter()
            .map(|(rank, slab)| {
                let table = slab.table().map_err(share)?;
                let data = slab.data().map_err(share)?;
                Ok(RankImage {
                    rank: *rank,
                    table,
                    data,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let head = ContainerHead {
            job_hash: self.job_hash,
            id: self.id(),
            ranks_total: self.ranks_total,
        };
        Ok(Layout::new(head, images)?)
    }

    fn part(&self, target: Target, sealed: &Sealed) -> Part {
        let holder = match target {
            Target::Memory | Target::Disk => self.node,
            Target::Partner(partner) => partner,
            Target::Shared => NodeId::LAUNCHER,
        };
        Part {
            node: self.node,
            id: self.id(),
            length: sealed.length,
            digest: sealed.digest,
            holder,
            ranks: self.slabs.iter().map(|(rank, _)| *rank).collect(),
        }
    }

    fn copy(&self, layout: &Layout<'_>, target: Target) -> Result<Sealed> {
        match target {
            Target::Memory => Ok(layout.seal()),
            Target::Disk => {
                let path = self.store.container_path(self.id());
                self.store.make(&path)?;
                self.write(layout, &path, &Hook(&self.faults), self.store.spares())
            }
            Target::Shared => {
                SharedStore::create(self.shared.root(), self.job_hash)?;
                let path = self.shared.container_path(self.id());
                self.write(layout, &path, &SharedHook(&self.faults), None)
            }
            Target::Partner(partner) => self.stream(layout, partner),
        }
    }

    fn write(
        &self,
        layout: &Layout<'_>,
        path: &Path,
        hook: &dyn WriteHook,
        spares: Option<&Spares>,
    ) -> Result<Sealed> {
        let options = WriteOptions {
            hook: Some(hook),
            spares,
            ..WriteOptions::default()
        };
        let sealed = write_container(path, layout, &options)?;
        verify_written(path, Some(&sealed))?;
        Ok(sealed)
    }

    fn stream(&self, layout: &Layout<'_>, partner: NodeId) -> Result<Sealed> {
        let request = StreamRequest::Store {
            id: self.id(),
            length: layout.length(),
        };
        kept_or_new(
            self.idle.take(partner, self.partner_epoch),
            |mut stream| {
                send_request(&mut stream, partner, &request)?;
                self.send(layout, partner, stream)
            },
            || {
                let stream = open_stream(&self.endpoint, partner, &request)?;
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
                self.idle.leave(stream);
                Ok(sealed)
            }
            StreamReply::Stored { .. } => Err(Error::new(
                outlive_base::Code::Corrupt,
                outlive_base::Entity::Node(partner.0),
                format!(
                    "the partner's copy of {} reads back with another digest",
                    self.id()
                ),
                "check the partner's storage and memory",
            )),
            StreamReply::Refused(error) => Err(Error::new(
                error.code(),
                outlive_base::Entity::Node(partner.0),
                format!(
                    "could not keep a copy: {}: {}",
                    error.entity(),
                    error.reason()
                ),
                error.remedy(),
            )),
            StreamReply::Coming { .. } => Err(Error::internal("an odd answer on a stream")),
        }
    }
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
    use outlive_base::{Code, Entity, Error};

    use super::*;

    fn failed(code: Code) -> Result<u32> {
        Err(Error::new(code, Entity::Node(1), "it failed", "wait"))
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
