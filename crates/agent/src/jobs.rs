//! What is begun on a pool and comes back as [`Work`]. What cannot be begun comes back the same way,
//! as its failure.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outlive_base::ipc::ToRank;
use outlive_base::level::StoreKind;
use outlive_base::{Error, Incarnation, Level, Rank, Result};
use outlive_control::node::SHORT_BYTES;
use outlive_control::node::copies::{Reading, Scrubbed, Transferring};
use outlive_control::node::shell::{Ask, Collected, Flush, Making, Rebuild};
use outlive_copies::flush::Writing;
use outlive_copies::look::look;
use outlive_copies::memory::{Memory, Work};
use outlive_copies::places::Places;
use outlive_copies::rebuild::Rebuilding;
use outlive_copies::record_writer::Beside;
use outlive_copies::{parity, scrub, serving, storage, streams, transfer};
use outlive_ledger::{GcPolicy, Record};
use outlive_network::{Identity, Stream};
use outlive_vault::Removal;

use crate::world::World;

/// Free bytes of node storage from which on a short version that is replaced may stay a second.
const PLENTY_BYTES: u64 = 256 << 20;

impl World {
    pub(super) fn flush(&mut self, flush: Flush<Memory>) {
        let (source, version) = (flush.captures.source, flush.captures.version);
        let targets = flush.targets.clone();
        let quiet = flush.quiet;
        let places = Arc::clone(&self.places);
        let work = self.work.clone();
        let writing = Writing { flush, places };
        let Err(error) = self.outgoing.run(move || writing.run(&work)) else {
            return;
        };
        if quiet {
            return self.protected(Err(error));
        }
        let each = targets.into_iter().map(|target| Work::LevelDone {
            source,
            version,
            level: target.level(),
            result: Err(error.clone()),
        });
        let over = Work::FlushOver { source, version };
        let all = each.chain([over]).collect();
        let _ = self.work.send(Work::Together(all));
    }

    pub(super) fn make_parity(&mut self, making: Making) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let (source, version, level) = (making.source, making.version, making.group.level);
        let quiet = making.quiet;
        let served = self.places.served.as_ref();
        let served = served.filter(|_| level.store() == StoreKind::Server);
        let pool = served.map_or(&self.outgoing, |served| &served.pool);
        let job = move || parity::run(&places, &making, &work);
        let Err(error) = pool.run(job) else {
            return;
        };
        let failed = match quiet {
            true => Work::Protected { result: Err(error) },
            false => Work::ParityMade {
                source,
                version,
                level,
                result: Err(error),
            },
        };
        let _ = self.work.send(failed);
    }

    pub(super) fn rebuild(&mut self, wanted: Rebuild<Memory>) {
        let (incarnation, source, version) = (wanted.incarnation, wanted.source, wanted.version);
        let places = Arc::clone(&self.places);
        let work = self.work.clone();
        let rebuilding = Rebuilding { wanted, places };
        let report = move |result| Work::Rebuilt {
            incarnation,
            source,
            version,
            result,
        };
        let job = move || drop(work.send(report(rebuilding.run())));
        if let Err(error) = self.outgoing.run(job) {
            let _ = self.work.send(report(Err(error)));
        }
    }

    pub(super) fn inventory(&mut self, incarnation: Incarnation) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let job = move || {
            let found = Ok(look(&places));
            let _ = work.send(Work::Inventory { incarnation, found });
        };
        if let Err(error) = self.incoming.run(job) {
            let found = Err(error);
            let _ = self.work.send(Work::Inventory { incarnation, found });
        }
    }

    pub(super) fn collect(&mut self, policy: GcPolicy, shared: bool) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let plenty = Arc::clone(&self.plenty);
        let wait = plenty.load(Ordering::Relaxed);
        self.recorder.run_beside(Beside::new(move |store| {
            let found = store.found().map_err(Error::from);
            let removal = found.and_then(|found| store.removal(found, policy));
            let tombs = removal.as_ref().map(Removal::tombs).unwrap_or_default();
            let rest = move || {
                let result = removal.and_then(|what| collect(&places, &what, shared, &plenty));
                let _ = work.send(Work::Collected { result });
            };
            (tombs, Box::new(rest))
        }));
        if !wait {
            self.recorder.hurry();
        }
    }

    pub(super) fn finished(&mut self, record: Record) {
        let (store, work) = (Arc::clone(&self.places.store), self.work.clone());
        let job = move || {
            let result = store.records().persist(&record).map_err(Error::from);
            let _ = work.send(Work::Protected { result });
        };
        let begun = self.recorder.run(job);
        self.protected(begun);
    }

    pub(super) fn scrub(&self, reading: Box<Reading>) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let copy = reading.copy;
        let begun = self
            .scrubber
            .run(move || scrub::run(&places, &reading, &work));
        if let Err(error) = begun {
            let outcome = Scrubbed::Unreadable(error);
            let _ = self.work.send(Work::Scrubbed { copy, outcome });
        }
    }

    pub(super) fn corrupt(&mut self, id: u32, level: Level) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let begun = self.incoming.run(move || {
            let result = storage::corrupt(&places, level);
            let _ = work.send(Work::Corrupted { id, level, result });
        });
        if begun.is_err() {
            let result = begun;
            let _ = self.work.send(Work::Corrupted { id, level, result });
        }
    }

    pub(super) fn route(&mut self, rank: Rank, sequence: u32, directory: PathBuf, name: &str) {
        let path = directory.join(name).display().to_string();
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let job = move || {
            let made = places
                .faults
                .before_write(0)
                .and_then(|()| std::fs::create_dir_all(&directory));
            let message = match made {
                Ok(()) => ToRank::Path { path },
                Err(error) => ToRank::Error {
                    error: Error::io(&directory, "create a directory for routed files", &error),
                },
            };
            let _ = work.send(Work::Routed {
                rank,
                sequence,
                message,
            });
        };
        if let Err(error) = self.incoming.run(job) {
            let message = ToRank::Error { error };
            let _ = self.work.send(Work::Routed {
                rank,
                sequence,
                message,
            });
        }
    }

    /// Removes directories without waiting for it; what is left is removed when the
    /// next incarnation opens.
    pub(super) fn remove_routed(
        &mut self,
        directories: impl FnOnce(&Path) -> Vec<PathBuf> + Send + 'static,
    ) {
        let places = Arc::clone(&self.places);
        let job = move || {
            for directory in directories(&places.files) {
                if let Err(error) = std::fs::remove_dir_all(&directory)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, directory = %directory.display(), "not removed");
                }
            }
        };
        if let Err(error) = self.incoming.run(job) {
            tracing::warn!(%error, "routed files stay");
        }
    }

    pub(super) fn make_slab(&mut self, ask: Ask<Memory>) {
        let Ask::Slab {
            rank,
            slot,
            ticket,
            bytes,
            stop,
            old,
        } = ask
        else {
            return;
        };
        let (work, places) = (self.work.clone(), Arc::clone(&self.places));
        let report = move |made| Work::SlabMade {
            rank,
            slot,
            ticket,
            made,
        };
        let begun = self.memory_maker.run(move || {
            drop(old);
            let made = Memory::make(bytes, &stop, &places.faults);
            let _ = work.send(report(made));
        });
        if let Err(error) = begun {
            let _ = self.work.send(report(Err(error)));
        }
    }

    /// Makes a copy for shared storage; what hinders that is told as its failure.
    pub(super) fn transfer(&self, wanted: Box<Transferring>) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let id = wanted.part.id;
        let begun = self.transferrer.run(move || {
            let result = transfer::run(&places, &wanted);
            let _ = work.send(Work::Transferred { id, result });
        });
        if let Err(error) = begun {
            let result = Err(error);
            let _ = self.work.send(Work::Transferred { id, result });
        }
    }

    /// A peer wants something on a stream.
    pub(super) fn on_stream(
        &mut self,
        from: Identity,
        header: &[u8],
        stream: Stream,
    ) -> Result<()> {
        let request = streams::request_of(header)?;
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        self.incoming
            .run(move || streams::run(&places, from, request, stream, &work))
    }
}

/// Removes what may go; `plenty` says then whether the next may wait for a while.
fn collect(
    places: &Arc<Places>,
    removal: &Removal,
    shared: bool,
    plenty: &AtomicBool,
) -> Result<Collected> {
    let report = places.store.remove(removal)?;
    collect_served(places, removal.policy());
    let short = report
        .removed
        .iter()
        .all(|(_, _, length)| *length <= SHORT_BYTES);
    let room = places.store.store().room();
    let much = room.is_ok_and(|room| room >= PLENTY_BYTES);
    plenty.store(short && much, Ordering::Relaxed);
    if shared {
        places
            .shared_records
            .collect(&places.shared, removal.policy().clone());
    }
    Ok(Collected {
        removed: report.removed.iter().map(|(id, ..)| *id).collect(),
        forgotten: report.forgotten.into_iter().collect(),
    })
}

/// Removes at the memory server what newer versions have replaced, once that is on record here.
fn collect_served(places: &Arc<Places>, policy: &GcPolicy) {
    let Some(served) = &places.served else {
        return;
    };
    let (theirs, policy) = (Arc::clone(places), policy.clone());
    let job = move || {
        // What stays is found the next time; a server that is lost has nothing.
        if let Err(error) = serving::collect(&theirs, &policy) {
            tracing::info!(%error, "nothing is removed at the memory server");
        }
    };
    if let Err(error) = served.pool.run(job) {
        tracing::info!(%error, "nothing is removed at the memory server");
    }
}
