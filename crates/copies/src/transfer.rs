//! This node's copies in shared storage that are made of its containers in node storage, one after the
//! other.
//!
//! Invariants: only what is sound leaves node storage (each frame is checked as it is read); what
//! was written is read back from shared storage before it counts; what turns out to be something
//! else is removed there; so many bytes a second and no more, whatever they are read from.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use outlive_base::{Error, NodeId, Result};
use outlive_control::node::copies::Transferring;
use outlive_vault::{
    Again, Bytes, Key, Part, ReadError, Scrubbing, Sealed, Store, Unwritten, WriteError,
    of_the_sum, read_container, store_again, verify_written,
};

use crate::journal::Journal;
use crate::paced::Paced;
use crate::places::Places;
use crate::rate::Rate;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Makes a copy for shared storage. `None`: it was stopped.
///
/// # Errors
/// What hinders that.
pub fn run(places: &Places, wanted: &Transferring) -> Result<Option<Part>> {
    let part = &wanted.part;
    let (id, length, digest) = (part.id, part.length, part.digest);
    let sealed = Sealed { id, length, digest };
    let to = (&**places.shared.store(), places.shared.container_key(id));
    // One that an agent before this one had brought there, and not told of.
    if is_there((to.0, &to.1), &sealed, wanted) {
        return Ok((!wanted.brake.is_stopped()).then(|| of_all(part)));
    }
    let copied = copy(places, (to.0, &to.1), &sealed, wanted);
    if wanted.brake.is_stopped() {
        return Ok(None);
    }
    copied.map(|()| Some(of_all(part)))
}

/// The part as it lies in shared storage.
fn of_all(part: &Part) -> Part {
    Part {
        holder: NodeId::LAUNCHER,
        parity: None,
        ..part.clone()
    }
}

/// True if all of it is there.
fn is_there((store, key): (&dyn Store, &Key), sealed: &Sealed, wanted: &Transferring) -> bool {
    let mut pace = |bytes| {
        wanted.progress.add(bytes);
        !wanted.brake.is_stopped()
    };
    matches!(
        read_container(store, key, sealed, &mut pace),
        Scrubbing::Whole(_)
    )
}

fn copy(
    places: &Places,
    (store, key): (&dyn Store, &Key),
    sealed: &Sealed,
    wanted: &Transferring,
) -> Result<()> {
    let journal = Journal::of(&places.store);
    let mut kept = journal.take_up(store, sealed);
    let mut since = Instant::now();
    loop {
        let resumed = kept.is_some();
        let Err(broken) = send(places, (store, key), sealed, wanted, (kept, &journal)) else {
            break;
        };
        if broken.came_further {
            since = Instant::now();
        }
        let goes_on = broken.kept.is_some() || broken.came_further;
        // The store may have given up what was begun there: then it is begun anew, once.
        let is_gone = resumed && !broken.came_further && is_absent(&broken.error);
        let waited = since.elapsed() >= Duration::from(wanted.patience);
        // It may also have ended well without its answer.
        if is_gone && is_there((store, key), sealed, wanted) {
            break;
        }
        let again = is_gone || goes_on && is_passing(&broken.error) && !waited;
        if !again || wanted.brake.is_stopped() {
            journal.forget();
            return Err(match broken.error {
                WriteError::Lost { source, .. } => of_the_sum(source),
                error => error.into(),
            });
        }
        tracing::info!(error = %broken.error, "a copy was interrupted");
        kept = broken.kept.filter(|_| !is_gone);
        std::thread::sleep(PAUSE);
    }
    journal.forget();
    let since = Instant::now();
    loop {
        if is_there((store, key), sealed, wanted) || wanted.brake.is_stopped() {
            return Ok(());
        }
        let Err(error) = verify_written(store, key, Some(sealed)) else {
            return Ok(());
        };
        let waited = since.elapsed() >= Duration::from(wanted.patience);
        if waited || !is_unreadable_for_now(&error) {
            return Err(not_the_same((store, key), error));
        }
        tracing::info!(%error, "a copy cannot be read back yet");
        std::thread::sleep(PAUSE);
    }
}

/// Writes what the store has not, and notes what it has.
fn send(
    places: &Places,
    (store, key): (&dyn Store, &Key),
    sealed: &Sealed,
    wanted: &Transferring,
    (kept, journal): (Option<Vec<u8>>, &Journal<'_>),
) -> std::result::Result<(), Unwritten> {
    let own = places.store.container_key(sealed.id);
    let here = &**places.store.store();
    let mut open = |from: u64| -> std::result::Result<Box<dyn Read>, WriteError> {
        let bytes = Bytes::of_container(here, &own, from..sealed.length).map_err(|error| {
            // Told as it is: it is of the container, not of what is written.
            WriteError::Lost {
                path: here.locate(&own),
                expected: sealed.length,
                found: from,
                source: io::Error::other(Error::from(error)),
            }
        })?;
        wanted.progress.goes_on_from(from);
        Ok(Box::new(Paced {
            from: bytes,
            rate: Rate::new(wanted.brake.clone(), wanted.bytes_per_s),
            progress: Some(wanted.progress.clone()),
        }))
    };
    let again = Again {
        open: &mut open,
        kept,
        note: &mut |kept| journal.note(sealed, kept),
    };
    let leaves = |error: &WriteError| is_passing(error) && !wanted.brake.is_stopped();
    store_again((store, key), sealed.length, again, &leaves)
}

/// True if the same may be taken a moment later: a connection ended, a server was busy.
fn is_passing(error: &WriteError) -> bool {
    matches!(error, WriteError::Io { source, .. } if is_for_now(source))
}

/// The same of what is read.
fn is_unreadable_for_now(error: &ReadError) -> bool {
    matches!(error, ReadError::Io { source, .. } if is_for_now(source))
}

fn is_for_now(source: &io::Error) -> bool {
    use io::ErrorKind as E;
    !matches!(
        source.kind(),
        E::NotFound
            | E::PermissionDenied
            | E::Unsupported
            | E::StorageFull
            | E::QuotaExceeded
            | E::ReadOnlyFilesystem
            | E::InvalidData
            | E::InvalidInput
    )
}

fn is_absent(error: &WriteError) -> bool {
    matches!(error, WriteError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// What was written reads back as something else, or not at all.
fn not_the_same((store, key): (&dyn Store, &Key), error: ReadError) -> Error {
    if error.is_damage() || matches!(error, ReadError::Other { .. }) {
        // It is of no use, and would look like a copy.
        let _ = store.remove(std::slice::from_ref(key));
    }
    Error::from(error)
}
