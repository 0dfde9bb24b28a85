//! Decisions that concern shared storage, recorded there too.
//!
//! A thread of its own does it: shared storage may be slow, or away, for as long as its bounds
//! allow, and what is recorded at the node does not wait for that (P9).
//!
//! A decision that shared storage does not take is taken back at the node too: the agent calls it
//! void, and the next one must not find it. An end of the agent in between has told nobody.
//!
//! Two clusters may run one job, where it was moved while the one before still lives. Each incarnation
//! is created in shared storage by one of them. Who finds a newer one there than its own decides
//! nothing there any more, and removes nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outlive_base::machine::Op;
use outlive_base::{Code, Entity, Error, Incarnation, Result};
use outlive_ledger::{GcPolicy, may_overlook, overlooked, unfinished};
use outlive_vault::{Record, RecordStore, Vault};

use crate::kept::Kept;
use crate::memory::Work;
use crate::reports::Reports;
use crate::workers::Pool;

/// A decision that stands at the node.
pub struct Elsewhere {
    /// Who asked.
    pub op: Op,
    /// The decision.
    pub record: Record,
    /// Where it must stand too.
    pub shared: Arc<Vault>,
    /// It stood at the node before, and may have been told.
    pub stood: bool,
    /// Why it stands with the keeper alone.
    pub kept: Option<Error>,
}

/// Where it stands at the node.
pub struct Here {
    /// Node storage.
    pub store: Arc<Vault>,
    /// What the keeper holds.
    pub kept: Arc<Mutex<Option<Kept>>>,
    /// Identifies the job in records.
    pub job_hash: u64,
}

/// The thread that writes to shared storage, as seen by others. Clones are the same one.
#[derive(Clone)]
pub struct SharedRecords {
    line: Arc<Pool>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The newest incarnation in which it is marked that versions were committed.
    marked: Mutex<Incarnation>,
    /// The newest incarnation that this agent decides in; 0: not known yet.
    opened: AtomicU32,
    /// A removal waits for its turn.
    collects: AtomicBool,
}

impl SharedRecords {
    /// Starts the thread. It ends when the last of these is dropped and its work is done.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start() -> Result<SharedRecords> {
        Ok(SharedRecords {
            line: Arc::new(Pool::start("shared", 1)?),
            state: Arc::default(),
        })
    }

    /// Records a decision; [`Work::Persisted`] tells.
    pub fn decide(&self, what: Elsewhere, here: Here, work: Reports<Work>) {
        let state = Arc::clone(&self.state);
        let what = Arc::new(what);
        let mine = Arc::clone(&what);
        let (here, told) = (Arc::new(here), work.clone());
        let then = Arc::clone(&here);
        let job = move || {
            let result = state.persist(&mine.shared, &mine.record, mine.stood);
            tell(&mine, &then, result, &told);
        };
        if let Err(error) = self.line.run(job) {
            tell(&what, &here, Err(error), &work);
        }
    }

    /// Removes what may go of shared storage, unless that is about to be done. Nobody waits for it.
    pub fn collect(&self, shared: &Arc<Vault>, policy: GcPolicy) {
        if self.state.collects.swap(true, Ordering::Relaxed) {
            return;
        }
        let (state, shared) = (Arc::clone(&self.state), Arc::clone(shared));
        let job = move || {
            state.collects.store(false, Ordering::Relaxed);
            if let Err(error) = state.collect(&shared, &policy) {
                tracing::warn!(%error, "what is not needed any more stays in shared storage");
            }
        };
        if self.line.run(job).is_err() {
            self.state.collects.store(false, Ordering::Relaxed);
        }
    }
}

impl State {
    /// `stood`: the node had recorded it before, so that it may be there by its own doing.
    fn persist(&self, shared: &Vault, record: &Record, stood: bool) -> Result<()> {
        let own = match record {
            Record::Incarnation { number, .. } => number.0,
            // A ballot begins with the incarnation of who decides.
            Record::Commit { ballot, .. } => (ballot >> 32) as u32,
            _ => 0,
        };
        let own = self.opened.load(Ordering::Relaxed).max(own);
        refuse_superseded(shared, Incarnation(own))?;
        let mut marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        persist_shared(shared, &mut marked, record, stood)?;
        self.opened.fetch_max(own, Ordering::Relaxed);
        Ok(())
    }

    fn collect(&self, shared: &Vault, policy: &GcPolicy) -> Result<()> {
        let own = Incarnation(self.opened.load(Ordering::Relaxed));
        // Where that is not there nothing can go; who needs it says so.
        if own == Incarnation(0) || shared.store().room().is_err() {
            return Ok(());
        }
        refuse_superseded(shared, own)?;
        shared.gc(policy).map(drop)
    }
}

/// Refuses an agent whose job was opened by another one since.
fn refuse_superseded(shared: &Vault, own: Incarnation) -> Result<()> {
    let newest = shared.records().newest_opened()?;
    match newest.filter(|newest| *newest > own) {
        None => Ok(()),
        Some(newest) => Err(Error::new(
            Code::JobBusy,
            Entity::File(shared.store().name()),
            format!("another run of the job has opened {newest} there, and this one is {own}"),
            "let one run at a time use a job's store: end this one, or the other",
        )),
    }
}

/// Tells what became of a decision; what shared storage refused is taken back.
fn tell(what: &Elsewhere, here: &Here, there: Result<()>, work: &Reports<Work>) {
    if there.is_err() && !what.stood {
        take_back(&what.record, here);
    }
    let _ = work.send(Work::Together(vec![Work::Persisted {
        op: what.op,
        by_shared: there.is_err(),
        result: there.map(|()| what.kept.clone()),
    }]));
}

/// Removes a decision that was reported nowhere.
fn take_back(record: &Record, here: &Here) {
    if !matches!(record, Record::Commit { .. }) {
        return;
    }
    let removed = here.store.records().remove(record).map_err(Error::from);
    let mut kept = here.kept.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = match &mut *kept {
        Some(kept) => kept.remove(record, here.job_hash),
        None => Ok(()),
    };
    for error in [removed, kept].into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "a decision that shared storage refused stays recorded here");
    }
}

/// Leaves the mark that versions were committed, before the first commit of an incarnation
/// is: who finds no record later must not take that for none.
pub(crate) fn mark(marked: &mut Incarnation, place: &RecordStore, record: &Record) {
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

/// Records a decision in shared storage too, exclusively. A start that stands there and was not
/// recorded at the node before (`stood`) is another run's, even if it says the same: two runs that
/// begin at once restore the same version with the same nodes.
///
/// # Errors
/// [`Code::JobBusy`] if another decision stands there; those of the storage.
fn persist_shared(
    shared: &Vault,
    marked: &mut Incarnation,
    record: &Record,
    stood: bool,
) -> Result<()> {
    mark(marked, shared.mark(), record);
    let may_be_mine = stood || !matches!(record, Record::Incarnation { .. });
    match shared.records().persist_exclusive(record)? {
        outlive_vault::Exclusive::Created => Ok(()),
        outlive_vault::Exclusive::Stands(found) if may_be_mine && same_decision(&found, record) => {
            Ok(())
        }
        // Or it was made just now, and the answer was lost: the next number tells.
        outlive_vault::Exclusive::Stands(found) if found == *record => Err(Error::new(
            Code::Io,
            Entity::File(shared.store().name()),
            "this start stands there already, of another run or of a request whose answer was lost",
            "nothing: the next number is tried",
        )),
        outlive_vault::Exclusive::Stands(_) => Err(Error::new(
            Code::JobBusy,
            Entity::File(shared.store().name()),
            "another run of the job has written a different decision there",
            "let one run at a time use a job's store",
        )),
    }
}

/// What the agent before this one had begun there is not finished.
#[derive(Debug)]
pub struct Unfinished {
    /// Why.
    pub error: Error,
    /// What stands there cannot be read: what was found may stand there or not.
    pub unseen: bool,
}

/// Writes to shared storage what the agent before this one had recorded at its node alone, `own`,
/// when it ended: what is found is taken for decided, and told. What stands there and is damaged here
/// is found: where nothing of shared storage is known here, only if records are `damaged`, for the job may
/// not use it.
///
/// # Errors
/// Those of shared storage. What that lacks and does not take was told to nobody: it is left out of
/// what was found, and decided anew, and is not left at the node, where the next agent would find it
/// decided.
pub fn finish_shared(
    found: &mut Vec<Record>,
    own: &Vault,
    shared: &Vault,
    damaged: bool,
) -> std::result::Result<(), Unfinished> {
    let known = may_overlook(found);
    if !known && !damaged {
        return Ok(());
    }
    let begun = !unfinished(found, &[]).is_empty();
    let there = match shared.records().scan() {
        Ok(there) => there.records,
        Err(error) if known => {
            return Err(Unfinished {
                error: error.into(),
                unseen: begun,
            });
        }
        Err(error) => {
            tracing::info!(%error, "shared storage is not looked at");
            return Ok(());
        }
    };
    found.extend(overlooked(found, &there));
    let missing: Vec<Record> = unfinished(found, &there).into_iter().cloned().collect();
    for (at, record) in missing.iter().enumerate() {
        let Err(error) = persist_shared(shared, &mut Incarnation(0), record, true) else {
            continue;
        };
        for record in &missing[at..] {
            found.retain(|other| other != record);
            if let Err(error) = own.records().remove(record) {
                tracing::warn!(%error, "a decision that shared storage refused stays recorded here");
            }
        }
        let unseen = false;
        return Err(Unfinished { error, unseen });
    }
    Ok(())
}

/// A decision that was replicated again has a higher ballot and is the same.
fn same_decision(found: &Record, new: &Record) -> bool {
    match (found, new) {
        (Record::Commit { parts: found, .. }, Record::Commit { parts: new, .. }) => found == new,
        _ => found == new,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kept::tests::commit;
    use crate::record_writer::tests::recorder;

    /// The agent calls it void: one that is started anew must not find it decided.
    #[test]
    fn a_decision_that_shared_storage_refuses_is_not_left_in_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let (work, done) = crossbeam_channel::unbounded();
        let at = |name: &str| Arc::new(Vault::create(&folder.path().join(name), 7).unwrap());
        let (store, shared) = (at("node"), at("shared"));
        let mut recorder = recorder(&store, work);
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

    /// An agent ended between the two places of two decisions, and shared storage is full.
    #[test]
    fn what_the_agent_before_could_not_finish_is_decided_by_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let own = Vault::create(&folder.path().join("node"), 7).unwrap();
        let faults = Arc::new(crate::faults::Faults::default());
        let directory = Arc::new(outlive_vault::Directory::at(&folder.path().join("shared")));
        let refusing =
            outlive_vault::Faulty::new(directory, Arc::<crate::faults::Faults>::clone(&faults));
        let shared = Vault::shared(Arc::new(refusing), 7);
        persist_shared(&shared, &mut Incarnation(0), &commit(2), false).unwrap();
        for version in 2..=4 {
            own.records().persist(&commit(version)).unwrap();
        }
        let mut found = own.records().scan().unwrap().records;
        faults.set_full(true);
        let unfinished = finish_shared(&mut found, &own, &shared, false).unwrap_err();
        assert!(!unfinished.unseen, "what stands there was read");
        assert_eq!(found, [commit(2)]);
        assert_eq!(own.records().scan().unwrap().records, [commit(2)]);
        own.records().persist(&commit(5)).unwrap();
        found.push(commit(5));
        faults.set_full(false);
        finish_shared(&mut found, &own, &shared, false).unwrap();
        assert_eq!(found, [commit(2), commit(5)]);
        let there = shared.records().scan().unwrap().records;
        assert!(there.contains(&commit(5)) && !there.contains(&commit(4)));
    }

    /// Of one version the node has the decision about another level alone: what stands there is
    /// found, and nothing of a version that the node does not know.
    #[test]
    fn what_stands_there_and_is_damaged_here_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let own = Vault::create(&folder.path().join("node"), 7).unwrap();
        let shared = Vault::create(&folder.path().join("shared"), 7).unwrap();
        for version in 2..=4 {
            persist_shared(&shared, &mut Incarnation(0), &commit(version), false).unwrap();
        }
        let mut elsewhere = commit(3);
        match &mut elsewhere {
            Record::Commit { level, .. } => *level = outlive_base::Level::DISK,
            _ => unreachable!("it is a decision"),
        }
        let mut found = vec![commit(2), elsewhere.clone()];
        finish_shared(&mut found, &own, &shared, false).unwrap();
        assert_eq!(found, [commit(2), elsewhere.clone(), commit(3)]);
        // Where nothing is known of that level, nothing is looked for, unless that may have been damaged.
        for damaged in [false, true] {
            let mut found = vec![elsewhere.clone()];
            finish_shared(&mut found, &own, &shared, damaged).unwrap();
            let there = damaged.then(|| commit(3));
            let all: Vec<Record> = [elsewhere.clone()].into_iter().chain(there).collect();
            assert_eq!(found, all, "{damaged}");
        }
        // The job may have no shared storage at all.
        let folder = folder.path().join("nowhere");
        std::fs::write(&folder, "no directory").unwrap();
        let nowhere = outlive_vault::Directory::of_all(&folder);
        let nowhere = Vault::shared(Arc::new(nowhere), 7);
        let mut found = vec![elsewhere.clone()];
        finish_shared(&mut found, &own, &nowhere, true).unwrap();
        assert_eq!(found, [elsewhere]);
    }

    /// By the coordinator of this incarnation.
    fn commit_of(decider: u64, version: u64) -> Record {
        match commit(version) {
            Record::Commit {
                incarnation,
                version,
                level,
                ranks,
                parts,
                groups,
                ..
            } => Record::Commit {
                incarnation,
                version,
                level,
                ballot: decider << 32 | 1,
                ranks,
                parts,
                groups,
            },
            record => record,
        }
    }

    fn opened(number: u32) -> Record {
        Record::Incarnation {
            number: Incarnation(number),
            restored: None,
            members: Vec::new(),
            ranks: 1,
        }
    }

    /// Where a job was moved while it still runs, one of both decides.
    #[test]
    fn who_was_superseded_decides_and_removes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let shared = Vault::create(&folder.path().join("shared"), 7).unwrap();
        let (old, new) = (State::default(), State::default());
        old.persist(&shared, &opened(3), false).unwrap();
        old.persist(&shared, &commit_of(3, 2), false).unwrap();
        new.persist(&shared, &opened(4), false).unwrap();
        let refused = |result: Result<()>| result.unwrap_err().code() == Code::JobBusy;
        assert!(refused(old.persist(&shared, &commit_of(3, 3), false)));
        // It says the same, and may be another one's.
        let same = old.persist(&shared, &opened(4), false);
        assert_eq!(same.unwrap_err().code(), Code::Io);
        new.persist(&shared, &opened(4), true).unwrap();
        let policy = GcPolicy {
            stable: Default::default(),
            keep: 1,
            in_use: Default::default(),
            levels: Default::default(),
            used: Default::default(),
        };
        assert!(refused(old.collect(&shared, &policy)));
        // What was decided before is decided again by who goes on.
        new.persist(&shared, &commit_of(4, 2), false).unwrap();
        new.persist(&shared, &commit_of(4, 3), false).unwrap();
    }
}
