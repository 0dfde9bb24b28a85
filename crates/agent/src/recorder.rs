//! Making records durable, one thread for all of a node's.
//!
//! Records are written in the order asked for. Those that wait together and do not
//! depend on each other (PREPARED, COMMIT, ABORT) share their syncs: after a node was
//! lost its successor gets all decisions that roll forward at once.
//!
//! A disk that takes no more must not cost the levels whose bytes lie elsewhere, nor the
//! job (P9): records of the levels memory and shared, and refusals, are then left with the
//! keeper, in memory. They outlive the agent, and end with the node's staging memory;
//! what they say is worth no more than that, or lies in shared storage too. Promises and
//! openings take the room that the node's store keeps for them; when that is used up,
//! or the disk may not be written to at all, they are left with the keeper too and owed
//! to the disk: nothing newer is written there before them.
//!
//! A decision that shared storage does not take is taken back here too: the agent calls it void,
//! and the next one must not find it. An end of the agent in between has told nobody.
//!
//! Invariants: nothing is reported before it is durable or kept; a batch holds at most
//! [`BATCH_MAX`] records; the keeper's part at most [`KEPT_BYTES_MAX`] bytes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use outlive_base::machine::Op;
use outlive_base::{Code, Entity, Error, Incarnation, Level, Result};
use outlive_vault::{Record, RecordStore, Vault};
use rustix::fs::MemfdFlags;

use crate::memory::Work;
use crate::queue::{Inlet, Outlet, Refused, queue};
use crate::reports::Reports;

/// Records whose syncs are shared.
const BATCH_MAX: usize = 64;
/// Turns of the agent for which a record waits for others, while there is more to do.
const TURNS_MAX: u32 = 32;
/// Batches of records and other jobs that may wait.
const QUEUE_MAX: usize = 1024;
/// Bytes of records that the keeper holds for a disk that takes none.
pub const KEPT_BYTES_MAX: u64 = 1 << 20;
/// The keeper's name for them.
pub const KEPT_TAG: &str = "records";

/// A record to be made durable.
struct Wish {
    op: Op,
    record: Record,
    /// Where else it must stand, if it concerns shared storage.
    shared: Option<Arc<Vault>>,
}

enum Job {
    Records(Vec<Wish>),
    /// Anything else that must not overtake records.
    Other(Box<dyn FnOnce() + Send>),
}

/// The thread that writes records, as seen by the agent.
pub struct Recorder {
    jobs: Inlet<Job>,
    work: Reports<Work>,
    /// Asked for and not handed on yet: what is asked for together shares its syncs.
    together: Vec<Wish>,
    /// Turns of the agent that the first of them has seen.
    turns: u32,
}

/// What the thread works with.
pub struct Means {
    /// The node's storage.
    pub store: Arc<Vault>,
    /// Identifies the job in records.
    pub job_hash: u64,
    /// What the keeper holds; `None` without a keeper.
    pub kept: Option<Kept>,
    /// The newest incarnations in which it is marked that versions were committed: in the
    /// node's storage and in shared storage.
    pub marked: [Incarnation; 2],
    /// Records with the keeper that the disk must have before others.
    pub owed: Vec<Record>,
    /// Where completions go.
    pub work: Reports<Work>,
}

impl Recorder {
    /// Starts the thread. It ends when this is dropped and the queue is empty.
    pub fn start(means: Means) -> Result<Recorder> {
        let (jobs, waiting) = queue(QUEUE_MAX);
        let work = means.work.clone();
        std::thread::Builder::new()
            .name("outlive-records".into())
            .spawn(move || work_off(&waiting, means))
            .map_err(|error| Error::io("thread", "start a worker", &error))?;
        Ok(Recorder {
            jobs,
            work,
            together: Vec::new(),
            turns: 0,
        })
    }

    /// Makes a record durable, at the latest [`TURNS_MAX`] turns from now;
    /// [`Work::Persisted`] tells.
    pub fn persist(&mut self, op: Op, record: Record, shared: Option<Arc<Vault>>) {
        self.together.push(Wish { op, record, shared });
    }

    /// The agent has done a turn. With `more` to do at once, records that it may ask for
    /// then are waited for.
    pub fn turn(&mut self, more: bool) {
        self.turns += 1;
        if !more || self.turns >= TURNS_MAX || self.together.len() >= BATCH_MAX {
            self.hand_on();
        }
    }

    /// Runs something after the records that wait.
    pub fn run(&mut self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        self.hand_on();
        self.jobs
            .put(Job::Other(Box::new(job)))
            .map_err(|error| no_room(&error))
    }

    fn hand_on(&mut self) {
        self.turns = 0;
        let wishes = std::mem::take(&mut self.together);
        if wishes.is_empty() {
            return;
        }
        let Err(refused) = self.jobs.put(Job::Records(wishes)) else {
            return;
        };
        let error = no_room(&refused);
        if let Job::Records(wishes) = refused.into_inner() {
            for wish in wishes {
                let result = Err(error.clone());
                let _ = self.work.send(Work::Persisted {
                    op: wish.op,
                    result,
                });
            }
        }
    }
}

fn no_room(refused: &Refused<Job>) -> Error {
    match refused {
        Refused::Full(_) => Error::internal(format!("{QUEUE_MAX} records wait to be written")),
        Refused::Ended(_) => Error::internal("the recorder has ended"),
    }
}

fn work_off(waiting: &Outlet<Job>, mut means: Means) {
    let mut next = None;
    while let Some(job) = next.take().or_else(|| waiting.take()) {
        let mut wishes = match job {
            Job::Other(job) => {
                job();
                continue;
            }
            Job::Records(wishes) => VecDeque::from(wishes),
        };
        while wishes.len() < BATCH_MAX && wishes.iter().all(Wish::is_free) {
            match waiting.take_now() {
                Some(Job::Records(more)) => wishes.extend(more),
                Some(other) => {
                    next = Some(other);
                    break;
                }
                None => break,
            }
        }
        while let Some(first) = wishes.pop_front() {
            let mut batch = vec![first];
            while batch[0].is_free() && batch.len() < BATCH_MAX {
                match wishes.pop_front_if(|wish| wish.is_free()) {
                    Some(wish) => batch.push(wish),
                    None => break,
                }
            }
            means.write(batch);
        }
    }
}

impl Wish {
    /// True if its order among others of the kind does not matter.
    fn is_free(&self) -> bool {
        let decision = matches!(
            self.record,
            Record::Prepared { .. } | Record::Commit { .. } | Record::Abort { .. }
        );
        decision && self.shared.is_none()
    }

    /// True if the node's disk need not hold it.
    fn may_be_kept(&self) -> bool {
        match &self.record {
            Record::Prepared { level, .. } | Record::Commit { level, .. } => {
                matches!(level, Level::Memory | Level::Shared)
            }
            Record::Abort { .. } => true,
            record => is_owed(record),
        }
    }
}

/// True for what must stand on the disk before anything that follows it.
fn is_owed(record: &Record) -> bool {
    matches!(record, Record::Promise { .. } | Record::Incarnation { .. })
}

impl Means {
    fn write(&mut self, batch: Vec<Wish>) {
        let records: Vec<&Record> = batch.iter().map(|wish| &wish.record).collect();
        let stood: Vec<bool> = batch.iter().map(|wish| self.stands_already(wish)).collect();
        // The mark comes before the commit that it tells of.
        for record in &records {
            mark(&mut self.marked[0], self.store.mark(), record);
        }
        let results: Vec<Result<()>> = match self.pay() {
            Ok(()) => self.persist(&records),
            Err(error) => records.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut told = Vec::with_capacity(batch.len());
        for ((wish, result), stood) in batch.into_iter().zip(results).zip(stood) {
            let result = match (result, &mut self.kept) {
                (Err(error), Some(kept)) if wish.may_be_kept() => {
                    if is_owed(&wish.record) {
                        owe(&mut self.owed, &wish.record);
                    }
                    let added = kept.add(&wish.record, self.job_hash);
                    // What is owed does not go with the older half.
                    let added = added.and_then(|halved| match halved {
                        true => kept.add_all(&self.owed, self.job_hash),
                        false => Ok(()),
                    });
                    added.map(|()| Some(error))
                }
                (result, _) => result.map(|()| None),
            };
            let result = result.and_then(|kept| match &wish.shared {
                Some(shared) => {
                    let marked = &mut self.marked[1];
                    let there = persist_shared(shared, marked, &wish.record);
                    if there.is_err() && !stood {
                        self.take_back(&wish.record);
                    }
                    there.map(|()| kept)
                }
                None => Ok(kept),
            });
            let op = wish.op;
            told.push(Work::Persisted { op, result });
        }
        let _ = self.work.send(Work::Together(told));
    }
}

impl Means {
    fn persist(&self, records: &[&Record]) -> Vec<Result<()>> {
        let results = self.store.records().persist_all(records).into_iter();
        results.map(|result| result.map_err(Error::from)).collect()
    }

    /// True if what goes to shared storage too was recorded here before, and may have been
    /// reported then: that is not taken back. What cannot be looked at counts as recorded.
    fn stands_already(&self, wish: &Wish) -> bool {
        if wish.shared.is_none() {
            return false;
        }
        let scan = self.store.records().scan();
        scan.map_or(true, |scan| scan.records.contains(&wish.record))
    }

    /// Removes a decision that was reported nowhere.
    fn take_back(&mut self, record: &Record) {
        if !matches!(record, Record::Commit { .. }) {
            return;
        }
        let removed = self.store.records().remove(record).map_err(Error::from);
        let kept = match &mut self.kept {
            Some(kept) => kept.remove(record, self.job_hash),
            None => Ok(()),
        };
        for error in [removed, kept].into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a decision that shared storage refused stays recorded here");
        }
    }

    /// Writes what is owed to the disk.
    fn pay(&mut self) -> Result<()> {
        while let Some(record) = self.owed.first() {
            match self.persist(&[record]).pop() {
                Some(Err(error)) if error.code() != Code::JobBusy => return Err(error),
                // One that stands there is newer: nothing is owed any more.
                _ => drop(self.owed.remove(0)),
            }
        }
        Ok(())
    }
}

/// A promise takes the place of the one before; openings are few.
fn owe(owed: &mut Vec<Record>, record: &Record) {
    let same = |known: &Record| {
        std::mem::discriminant(known) == std::mem::discriminant(record)
            && matches!(record, Record::Promise { .. })
    };
    owed.retain(|known| known != record && !same(known));
    owed.push(record.clone());
}

/// What of the kept records the disk lacks and must have first.
pub fn owed_of(kept: &[Record], store: &Vault) -> Vec<Record> {
    let there = store.records().scan().unwrap_or_default().records;
    let mut owed = Vec::new();
    for record in kept.iter().filter(|record| is_owed(record)) {
        if !there.contains(record) {
            owe(&mut owed, record);
        }
    }
    owed
}

/// Leaves the mark that versions were committed, before the first commit of an incarnation
/// is: who finds no record later must not take that for none.
fn mark(marked: &mut Incarnation, place: &RecordStore, record: &Record) {
    let Record::Commit {
        incarnation,
        version,
        ..
    } = *record
    else {
        return;
    };
    if incarnation <= *marked {
        return;
    }
    let mark = Record::History {
        incarnation,
        version,
    };
    match place.persist(&mark) {
        Ok(()) => *marked = incarnation,
        // The commit itself will tell whether the place takes anything.
        Err(error) => tracing::info!(%error, "no mark of a history"),
    }
}

/// Records a decision in shared storage too, exclusively.
///
/// # Errors
/// [`Code::JobBusy`] if another decision stands there; those of the storage.
pub fn persist_shared(shared: &Vault, marked: &mut Incarnation, record: &Record) -> Result<()> {
    mark(marked, shared.mark(), record);
    match shared.records().persist_exclusive(record)? {
        outlive_vault::Exclusive::Created => Ok(()),
        outlive_vault::Exclusive::Stands(found) if same_decision(&found, record) => Ok(()),
        outlive_vault::Exclusive::Stands(_) => Err(Error::new(
            Code::JobBusy,
            Entity::File(shared.store().name()),
            "another run of the job has written a different decision there",
            "let one run at a time use a job's store",
        )),
    }
}

/// A decision that was replicated again has a higher ballot and is the same.
fn same_decision(found: &Record, new: &Record) -> bool {
    match (found, new) {
        (Record::Commit { parts: found, .. }, Record::Commit { parts: new, .. }) => found == new,
        _ => found == new,
    }
}

/// Records in memory that the keeper owns: each with its length in front. When it is
/// full the older half goes: versions in memory are two, decisions about older ones
/// are of no use.
pub struct Kept {
    file: std::fs::File,
    bytes: u64,
    lengths: VecDeque<u64>,
}

impl Kept {
    /// New and empty, with the descriptor to leave with the keeper.
    pub fn create() -> Result<(Kept, OwnedFd)> {
        let failed = |error: std::io::Error| Error::io("memfd", "create", &error);
        let fd = rustix::fs::memfd_create("outlive-records", MemfdFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let file = std::fs::File::from(fd.try_clone().map_err(failed)?);
        let kept = Kept {
            file,
            bytes: 0,
            lengths: VecDeque::new(),
        };
        Ok((kept, fd))
    }

    /// What an agent before this one left. What is cut off or damaged is not there.
    pub fn adopt(fd: OwnedFd, job_hash: u64) -> (Kept, Vec<Record>) {
        let mut kept = Kept {
            file: std::fs::File::from(fd),
            bytes: 0,
            lengths: VecDeque::new(),
        };
        let mut records = Vec::new();
        let mut length = [0; 4];
        while kept.file.read_exact_at(&mut length, kept.bytes).is_ok() {
            let bytes = u64::from(u32::from_le_bytes(length));
            if bytes == 0 || kept.bytes + 4 + bytes > KEPT_BYTES_MAX {
                break;
            }
            let mut record = vec![0; bytes as usize];
            let read = kept.file.read_exact_at(&mut record, kept.bytes + 4);
            let Some(record) = read
                .ok()
                .and_then(|()| Record::decode(&record, job_hash).ok())
            else {
                break;
            };
            records.push(record);
            kept.bytes += 4 + bytes;
            kept.lengths.push_back(4 + bytes);
        }
        (kept, records)
    }

    fn add_all(&mut self, records: &[Record], job_hash: u64) -> Result<()> {
        let mut each = records.iter();
        each.try_for_each(|record| self.add(record, job_hash).map(drop))
    }

    /// Adds a record; true if older ones went for it.
    fn add(&mut self, record: &Record, job_hash: u64) -> Result<bool> {
        let failed = |error: std::io::Error| Error::io("memfd", "write a record", &error);
        let encoded = record.encode(job_hash);
        let bytes = encoded.filter(|bytes| (bytes.len() as u64) < KEPT_BYTES_MAX / 2 - 4);
        let bytes = bytes.ok_or_else(|| Error::internal("a record is too long to be kept"))?;
        let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
        framed.extend_from_slice(&bytes);
        let halved = self.bytes + framed.len() as u64 > KEPT_BYTES_MAX;
        if halved {
            self.halve().map_err(failed)?;
        }
        self.file
            .write_all_at(&framed, self.bytes)
            .map_err(failed)?;
        self.bytes += framed.len() as u64;
        self.lengths.push_back(framed.len() as u64);
        Ok(halved)
    }

    /// Removes a record wherever it is; one that is not there is no error.
    fn remove(&mut self, record: &Record, job_hash: u64) -> Result<()> {
        let failed = |error: std::io::Error| Error::io("memfd", "remove a record", &error);
        let Some(bytes) = record.encode(job_hash) else {
            return Ok(());
        };
        let mut all = vec![0; self.bytes as usize];
        self.file.read_exact_at(&mut all, 0).map_err(failed)?;
        let (mut rest, mut lengths, mut at) = (Vec::new(), VecDeque::new(), 0);
        for &length in &self.lengths {
            let next = at + length as usize;
            if all[at + 4..next] != bytes {
                rest.extend_from_slice(&all[at..next]);
                lengths.push_back(length);
            }
            at = next;
        }
        if lengths.len() < self.lengths.len() {
            self.file.write_all_at(&rest, 0).map_err(failed)?;
            self.file.set_len(rest.len() as u64).map_err(failed)?;
            (self.bytes, self.lengths) = (rest.len() as u64, lengths);
        }
        Ok(())
    }

    /// Drops the older half. A death in the middle leaves a prefix of what was there,
    /// old or new: each record is checked when it is read.
    fn halve(&mut self) -> std::io::Result<()> {
        let mut start = 0;
        while self.bytes - start > KEPT_BYTES_MAX / 2 {
            match self.lengths.pop_front() {
                Some(length) => start += length,
                None => break,
            }
        }
        let mut rest = vec![0; (self.bytes - start) as usize];
        self.file.read_exact_at(&mut rest, start)?;
        self.file.write_all_at(&rest, 0)?;
        self.bytes = rest.len() as u64;
        self.file.set_len(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::{Incarnation, Version};
    use std::time::Duration;

    fn abort(version: u64) -> Record {
        Record::Abort {
            incarnation: Incarnation(1),
            version: Version(version),
            level: Some(Level::Memory),
            code: Code::Io,
            text: "no space".into(),
        }
    }

    #[test]
    fn kept_records_are_found_again_and_bounded() {
        let (mut kept, fd) = Kept::create().unwrap();
        for version in 0..30_000 {
            kept.add(&abort(version), 7).unwrap();
            assert!(kept.bytes <= KEPT_BYTES_MAX);
        }
        let (again, records) = Kept::adopt(fd.try_clone().unwrap(), 7);
        assert_eq!(again.bytes, kept.bytes);
        assert_eq!(records.last(), Some(&abort(29_999)));
        assert!(records.len() > 1000);
        // The records of another job are not taken.
        assert!(Kept::adopt(fd.try_clone().unwrap(), 8).1.is_empty());
        // One that is cut off is not there, those before it are.
        let file = std::fs::File::from(fd.try_clone().unwrap());
        file.set_len(kept.bytes - 1).unwrap();
        assert_eq!(Kept::adopt(fd, 7).1.len(), records.len() - 1);
    }

    fn commit(version: u64) -> Record {
        Record::Commit {
            incarnation: Incarnation(1),
            version: Version(version),
            level: Level::Shared,
            ballot: 1,
            ranks: 1,
            parts: Vec::new(),
        }
    }

    #[test]
    fn a_kept_record_that_is_removed_is_not_found_again() {
        let (mut kept, fd) = Kept::create().unwrap();
        for record in [abort(1), commit(2), abort(3)] {
            kept.add(&record, 7).unwrap();
        }
        kept.remove(&commit(2), 7).unwrap();
        kept.remove(&commit(4), 7).unwrap();
        kept.add(&abort(5), 7).unwrap();
        assert_eq!(Kept::adopt(fd, 7).1, [abort(1), abort(3), abort(5)]);
    }

    /// The agent calls it void: one that is started anew must not find it decided.
    #[test]
    fn a_decision_that_shared_storage_refuses_is_not_left_in_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let (work, done) = crossbeam_channel::unbounded();
        let at = |name: &str| Arc::new(Vault::create(&folder.path().join(name), 7).unwrap());
        let (store, shared) = (at("node"), at("shared"));
        let mut recorder = Recorder::start(Means {
            store: Arc::clone(&store),
            job_hash: 7,
            kept: None,
            owed: Vec::new(),
            marked: [Incarnation(0); 2],
            work: Reports::unwatched(work),
        })
        .unwrap();
        let mut persist = |record: Record| -> Result<()> {
            recorder.persist(Op(1), record, Some(Arc::clone(&shared)));
            recorder.turn(false);
            let told = done.recv_timeout(Duration::from_secs(20));
            let Ok(Work::Together(mut told)) = told else {
                panic!("nothing was told");
            };
            match told.pop() {
                Some(Work::Persisted { result, .. }) => result.map(drop),
                _ => panic!("something else was told"),
            }
        };
        persist(commit(2)).unwrap();
        let there = folder.path().join("shared");
        std::fs::remove_dir_all(&there).unwrap();
        std::fs::write(&there, "no directory").unwrap();
        persist(commit(3)).unwrap_err();
        // One that was reported before is not taken back.
        persist(commit(2)).unwrap_err();
        let found = store.records().scan().unwrap().records;
        assert!(found.contains(&commit(2)), "{found:?}");
        assert!(!found.contains(&commit(3)), "{found:?}");
    }

    #[test]
    fn records_asked_for_together_are_written_together_and_told_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (work, done) = crossbeam_channel::unbounded();
        let mut recorder = Recorder::start(Means {
            store: Arc::new(Vault::create(folder.path(), 7).unwrap()),
            job_hash: 7,
            kept: None,
            owed: Vec::new(),
            marked: [Incarnation(0); 2],
            work: Reports::unwatched(work),
        })
        .unwrap();
        let patience = Duration::from_secs(20);
        let told = || -> Vec<Op> {
            let Ok(Work::Together(told)) = done.recv_timeout(patience) else {
                panic!("nothing was told");
            };
            let op = |work| match work {
                Work::Persisted { op, result } => {
                    assert_eq!(result.unwrap(), None);
                    op
                }
                _ => panic!("something else was told"),
            };
            told.into_iter().map(op).collect()
        };
        for number in 1..=3 {
            recorder.persist(Op(number), abort(number.into()), None);
            recorder.turn(true);
        }
        assert!(done.is_empty(), "there was more to do");
        recorder.turn(false);
        assert_eq!(told(), [Op(1), Op(2), Op(3)]);
        // However much there is to do, a record waits for so many turns only.
        recorder.persist(Op(4), abort(4), None);
        (0..TURNS_MAX).for_each(|_| recorder.turn(true));
        assert_eq!(told(), [Op(4)]);
        // What must not overtake records takes those along that wait.
        recorder.persist(Op(5), abort(5), None);
        let (after, when) = crossbeam_channel::bounded(1);
        recorder.run(move || after.send(()).unwrap()).unwrap();
        when.recv_timeout(patience).unwrap();
        assert_eq!(done.len(), 1, "durable before that ran");
    }
}
