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
//! What concerns shared storage is recorded there next, by another thread (`shared_records.rs`).
//!
//! Invariants: nothing is reported before it is durable or kept; a batch holds at most
//! `BATCH_MAX` records, and those that go beside it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outlive_base::level::StoreKind;
use outlive_base::machine::Op;
use outlive_base::{Code, Error, Incarnation, Result};
use outlive_vault::{Record, Vault};

use crate::kept::Kept;
use crate::memory::Work;
use crate::queue::{Inlet, Outlet, Refused, queue};
use crate::reports::Reports;
use crate::shared_records::{Elsewhere, Here, SharedRecords, mark};

/// Records whose syncs are shared.
const BATCH_MAX: usize = 64;
/// Turns of the agent for which a record waits for others, while there is more to do.
const TURNS_MAX: u32 = 32;
/// Batches of records and other jobs that may wait.
const QUEUE_MAX: usize = 1024;
/// How long work waits for records to go beside.
const BESIDE_MAX: Duration = Duration::from_secs(1);

/// A record to be made durable.
struct Wish {
    op: Op,
    record: Record,
    /// Where else it must stand, if it concerns shared storage.
    shared: Option<Arc<Vault>>,
}

/// Other work, of which a part is records: these share the sync of a batch.
pub struct Beside(Box<dyn FnOnce(&Vault) -> Due + Send>);

/// Its records, and the rest of it, to be done when they are written or refused.
type Due = (Vec<Record>, Box<dyn FnOnce() + Send>);

impl Beside {
    /// Of what says, in the thread that writes records, what it wants written.
    pub fn new(begin: impl FnOnce(&Vault) -> Due + Send + 'static) -> Beside {
        Beside(Box::new(begin))
    }
}

enum Job {
    /// With what goes beside them.
    Records(Vec<Wish>, Option<Beside>),
    /// Anything else that must not overtake records.
    Other(Box<dyn FnOnce() + Send>),
}

/// The thread that writes records, as seen by the agent.
pub struct RecordWriter {
    jobs: Inlet<Job>,
    work: Reports<Work>,
    /// Asked for and not handed on yet: what is asked for together shares its syncs.
    together: Vec<Wish>,
    /// Turns of the agent that the first of them has seen.
    turns: u32,
    /// What waits for records to go beside, and since when.
    beside: Option<(Beside, Instant)>,
}

/// What the thread works with.
pub struct Means {
    /// The node's storage.
    pub store: Arc<Vault>,
    /// Identifies the job in records.
    pub job_hash: u64,
    /// What the keeper holds; `None` without a keeper.
    pub kept: Option<Kept>,
    /// The newest incarnation in which it is marked that versions were committed.
    pub marked: Incarnation,
    /// Records with the keeper that the disk must have before others.
    pub owed: Vec<Record>,
    /// Where completions go.
    pub work: Reports<Work>,
    /// What is to be recorded in shared storage too.
    pub shared: SharedRecords,
}

impl RecordWriter {
    /// Starts the thread. It ends when this is dropped and the queue is empty.
    pub fn start(means: Means) -> Result<RecordWriter> {
        let (jobs, waiting) = queue(QUEUE_MAX);
        let work = means.work.clone();
        std::thread::Builder::new()
            .name("outlive-records".into())
            .spawn(move || work_off(&waiting, means))
            .map_err(|error| Error::io("thread", "start a worker", &error))?;
        Ok(RecordWriter {
            jobs,
            work,
            together: Vec::new(),
            turns: 0,
            beside: None,
        })
    }

    /// Makes a record durable, at the latest `TURNS_MAX` turns from now;
    /// [`Work::Persisted`] tells.
    pub fn persist(&mut self, op: Op, record: Record, shared: Option<Arc<Vault>>) {
        self.together.push(Wish { op, record, shared });
    }

    /// The agent has done a turn. With `more` to do at once, records that it may ask for
    /// then are waited for.
    pub fn turn(&mut self, more: bool) {
        let late = |(_, since): &(Beside, Instant)| since.elapsed() >= BESIDE_MAX;
        if self.together.is_empty() && !self.beside.as_ref().is_some_and(late) {
            return;
        }
        self.turns += 1;
        if !more || self.turns >= TURNS_MAX || self.together.len() >= BATCH_MAX {
            self.hand_on();
        }
    }

    /// Does something beside the next records; if there are none, some time from now, or
    /// when something else is run.
    pub fn run_beside(&mut self, work: Beside) {
        if self.beside.is_some() {
            self.hand_on();
        }
        self.beside = Some((work, Instant::now()));
    }

    /// Lets nothing wait for records any more.
    pub fn hurry(&mut self) {
        self.hand_on();
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
        let beside = self.beside.take().map(|(beside, _)| beside);
        if wishes.is_empty() && beside.is_none() {
            return;
        }
        let Err(refused) = self.jobs.put(Job::Records(wishes, beside)) else {
            return;
        };
        let error = no_room(&refused);
        if let Job::Records(wishes, beside) = refused.into_inner() {
            self.beside = beside.map(|beside| (beside, Instant::now()));
            for wish in wishes {
                let result = Err(error.clone());
                let _ = self.work.send(Work::Persisted {
                    op: wish.op,
                    result,
                    by_shared: false,
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

fn work_off(waiting: &Outlet<Job>, means: Means) {
    let mut means = Thread {
        kept: Arc::new(Mutex::new(means.kept)),
        store: means.store,
        job_hash: means.job_hash,
        marked: means.marked,
        owed: means.owed,
        work: means.work,
        shared: means.shared,
    };
    let mut next = None;
    while let Some(job) = next.take().or_else(|| waiting.take()) {
        let (mut wishes, mut beside) = match job {
            Job::Other(job) => {
                job();
                continue;
            }
            Job::Records(wishes, beside) => (VecDeque::from(wishes), beside),
        };
        while beside.is_none() && wishes.len() < BATCH_MAX && wishes.iter().all(Wish::is_free) {
            match waiting.take_now() {
                Some(Job::Records(more, with)) => {
                    wishes.extend(more);
                    beside = with;
                }
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
            let with = beside.take_if(|_| batch[0].is_free());
            means.write_beside(batch, with);
        }
        means.write_beside(Vec::new(), beside);
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
                level.store() != StoreKind::Node
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

/// [`Means`], of which others may hold a part meanwhile.
struct Thread {
    store: Arc<Vault>,
    job_hash: u64,
    kept: Arc<Mutex<Option<Kept>>>,
    marked: Incarnation,
    owed: Vec<Record>,
    work: Reports<Work>,
    shared: SharedRecords,
}

impl Thread {
    /// Writes a batch and what goes beside it; then the rest of that is done.
    fn write_beside(&mut self, batch: Vec<Wish>, beside: Option<Beside>) {
        let Some(Beside(begin)) = beside else {
            if !batch.is_empty() {
                self.write(batch, &[]);
            }
            return;
        };
        let (more, rest) = begin(&self.store);
        self.write(batch, &more);
        rest();
    }

    /// What of `more` is refused is for the one to find who wants it.
    fn write(&mut self, batch: Vec<Wish>, more: &[Record]) {
        let mut records: Vec<&Record> = batch.iter().map(|wish| &wish.record).collect();
        let stood: Vec<bool> = batch.iter().map(|wish| self.stands_already(wish)).collect();
        // The mark comes before the commit that it tells of.
        for record in &records {
            mark(&mut self.marked, self.store.mark(), record);
        }
        records.extend(more);
        let results: Vec<Result<()>> = match self.pay() {
            Ok(()) => self.persist(&records),
            Err(error) => records.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut told = Vec::with_capacity(batch.len());
        let mut elsewhere = Vec::new();
        let keeper = Arc::clone(&self.kept);
        let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
        for ((wish, result), stood) in batch.into_iter().zip(results).zip(stood) {
            let result = match (result, &mut *keeper) {
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
            let op = wish.op;
            match (wish.shared, result) {
                (Some(shared), Ok(kept)) => elsewhere.push(Elsewhere {
                    op,
                    record: wish.record,
                    shared,
                    stood,
                    kept,
                }),
                (_, result) => told.push(Work::Persisted {
                    op,
                    result,
                    by_shared: false,
                }),
            }
        }
        drop(keeper);
        for what in elsewhere {
            let here = Here {
                store: Arc::clone(&self.store),
                kept: Arc::clone(&self.kept),
                job_hash: self.job_hash,
            };
            self.shared.decide(what, here, self.work.clone());
        }
        if !told.is_empty() {
            let _ = self.work.send(Work::Together(told));
        }
    }
}

impl Thread {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use outlive_base::{Incarnation, Level, Version};
    use std::time::Duration;

    /// Of a node without a keeper.
    pub(crate) fn recorder(
        store: &Arc<Vault>,
        work: crossbeam_channel::Sender<Work>,
    ) -> RecordWriter {
        let means = Means {
            store: Arc::clone(store),
            job_hash: 7,
            kept: None,
            owed: Vec::new(),
            marked: Incarnation(0),
            work: Reports::unwatched(work),
            shared: SharedRecords::start().unwrap(),
        };
        RecordWriter::start(means).unwrap()
    }

    fn abort(version: u64) -> Record {
        Record::Abort {
            incarnation: Incarnation(1),
            version: Version(version),
            level: Some(Level::MEMORY),
            code: Code::Io,
            text: "no space".into(),
        }
    }

    #[test]
    fn records_asked_for_together_are_written_together_and_told_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (work, done) = crossbeam_channel::unbounded();
        let mut recorder = recorder(&Arc::new(Vault::create(folder.path(), 7).unwrap()), work);
        let patience = Duration::from_secs(20);
        let told = || -> Vec<Op> {
            let Ok(Work::Together(told)) = done.recv_timeout(patience) else {
                panic!("nothing was told");
            };
            let op = |work| match work {
                Work::Persisted { op, result, .. } => {
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

    /// What is removed goes under records that share the sync of others, or goes by itself.
    #[test]
    fn what_goes_beside_records_is_written_with_them_and_then_done() {
        let folder = tempfile::tempdir().unwrap();
        let (work, told) = crossbeam_channel::unbounded();
        let store = Arc::new(Vault::create(folder.path(), 7).unwrap());
        let mut recorder = recorder(&store, work);
        let (done, order) = crossbeam_channel::unbounded();
        let beside = |number: u64| {
            let done = done.clone();
            Beside::new(move |store: &Vault| {
                let store = store.clone();
                let rest = move || {
                    let there = store.records().scan().unwrap().records;
                    done.send((number, there)).unwrap();
                };
                (vec![abort(number)], Box::new(rest))
            })
        };
        let patience = Duration::from_secs(20);
        recorder.run_beside(beside(1));
        recorder.turn(false);
        assert!(order.is_empty(), "it waits for records");
        recorder.persist(Op(2), abort(2), None);
        recorder.turn(false);
        let (number, there) = order.recv_timeout(patience).unwrap();
        assert_eq!((number, there), (1, vec![abort(1), abort(2)]));
        assert_eq!(told.len(), 1, "told before the rest is done");
        // Without any, somebody has no time for it, or something else must come after it.
        recorder.run_beside(beside(3));
        recorder.hurry();
        assert_eq!(order.recv_timeout(patience).unwrap().0, 3);
        recorder.run_beside(beside(4));
        let (after, when) = crossbeam_channel::bounded(1);
        recorder.run(move || after.send(()).unwrap()).unwrap();
        when.recv_timeout(patience).unwrap();
        assert_eq!(order.recv().unwrap().0, 4);
        recorder.run_beside(beside(5));
        let until = Instant::now() + patience;
        while order.is_empty() && Instant::now() < until {
            recorder.turn(false);
        }
        assert_eq!(order.recv().unwrap().0, 5, "or so much time has passed");
        assert_eq!(told.len(), 1);
    }
}
