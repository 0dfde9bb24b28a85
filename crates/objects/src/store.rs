//! [`Objects`]: what all nodes of a job share.

use std::io::{self, IoSlice};
use std::time::SystemTime;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use outlive_base::{Error, JobName, Result};
use outlive_vault::{Draft, Item, Key, Object, ObjectKind, Put, Store, Unappended, WriteError};

use crate::client::{Client, wait};
use crate::draft::Upload;
use crate::error::{io_error, write_error};
use crate::object::Stored;
use crate::url::ObjectStoreUrl;

/// Bytes of a part of an upload. S3 takes 5 MiB at least.
const PART_BYTES: u64 = 8 << 20;
/// Where what has no place yet is looked at.
const DRAFTS: &str = "drafts";
/// All that could be written, for no store says what it has room for.
const ROOM: u64 = u64::MAX >> 1;

/// A job's objects in an object store. Records there are created, never changed: an append is
/// refused, and no log is kept there.
#[derive(Clone, Debug)]
pub struct Objects {
    pub(crate) client: Client,
    pub(crate) root: Path,
    /// What people know the root by.
    shown: String,
    pub(crate) remedy: &'static str,
    part_bytes: u64,
}

impl Objects {
    /// Those of a job at a place, with the credentials of this process's environment. Nothing is
    /// asked of the store yet.
    ///
    /// # Errors
    /// [`outlive_base::Code::Config`] if the environment does not say enough.
    pub fn open(place: &ObjectStoreUrl, job: &JobName) -> Result<Objects> {
        let client = place.connect()?;
        let root: Path = [place.prefix(), job.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .flat_map(|part| part.split('/'))
            .collect();
        Ok(Objects {
            client,
            root,
            shown: format!("{place}/{}", job.as_str()),
            remedy: place.remedy(),
            part_bytes: PART_BYTES,
        })
    }

    #[cfg(test)]
    pub(crate) fn in_memory(part_bytes: u64) -> Objects {
        Objects {
            client: Client::of(object_store::memory::InMemory::new()),
            root: Path::from("there/job"),
            shown: "memory".into(),
            remedy: "none",
            part_bytes,
        }
    }

    fn directory(&self, kind: ObjectKind) -> Path {
        let name = match kind {
            ObjectKind::Container => "containers",
            ObjectKind::Partner => "partner",
            ObjectKind::Parity => "parity",
            ObjectKind::Record => "records",
            ObjectKind::Mark => return self.root.clone(),
        };
        self.root.clone().join(name)
    }

    fn path(&self, key: &Key) -> Path {
        self.directory(key.kind()).join(key.name())
    }

    /// Removes all that the job has here. What others put there under its name goes too.
    ///
    /// # Errors
    /// Those of the store; what is left then goes the next time.
    pub fn remove_all(&self) -> Result<u64> {
        self.remove_below(&self.root)
    }

    /// Removes what killed processes had begun to put in the place of something. Only while no
    /// agent of the job lives.
    ///
    /// # Errors
    /// Those of the store.
    pub fn sweep(&self) -> Result<()> {
        self.remove_below(&self.root.clone().join(DRAFTS)).map(drop)
    }

    fn remove_below(&self, directory: &Path) -> Result<u64> {
        use object_store::ObjectStore;
        wait(async {
            let (mut removed, objects) = (0, &self.client.objects);
            let all = objects.list(Some(directory));
            let paths = futures_util::StreamExt::map(all, |found| Ok(found?.location));
            let mut gone = objects.delete_stream(Box::pin(paths));
            while let Some(result) = futures_util::StreamExt::next(&mut gone).await {
                match result {
                    Ok(_) => removed += 1,
                    Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(self.failed("remove", &error)),
                }
            }
            Ok(removed)
        })
    }

    /// An error for people, with what to look at.
    pub(crate) fn failed(&self, doing: &str, error: &object_store::Error) -> Error {
        self.with_remedy(&Error::io(&self.shown, doing, &io_error(error)))
    }

    /// An error of this store, with what to look at before a start.
    pub fn with_remedy(&self, error: &Error) -> Error {
        let (entity, reason) = (error.entity().clone(), error.reason());
        Error::new(error.code(), entity, reason, self.remedy)
    }
}

/// Tells objects apart: a store gives what has other bytes another tag.
fn tag_of(tag: Option<&str>) -> u64 {
    let text = tag.unwrap_or_default().trim_matches('"');
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

impl Store for Objects {
    fn name(&self) -> String {
        self.shown.clone()
    }

    fn locate(&self, key: &Key) -> String {
        let below = self.path(key);
        let below = below.as_ref().strip_prefix(self.root.as_ref());
        format!("{}{}", self.shown, below.unwrap_or_default())
    }

    fn begin(
        &self,
        key: &Key,
        length: u64,
        _: bool,
    ) -> std::result::Result<Box<dyn Draft>, WriteError> {
        let (path, shown) = (self.path(key), self.locate(key));
        let there = wait(self.client.objects.head(&path));
        let paths = match there {
            Err(object_store::Error::NotFound { .. }) => (path, None),
            Err(error) => return Err(write_error(&shown, "look for", &error)),
            // What is written may be looked at before it takes the place of something.
            Ok(_) => {
                let nonce = crate::client::nonce();
                let draft = format!("{nonce:016x}-{}", key.name());
                (self.root.clone().join(DRAFTS).join(draft), Some(path))
            }
        };
        let lengths = (length, self.part_bytes);
        Ok(Box::new(Upload::new(&self.client, paths, shown, lengths)))
    }

    fn resume(
        &self,
        key: &Key,
        length: u64,
        aligned: bool,
        kept: &[u8],
    ) -> std::result::Result<Box<dyn Draft>, WriteError> {
        let drafts = self.root.clone().join(DRAFTS);
        let places = (self.path(key), &drafts);
        let lengths = (length, self.part_bytes);
        match Upload::resume(&self.client, places, self.locate(key), lengths, kept) {
            Some(upload) => Ok(Box::new(upload)),
            None => self.begin(key, length, aligned),
        }
    }

    fn put_all(&self, small: &[Put<'_>]) -> Vec<std::result::Result<u64, WriteError>> {
        let put = |put: &Put<'_>| {
            let payload = PutPayload::from(put.bytes.to_vec());
            let done = wait(self.client.objects.put(&self.path(&put.key), payload));
            match done {
                Ok(done) => Ok(tag_of(done.e_tag.as_deref())),
                Err(error) => Err(write_error(&self.locate(&put.key), "put", &error)),
            }
        };
        small.iter().map(put).collect()
    }

    fn create(&self, key: &Key, bytes: &[u8]) -> std::result::Result<bool, WriteError> {
        let made = create(&self.client, &self.path(key), bytes);
        made.map_err(|error| write_error(&self.locate(key), "create", &error))
    }

    fn append(
        &self,
        key: &Key,
        _: u64,
        _: &mut [IoSlice<'_>],
    ) -> std::result::Result<(), Unappended> {
        Err(Unappended {
            error: WriteError::Io {
                path: self.locate(key),
                doing: "append to",
                source: io::ErrorKind::Unsupported.into(),
            },
            cut: true,
        })
    }

    fn open(&self, key: &Key, _: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(Stored::find(&self.client, &self.path(key))?))
    }

    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        let object = self.open(key, false)?;
        let length = object.length()?.min(most);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        let read = object.read_at(0, &mut [io::IoSliceMut::new(&mut bytes)])?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.get(key, most).map(Some)
    }

    fn tag(&self, key: &Key) -> Option<u64> {
        let meta = wait(self.client.objects.head(&self.path(key))).ok()?;
        Some(tag_of(meta.e_tag.as_deref()))
    }

    fn written(&self, key: &Key) -> io::Result<SystemTime> {
        let meta = wait(self.client.objects.head(&self.path(key)));
        meta.map(|meta| meta.last_modified.into())
            .map_err(|error| io_error(&error))
    }

    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        let directory = self.directory(kind);
        let listed = wait(self.client.objects.list_with_delimiter(Some(&directory)));
        let listed = listed
            .map_err(|error| io_error(&error))?
            .objects
            .into_iter();
        let item = |meta: ObjectMeta| {
            Some(Item {
                key: Key::new(kind, meta.location.filename()?)?,
                tag: tag_of(meta.e_tag.as_deref()),
                length: Some(meta.size),
            })
        };
        Ok(listed.filter_map(item).collect())
    }

    fn remove(&self, keys: &[Key]) -> std::result::Result<(), WriteError> {
        keys.iter().try_for_each(
            |key| match wait(self.client.objects.delete(&self.path(key))) {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(write_error(&self.locate(key), "remove", &error)),
            },
        )
    }

    fn settle(&self, _: ObjectKind, keys: &[Key]) -> std::result::Result<(), WriteError> {
        // What was answered is durable.
        keys.iter().try_for_each(|key| {
            let there = wait(self.client.objects.head(&self.path(key)));
            there
                .map(drop)
                .map_err(|error| write_error(&self.locate(key), "look for", &error))
        })
    }

    fn room(&self) -> io::Result<u64> {
        match wait(self.client.objects.head(&self.identity_path())) {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(ROOM),
            Err(error) => Err(io_error(&error)),
        }
    }
}

/// True if the object was made; false: one of its name is there.
pub(crate) fn create(
    client: &Client,
    path: &Path,
    bytes: &[u8],
) -> std::result::Result<bool, object_store::Error> {
    use object_store::Error as E;
    let payload = PutPayload::from(bytes.to_vec());
    let options = PutOptions::from(PutMode::Create);
    match wait(client.objects.put_opts(path, payload, options)) {
        Ok(_) => Ok(true),
        Err(E::AlreadyExists { .. } | E::Precondition { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use outlive_vault::{Again, store_again};

    use super::*;

    #[test]
    fn an_object_store_keeps_the_promises_of_a_store() {
        // Every object is in parts, or none is.
        for part_bytes in [1000, PART_BYTES] {
            let store = Objects::in_memory(part_bytes);
            outlive_vault::conform_of_all(&store).unwrap();
        }
    }

    /// What was sent is not kept: an upload that is ended twice would be zeroes.
    #[test]
    fn a_draft_that_is_looked_at_twice_is_what_was_written() {
        for part_bytes in [1000, PART_BYTES] {
            let store = Objects::in_memory(part_bytes);
            let key = Key::new(ObjectKind::Container, "i1-v1-n0.olc").unwrap();
            assert!(store.create(&key, b"damaged").unwrap());
            let bytes = [7; 2500];
            let draft = store.begin(&key, 2500, false).unwrap();
            draft.write(0, &mut [IoSlice::new(&bytes)]).unwrap();
            for _ in 0..2 {
                let back = draft.read_back().unwrap();
                assert_eq!(back.length().unwrap(), 2500);
            }
            assert_eq!(store.get(&key, 9).unwrap(), b"damaged");
            draft.seal().unwrap();
            assert_eq!(store.get(&key, 9999).unwrap(), bytes);
        }
    }

    /// An agent that ends in the middle, and the next one.
    #[test]
    fn an_upload_that_was_left_goes_on_with_what_the_store_has() {
        let store = Objects::in_memory(1000);
        let key = Key::new(ObjectKind::Container, "i1-v1-n0.olc").unwrap();
        let bytes: Vec<u8> = (0..4500_u32).map(|at| (at * 7) as u8).collect();
        let write = |draft: &dyn Draft, range: std::ops::Range<usize>| {
            let part = &bytes[range.clone()];
            draft
                .write(range.start as u64, &mut [IoSlice::new(part)])
                .unwrap();
        };
        let first = store.begin(&key, 4500, false).unwrap();
        assert_eq!(first.kept(), None, "nothing was sent");
        write(&*first, 0..2000);
        write(&*first, 3000..3900);
        let kept = first.kept().unwrap();
        first.leave();
        assert!(
            store.tag(&key).is_none(),
            "it is not there before it is whole"
        );
        let second = store.resume(&key, 4500, false, &kept).unwrap();
        let has = |at, bytes| second.has(at, bytes);
        assert!(has(0, 2000) && has(500, 1) && !has(2000, 1) && !has(1500, 600) && !has(3000, 900));
        write(&*second, 2000..4500);
        second.seal().unwrap();
        assert_eq!(store.get(&key, 9999).unwrap(), bytes);
        // Of something else, and of nothing that can be read, one begins anew.
        for (length, kept) in [(4600, &kept[..]), (4500, b"{"), (500, &kept)] {
            let other = Key::new(ObjectKind::Container, "i1-v2-n0.olc").unwrap();
            let draft = store.resume(&other, length, false, kept).unwrap();
            assert!(!draft.has(0, 1000), "{length}");
        }
    }

    /// The bytes end early once; what came is not read again.
    #[test]
    fn an_interrupted_writing_goes_on_where_it_was() {
        let store = Objects::in_memory(1 << 20);
        let key = Key::new(ObjectKind::Container, "i1-v1-n0.olc").unwrap();
        let bytes: Vec<u8> = (0..(21 << 20) + 5_u32).map(|at| (at / 7) as u8).collect();
        let opened = std::cell::RefCell::new(Vec::new());
        let write = |ends: usize, kept: Option<Vec<u8>>| {
            let mut open = |from: u64| -> std::result::Result<Box<dyn io::Read>, WriteError> {
                opened.borrow_mut().push(from);
                Ok(Box::new(io::Cursor::new(
                    bytes[from as usize..ends].to_vec(),
                )))
            };
            let again = Again {
                open: &mut open,
                kept,
                note: &mut |_| {},
            };
            store_again((&store, &key), bytes.len() as u64, again, &|_| true)
        };
        let broken = write(9 << 20, None).unwrap_err();
        assert!(matches!(broken.error, WriteError::Lost { .. }) && broken.came_further);
        let kept = broken.kept;
        assert!(kept.is_some() && store.tag(&key).is_none());
        write(bytes.len(), kept).unwrap();
        assert_eq!(*opened.borrow(), [0, 8 << 20]);
        assert_eq!(store.get(&key, u64::MAX).unwrap(), bytes);
    }

    #[test]
    fn an_append_is_refused() {
        let store = Objects::in_memory(PART_BYTES);
        let key = Key::new(ObjectKind::Record, "x").unwrap();
        assert!(store.append(&key, 0, &mut []).unwrap_err().cut);
    }

    #[test]
    fn nothing_of_a_job_is_left_and_others_stay() {
        let store = Objects::in_memory(PART_BYTES);
        let other = Objects {
            root: Path::from("there/job2"),
            ..store.clone()
        };
        let key = Key::new(ObjectKind::Record, "a.rec").unwrap();
        assert!(store.create(&key, b"1").unwrap() && other.create(&key, b"2").unwrap());
        assert_eq!(store.remove_all().unwrap(), 1);
        assert!(store.list(ObjectKind::Record).unwrap().is_empty());
        assert_eq!(other.get(&key, 9).unwrap(), b"2");
        assert_eq!(store.remove_all().unwrap(), 0);
    }
}
