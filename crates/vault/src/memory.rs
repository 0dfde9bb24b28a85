//! A store in memory: for the simulator, and for tests that open many objects.
//!
//! Invariant: an object that was opened stays as it was.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::error::WriteError;
use crate::store::{Draft, Item, Key, Object, ObjectKind, Put, Space, Store, Unappended};

/// Bytes beyond its limit that a store keeps for what must be said when it is full.
const KEPT_BYTES: u64 = 192 << 10;

type Objects = BTreeMap<Key, (u64, Arc<Vec<u8>>)>;

/// Objects in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct Memory {
    objects: Arc<Mutex<(u64, Objects)>>,
    limit: u64,
}

impl Memory {
    /// An empty store with room for `limit` bytes.
    pub fn new(limit: u64) -> Memory {
        Memory {
            objects: Arc::default(),
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Objects)> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, key: &Key, doing: &'static str) -> WriteError {
        WriteError::io(self.locate(key), doing, io::ErrorKind::StorageFull)
    }

    fn find(&self, key: &Key) -> io::Result<Arc<Vec<u8>>> {
        let found = self.lock().1.get(key).map(|(_, bytes)| Arc::clone(bytes));
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Free bytes beside what is there.
fn free(limit: u64, objects: &Objects) -> u64 {
    let used = objects.values().map(|(_, bytes)| bytes.len() as u64).sum();
    limit.saturating_sub(used)
}

fn place((next, objects): &mut (u64, Objects), key: &Key, bytes: Vec<u8>) -> u64 {
    *next += 1;
    objects.insert(key.clone(), (*next, Arc::new(bytes)));
    *next
}

impl Store for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn locate(&self, key: &Key) -> String {
        format!("memory/{:?}/{}", key.kind(), key.name())
    }

    fn begin(&self, key: &Key, length: u64, _: bool) -> Result<Box<dyn Draft>, WriteError> {
        let fits = free(self.limit, &self.lock().1) >= length;
        let length = usize::try_from(length).ok().filter(|_| fits);
        let length = length.ok_or_else(|| self.full(key, "reserve"))?;
        Ok(Box::new(Unsealed {
            store: self.clone(),
            key: key.clone(),
            bytes: Mutex::new(vec![0; length]),
        }))
    }

    fn put_all(&self, small: &[Put<'_>]) -> Vec<Result<u64, WriteError>> {
        let mut all = self.lock();
        let put = |put: &Put<'_>| {
            let limit = match put.space {
                Space::Free => self.limit,
                Space::FreeOrKept | Space::Kept => self.limit.saturating_add(KEPT_BYTES),
            };
            match free(limit, &all.1) >= put.bytes.len() as u64 {
                true => Ok(place(&mut all, &put.key, put.bytes.to_vec())),
                false => Err(self.full(&put.key, "create")),
            }
        };
        small.iter().map(put).collect()
    }

    fn create(&self, key: &Key, bytes: &[u8]) -> Result<bool, WriteError> {
        let mut all = self.lock();
        if all.1.contains_key(key) {
            return Ok(false);
        }
        if free(self.limit, &all.1) < bytes.len() as u64 {
            return Err(self.full(key, "create"));
        }
        place(&mut all, key, bytes.to_vec());
        Ok(true)
    }

    fn append(&self, key: &Key, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Unappended> {
        let failed = |kind: io::ErrorKind| Unappended {
            error: WriteError::io(self.locate(key), "append", kind),
            cut: true,
        };
        let mut all = self.lock();
        let room = free(self.limit, &all.1);
        let found = all.1.get_mut(key);
        let (_, bytes) = found.ok_or_else(|| failed(io::ErrorKind::NotFound))?;
        let new: usize = parts.iter().map(|part| part.len()).sum();
        let end = at.saturating_add(new as u64);
        if end.saturating_sub(bytes.len() as u64) > room {
            return Err(failed(io::ErrorKind::StorageFull));
        }
        let mut at = usize::try_from(at).map_err(|_| failed(io::ErrorKind::StorageFull))?;
        let bytes = Arc::make_mut(bytes);
        bytes.resize(bytes.len().max(at + new), 0);
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }

    fn open(&self, key: &Key, _: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(self.find(key)?))
    }

    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        let bytes = self.find(key)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(bytes[..bytes.len().min(most)].to_vec())
    }

    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.get(key, most).map(Some)
    }

    fn tag(&self, key: &Key) -> Option<u64> {
        self.lock().1.get(key).map(|(tag, _)| *tag)
    }

    fn written(&self, key: &Key) -> io::Result<SystemTime> {
        // It has no clock.
        self.find(key).map(|_| SystemTime::UNIX_EPOCH)
    }

    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        let all = self.lock();
        let mine = all.1.iter().filter(|(key, _)| key.kind() == kind);
        let item = |(key, (tag, bytes)): (&Key, &(u64, Arc<Vec<u8>>))| Item {
            key: key.clone(),
            tag: *tag,
            length: Some(bytes.len() as u64),
        };
        Ok(mine.map(item).collect())
    }

    fn remove(&self, keys: &[Key]) -> Result<(), WriteError> {
        let mut all = self.lock();
        keys.iter().for_each(|key| drop(all.1.remove(key)));
        Ok(())
    }

    fn settle(&self, _: ObjectKind, keys: &[Key]) -> Result<(), WriteError> {
        let absent = keys.iter().find(|key| self.tag(key).is_none());
        absent.map_or(Ok(()), |key| {
            let path = self.locate(key);
            Err(WriteError::io(path, "sync", io::ErrorKind::NotFound))
        })
    }

    fn room(&self) -> io::Result<u64> {
        Ok(free(self.limit, &self.lock().1))
    }
}

struct Unsealed {
    store: Memory,
    key: Key,
    bytes: Mutex<Vec<u8>>,
}

impl Draft for Unsealed {
    fn write(&self, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let new: usize = parts.iter().map(|part| part.len()).sum();
        let start = usize::try_from(at).ok();
        let end = start.and_then(|start| start.checked_add(new));
        let (Some(mut at), Some(end)) = (start, end) else {
            return Err(self.store.full(&self.key, "write"));
        };
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }

    fn read_back(&self) -> Result<Box<dyn Object>, WriteError> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(Arc::new(bytes.clone())))
    }

    fn seal(self: Box<Self>) -> Result<(), WriteError> {
        let Unsealed { store, key, bytes } = *self;
        let bytes = bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
        place(&mut store.lock(), &key, bytes);
        Ok(())
    }
}

impl Object for Arc<Vec<u8>> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let start = usize::try_from(at).map_or(self.len(), |at| at.min(self.len()));
        let mut rest = &self[start..];
        for slice in into {
            let count = slice.len().min(rest.len());
            slice[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
        }
        Ok(self.len() - start - rest.len())
    }

    fn again(&self, _: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(Arc::clone(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_the_promises_of_a_store() {
        crate::conform(&Memory::new(64 << 20)).unwrap();
    }
}
