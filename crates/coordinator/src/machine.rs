//! What a member knows by what was agreed on, and its snapshots.
//!
//! Invariants: the state is that of the service after the entries up to `applied`, no matter
//! whether they came one by one or in a snapshot; a snapshot is on the disk before the log
//! forgets what it holds, and is believed only whole.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder,
    Snapshot, SnapshotMeta, StorageError, StorageIOError, StoredMembership,
};
use outlive_base::{Code, Error, Result};
use outlive_control::turns::Kept;
use outlive_launch::{files, input};
use serde::{Deserialize, Serialize};

use crate::frames::{self, End};
use crate::{Answers, Types};

/// What a snapshot's file begins with; the last byte is the version.
const MAGIC: [u8; frames::MAGIC_BYTES] = *b"OLCSNAP\x02";

/// Its file, in a member's directory.
pub(crate) const SNAPSHOT: &str = "snapshot";
/// Longest file that is read: one frame.
const BYTES_MAX: u64 = 65 << 20;

type Meta = SnapshotMeta<u64, ()>;

/// A snapshot as it is kept: what it is of, and the service.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Taken {
    meta: Meta,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
    pub(crate) kept: Kept,
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, ()>,
    snapshot: Option<Taken>,
}

/// The state of one member.
#[derive(Clone, Debug)]
pub(crate) struct Machine(Arc<Mutex<State>>);

fn fault(error: &Error, verb: ErrorVerb) -> StorageError<u64> {
    let error = std::io::Error::other(error.to_string());
    StorageIOError::new(ErrorSubject::Snapshot(None), verb, &error).into()
}

impl Machine {
    /// What the snapshot in a member's directory says, or nothing.
    ///
    /// # Errors
    /// [`outlive_base::Code::Corrupt`], [`outlive_base::Code::FormatUnknown`]; those of the file
    /// system.
    pub(crate) fn open(dir: &Path) -> Result<Machine> {
        let path = dir.join(SNAPSHOT);
        let mut state = State {
            path: path.clone(),
            kept: Kept::default(),
            applied: None,
            membership: StoredMembership::default(),
            snapshot: None,
        };
        match input::read(&path, BYTES_MAX) {
            Err(error) if error.code() == Code::NotFound => {}
            Err(error) => return Err(error),
            Ok(bytes) => {
                let (found, end) = frames::read(&path, &MAGIC, &bytes)?;
                // It was renamed whole: anything else is damage.
                let ([body], End::Whole) = (&found[..], end) else {
                    return Err(frames::damaged(&path, "it is not whole"));
                };
                let taken: Taken = postcard::from_bytes(body)
                    .map_err(|error| frames::damaged(&path, &error.to_string()))?;
                state
                    .adopt(&taken)
                    .map_err(|what| frames::damaged(&path, &what))?;
                state.snapshot = Some(taken);
            }
        }
        Ok(Machine(Arc::new(Mutex::new(state))))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The last entry whose words it holds.
    pub(crate) const fn applied(&self) -> Option<LogId<u64>> {
        self.applied
    }

    fn adopt(&mut self, taken: &Taken) -> std::result::Result<(), String> {
        self.kept = postcard::from_bytes(&taken.bytes).map_err(|error| error.to_string())?;
        self.applied = taken.meta.last_log_id;
        self.membership = taken.meta.last_membership.clone();
        Ok(())
    }

    /// Puts a snapshot on the disk in the place of the one before.
    fn keep(&mut self, taken: Taken) -> Result<()> {
        let body = postcard::to_extend(&taken, Vec::new())
            .map_err(|error| Error::internal(format!("cannot encode: {error}")))?;
        let mut bytes = MAGIC.to_vec();
        frames::put(&mut bytes, &body)?;
        files::write_atomic(&self.path, &bytes)?;
        self.snapshot = Some(taken);
        Ok(())
    }

    fn take(&mut self) -> Result<Taken> {
        let bytes = postcard::to_extend(&self.kept, Vec::new())
            .map_err(|error| Error::internal(format!("cannot encode: {error}")))?;
        let meta = Meta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: self.applied.map_or("0".to_owned(), |id| id.to_string()),
        };
        let taken = Taken { meta, bytes };
        self.keep(taken.clone())?;
        Ok(taken)
    }
}

fn snapshot(taken: Taken) -> Snapshot<Types> {
    Snapshot {
        meta: taken.meta,
        snapshot: Box::new(Cursor::new(taken.bytes)),
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> std::result::Result<Snapshot<Types>, StorageError<u64>> {
        let taken = self.state().take();
        taken
            .map(snapshot)
            .map_err(|error| fault(&error, ErrorVerb::Write))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(
        &mut self,
    ) -> std::result::Result<(Option<LogId<u64>>, StoredMembership<u64, ()>), StorageError<u64>>
    {
        let state = self.state();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> std::result::Result<Vec<Answers>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state();
        let mut answers = Vec::new();
        for entry in entries {
            state.applied = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(batch) => state.kept.apply(&batch),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Vec::new()
                }
            });
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> std::result::Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> std::result::Result<(), StorageError<u64>> {
        let taken = Taken {
            meta: meta.clone(),
            bytes: snapshot.into_inner(),
        };
        let mut state = self.state();
        // On the disk first: what it holds is not in this member's log.
        let path = state.path.clone();
        let adopted = state
            .adopt(&taken)
            .map_err(|what| frames::damaged(&path, &what))
            .and_then(|()| state.keep(taken));
        adopted.map_err(|error| fault(&error, ErrorVerb::Write))
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> std::result::Result<Option<Snapshot<Types>>, StorageError<u64>> {
        Ok(self.state().snapshot.clone().map(snapshot))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use openraft::testing::{StoreBuilder, Suite};
    use tempfile::TempDir;

    use super::*;
    use crate::log::Log;
    use crate::testing::{block_on, entry, harms};

    struct Builder;

    impl StoreBuilder<Types, Log, Machine, TempDir> for Builder {
        async fn build(&self) -> std::result::Result<(TempDir, Log, Machine), StorageError<u64>> {
            let dir = tempfile::tempdir().unwrap();
            let (log, _) = Log::open(dir.path()).unwrap();
            let machine = Machine::open(dir.path()).unwrap();
            Ok((dir, log, machine))
        }
    }

    /// The tests of the consensus library for what keeps its log and state.
    #[test]
    fn storage_is_what_the_consensus_library_asks_for() {
        Suite::test_all(Builder).unwrap();
    }

    #[test]
    fn a_snapshot_holds_what_the_entries_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = Machine::open(dir.path()).unwrap();
        block_on(machine.apply((0..20).map(|index| entry(1, index)))).unwrap();
        assert_eq!(machine.state().kept.service().jobs().count(), 1);
        let taken = block_on(machine.build_snapshot()).unwrap();
        let mut again = Machine::open(dir.path()).unwrap();
        let other = tempfile::tempdir().unwrap();
        let mut sent = Machine::open(other.path()).unwrap();
        block_on(sent.install_snapshot(&taken.meta, taken.snapshot)).unwrap();
        for one in [&mut again, &mut sent] {
            block_on(one.apply((20..30).map(|index| entry(1, index)))).unwrap();
        }
        block_on(machine.apply((20..30).map(|index| entry(1, index)))).unwrap();
        for one in [again, sent] {
            assert_eq!(one.state().kept, machine.state().kept);
            assert_eq!(one.state().applied, machine.state().applied);
        }
    }

    #[test]
    fn each_damage_to_a_snapshot_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = Machine::open(dir.path()).unwrap();
        block_on(machine.apply((0..20).map(|index| entry(1, index)))).unwrap();
        block_on(machine.build_snapshot()).unwrap();
        let path = dir.path().join(SNAPSHOT);
        let good = std::fs::read(&path).unwrap();
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        for bytes in harms(&good, &mut random) {
            std::fs::write(&path, &bytes).unwrap();
            let error = Machine::open(dir.path()).unwrap_err();
            let known = [Code::Corrupt, Code::FormatUnknown].contains(&error.code());
            assert!(known && error.remedy().contains("remove"), "{error}");
        }
        std::fs::write(&path, &good).unwrap();
        let again = Machine::open(dir.path()).unwrap();
        assert_eq!(again.state().kept, machine.state().kept);
    }
}
