//! An object on its way: a put if it is short, else an upload in parts.
//!
//! Invariants: parts are of one size but for the last, as some stores ask for; a part is sent by
//! the thread that completes it, which is what holds up who writes faster than the store takes;
//! memory is what has been written of parts that are not complete.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{MultipartId, ObjectStoreExt, PutPayload};
use outlive_vault::{Draft, Object, WriteError};
use serde::{Deserialize, Serialize};

use crate::client::{Client, wait};
use crate::error::write_error;
use crate::object::Stored;

/// Most parts that an object may have: S3's limit, with some left.
const PARTS_MAX: u64 = 9_900;

/// A part of which not all was written.
struct Partial {
    bytes: Vec<u8>,
    written: u64,
}

#[derive(Default)]
struct State {
    partial: BTreeMap<u64, Partial>,
    sent: BTreeMap<u64, PartId>,
    stage: Stage,
}

/// How far it is: nothing is completed twice.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Open,
    /// All of it stands where its bytes go.
    Whole,
    /// A part of it, or its end, was refused.
    Failed,
    /// Somebody goes on with it.
    Left,
}

/// An upload. Dropped, it is aborted, and what stands under its name stays.
pub(crate) struct Upload {
    client: Client,
    /// Where its bytes go.
    path: Path,
    /// Where it belongs, if that is elsewhere: something stands there, which stays until this was
    /// looked at.
    place: Option<Path>,
    /// What people know it by.
    shown: String,
    length: u64,
    part_bytes: u64,
    id: Mutex<Option<MultipartId>>,
    state: Mutex<State>,
}

/// What a later upload must know to go on with an earlier one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Kept {
    /// Where its bytes go.
    path: String,
    length: u64,
    part_bytes: u64,
    id: MultipartId,
    /// What the store said of each part that it has.
    parts: Vec<(u64, String)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parts of so many bytes at least, so many more that they suffice.
fn part_bytes(length: u64, least: u64) -> u64 {
    let needed = length.div_ceil(PARTS_MAX);
    needed.next_multiple_of(least.clamp(1, 1 << 20)).max(least)
}

impl Upload {
    pub fn new(
        client: &Client,
        (path, place): (Path, Option<Path>),
        shown: String,
        (length, least): (u64, u64),
    ) -> Upload {
        let part_bytes = match length > least {
            true => part_bytes(length, least),
            false => least,
        };
        Upload {
            client: client.clone(),
            path,
            place,
            shown,
            length,
            part_bytes,
            id: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Goes on with an upload of an earlier process or try; none if that was of something else.
    pub fn resume(
        client: &Client,
        (at, drafts): (Path, &Path),
        shown: String,
        (length, least): (u64, u64),
        kept: &[u8],
    ) -> Option<Upload> {
        let kept: Kept = serde_json::from_slice(kept).ok()?;
        let path = Path::parse(&kept.path).ok()?;
        let place = match path == at {
            true => None,
            false if path.prefix_matches(drafts) => Some(at),
            false => return None,
        };
        let upload = Upload::new(client, (path, place), shown, (length, least));
        if upload.is_short() || (kept.length, kept.part_bytes) != (length, upload.part_bytes) {
            return None;
        }
        let parts = kept.parts.into_iter();
        let parts = parts.map(|(part, content_id)| (part, PartId { content_id }));
        lock(&upload.state).sent = parts.collect();
        *lock(&upload.id) = Some(kept.id);
        Some(upload)
    }

    /// One request carries all.
    fn is_short(&self) -> bool {
        self.length <= self.part_bytes
    }

    fn length_of(&self, part: u64) -> u64 {
        (self.length - part * self.part_bytes).min(self.part_bytes)
    }

    /// Takes what is written, and hands out the parts that are complete with it.
    fn take(&self, mut at: u64, parts: &[IoSlice<'_>]) -> Vec<(u64, Vec<u8>)> {
        let mut state = lock(&self.state);
        let mut complete = Vec::new();
        for mut rest in parts.iter().map(|part| &part[..]) {
            while !rest.is_empty() {
                let part = at / self.part_bytes;
                let (length, from) = (self.length_of(part), at % self.part_bytes);
                let count = (length - from).min(rest.len() as u64);
                let partial = state.partial.entry(part).or_insert_with(|| Partial {
                    bytes: vec![0; length as usize],
                    written: 0,
                });
                let (now, later) = rest.split_at(count as usize);
                partial.bytes[from as usize..][..now.len()].copy_from_slice(now);
                partial.written += count;
                let done = partial.written >= length && !self.is_short();
                if let Some(all) = done.then(|| state.partial.remove(&part)).flatten() {
                    complete.push((part, all.bytes));
                }
                (rest, at) = (later, at + count);
            }
        }
        complete
    }

    /// The upload's name at the store; begins it.
    fn id(&self) -> Result<MultipartId, WriteError> {
        let mut id = lock(&self.id);
        if let Some(known) = &*id {
            return Ok(known.clone());
        }
        let made = wait(self.client.parts.create_multipart(&self.path));
        let made = made.map_err(|error| write_error(&self.shown, "begin the upload of", &error))?;
        *id = Some(made.clone());
        Ok(made)
    }

    fn send(&self, part: u64, bytes: Vec<u8>) -> Result<(), WriteError> {
        let sent = self.id().and_then(|id| {
            let payload = PutPayload::from(bytes);
            let parts = &self.client.parts;
            let request = parts.put_part(&self.path, &id, part as usize, payload);
            wait(request).map_err(|error| write_error(&self.shown, "upload", &error))
        });
        let mut state = lock(&self.state);
        match sent {
            Ok(sent) => {
                state.sent.insert(part, sent);
                Ok(())
            }
            Err(error) => {
                state.stage = Stage::Failed;
                Err(error)
            }
        }
    }

    /// The bytes of a short one.
    fn whole(&self) -> Vec<u8> {
        let state = lock(&self.state);
        let partial = state.partial.get(&0);
        partial.map_or_else(|| vec![0; self.length as usize], |it| it.bytes.clone())
    }

    /// Puts it where its bytes go, all of it, once.
    fn complete(&self) -> Result<(), WriteError> {
        let stage = lock(&self.state).stage;
        match stage {
            Stage::Whole => return Ok(()),
            Stage::Failed | Stage::Left => {
                let text = format!("{}: an upload that had failed", self.shown);
                return Err(WriteError::Input(text));
            }
            Stage::Open => {}
        }
        let done = match self.is_short() {
            true => self.put_whole(),
            false => self.end_parts(),
        };
        lock(&self.state).stage = match done {
            Ok(()) => Stage::Whole,
            Err(_) => Stage::Failed,
        };
        done
    }

    fn put_whole(&self) -> Result<(), WriteError> {
        let put = self.client.objects.put(&self.path, self.whole().into());
        wait(put)
            .map(drop)
            .map_err(|error| write_error(&self.shown, "put", &error))
    }

    fn end_parts(&self) -> Result<(), WriteError> {
        for part in 0..self.length.div_ceil(self.part_bytes) {
            let left = {
                let mut state = lock(&self.state);
                match state.sent.contains_key(&part) {
                    true => continue,
                    false => state.partial.remove(&part),
                }
            };
            // What nobody wrote is zero, as in a file.
            let bytes = left.map_or_else(|| vec![0; self.length_of(part) as usize], |it| it.bytes);
            self.send(part, bytes)?;
        }
        let id = self.id()?;
        let sent = lock(&self.state).sent.values().cloned().collect();
        let parts = &self.client.parts;
        let done = wait(parts.complete_multipart(&self.path, &id, sent));
        done.map_err(|error| write_error(&self.shown, "complete the upload of", &error))?;
        lock(&self.id).take();
        Ok(())
    }
}

impl Draft for Upload {
    fn write(&self, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if at.checked_add(bytes).is_none_or(|end| end > self.length) {
            return Err(WriteError::Input(format!(
                "{}: {bytes} bytes at {at} of {}",
                self.shown, self.length
            )));
        }
        let complete = self.take(at, parts);
        complete
            .into_iter()
            .try_for_each(|(part, bytes)| self.send(part, bytes))
    }

    fn read_back(&self) -> Result<Box<dyn Object>, WriteError> {
        let failed = |source| WriteError::Io {
            path: self.shown.clone(),
            doing: "read back",
            source,
        };
        if self.place.is_none() {
            // It has no other place to be looked at than its own, where it would be seen.
            let kind = std::io::ErrorKind::Unsupported;
            return Err(failed(kind.into()));
        }
        self.complete()?;
        let found = Stored::find(&self.client, &self.path).map_err(failed)?;
        Ok(Box::new(found))
    }

    fn finish(&self) -> Result<(), WriteError> {
        self.complete()
    }

    fn seal(self: Box<Self>) -> Result<(), WriteError> {
        self.complete()?;
        let Some(place) = &self.place else {
            return Ok(());
        };
        // One request of the store itself: what stood there is replaced at once.
        let copied = wait(self.client.objects.copy(&self.path, place));
        copied.map_err(|error| write_error(&self.shown, "put in its place", &error))
    }

    fn kept(&self) -> Option<Vec<u8>> {
        let id = lock(&self.id).clone()?;
        let state = lock(&self.state);
        let parts = state.sent.iter();
        let kept = Kept {
            path: self.path.to_string(),
            length: self.length,
            part_bytes: self.part_bytes,
            id,
            parts: parts
                .map(|(part, sent)| (*part, sent.content_id.clone()))
                .collect(),
        };
        serde_json::to_vec(&kept).ok()
    }

    fn has(&self, at: u64, bytes: u64) -> bool {
        let state = lock(&self.state);
        let last = at.saturating_add(bytes.max(1) - 1) / self.part_bytes;
        let mut parts = at / self.part_bytes..=last;
        parts.all(|part| state.sent.contains_key(&part))
    }

    fn leave(self: Box<Self>) {
        lock(&self.id).take();
        // Nothing stands beside its place yet that would have to be removed.
        lock(&self.state).stage = Stage::Left;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Parts that nobody asks for any more cost room until the store's owner removes them.
        if let Some(id) = lock(&self.id).take() {
            let aborted = wait(self.client.parts.abort_multipart(&self.path, &id));
            if let Err(error) = aborted {
                let error = crate::error::io_error(&error);
                tracing::warn!(object = self.shown, %error, "an upload was not aborted");
            }
        }
        if self.place.is_some() && lock(&self.state).stage != Stage::Left {
            let _ = wait(self.client.objects.delete(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_suffice_and_are_long_enough() {
        let least = 8 << 20;
        for length in [least + 1, 1 << 30, 80 << 30, 5 << 40] {
            let part = part_bytes(length, least);
            assert!(part >= least && length.div_ceil(part) <= 10_000, "{length}");
        }
        assert_eq!(part_bytes(1 << 30, least), least);
        assert_eq!(part_bytes(4500, 1000), 1000, "as in the tests");
    }
}
