//! What every store must do, as a test of any.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use outlive_base::{ContainerId, Incarnation, NodeId, Version};

use crate::aligned::{Buffer, PAGE};
use crate::store::{Key, Object, ObjectKind, Put, Space, Store, read_all, read_exact};

/// Objects that a test makes are at most so long.
const BYTES: usize = 5 * PAGE;

macro_rules! holds {
    ($what:expr, $($text:tt)+) => {
        if !$what {
            return Err(format!($($text)+));
        }
    };
}

type Outcome = Result<(), String>;

/// Whether an empty store, of which nobody else makes use, keeps the promises of [`Store`].
///
/// # Errors
/// The first promise that it breaks, for people.
pub fn conform(store: &dyn Store) -> Outcome {
    without_appends(store)?;
    appends_leave_the_rest(store)?;
    what_is_removed_is_gone(store)
}

/// [`conform`] for a store that is only ever what all nodes share, where nobody appends.
///
/// # Errors
/// The first promise that it breaks, for people.
pub fn conform_of_all(store: &dyn Store) -> Outcome {
    without_appends(store)?;
    what_is_removed_is_gone(store)
}

fn without_appends(store: &dyn Store) -> Outcome {
    nothing_is_there(store)?;
    drafts_are_whole_or_absent(store)?;
    ranges_are_read(store)?;
    small_objects_are_put(store)?;
    one_of_many_creates(store)
}

fn told<T, E: std::fmt::Display>(what: Result<T, E>) -> Result<T, String> {
    what.map_err(|error| format!("refused: {error}"))
}

fn container(kind: ObjectKind, version: u64) -> Key {
    let id = ContainerId {
        incarnation: Incarnation(1),
        version: Version(version),
        node: NodeId(2),
    };
    Key::container(kind, id)
}

fn record(name: &str) -> Key {
    Key::record(ObjectKind::Record, name.into())
}

/// Other bytes for each seed, none of them zero.
fn content(bytes: usize, seed: u8) -> Buffer {
    let mut buffer = Buffer::new(bytes);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (at % 251) as u8 ^ (at / 251) as u8 ^ seed | 1;
    }
    buffer
}

fn all(object: &dyn Object) -> Result<Vec<u8>, String> {
    let mut bytes = Buffer::new(told(object.length())? as usize);
    let length = told(object.length())? as usize;
    told(read_exact(object, &mut bytes[..length], 0))?;
    Ok(bytes[..length].to_vec())
}

fn stands(store: &dyn Store, key: &Key, want: &[u8]) -> Outcome {
    for fresh in [false, true] {
        let object = told(store.open(key, fresh))?;
        holds!(all(&*object)? == want, "{key:?}: other bytes");
    }
    let items = told(store.list(key.kind()))?;
    let mut items = items.iter().filter(|item| item.key == *key);
    let item = items.next().ok_or(format!("{key:?}: not listed"))?;
    holds!(items.next().is_none(), "{key:?}: listed twice");
    let bulk = matches!(
        key.kind(),
        ObjectKind::Container | ObjectKind::Partner | ObjectKind::Parity
    );
    let length = item.length.or((!bulk).then_some(want.len() as u64));
    holds!(length == Some(want.len() as u64), "{key:?}: other length");
    holds!(store.tag(key) == Some(item.tag), "{key:?}: another tag");
    told(store.written(key))?;
    holds!(!store.locate(key).is_empty(), "{key:?}: nowhere");
    Ok(())
}

fn absent(store: &dyn Store, key: &Key) -> Outcome {
    let missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    let opened = store.open(key, false).map(drop);
    holds!(opened.is_err_and(missing), "{key:?}: opened");
    holds!(store.get(key, 9).is_err_and(missing), "{key:?}: got");
    let still = store.get_still(key, 9);
    holds!(still.is_err_and(missing), "{key:?}: got still");
    holds!(store.tag(key).is_none(), "{key:?}: has a tag");
    holds!(
        store.written(key).is_err_and(missing),
        "{key:?}: has an age"
    );
    let items = told(store.list(key.kind()))?;
    holds!(items.iter().all(|item| item.key != *key), "{key:?}: listed");
    Ok(())
}

fn nothing_is_there(store: &dyn Store) -> Outcome {
    for kind in [
        ObjectKind::Container,
        ObjectKind::Partner,
        ObjectKind::Record,
    ] {
        holds!(told(store.list(kind))?.is_empty(), "{kind:?}: not empty");
        let key = container(kind, 1);
        absent(store, &key)?;
        told(store.remove(std::slice::from_ref(&key)))?;
        told(store.settle(kind, &[]))?;
    }
    Ok(())
}

/// Written by two threads, page by page, the last first.
fn write(store: &dyn Store, key: &Key, bytes: &[u8], seal: bool) -> Outcome {
    let aligned = bytes.len().is_multiple_of(PAGE);
    let draft = told(store.begin(key, bytes.len() as u64, aligned))?;
    let pages: Vec<&[u8]> = bytes.chunks(PAGE).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(left) = pages
            .len()
            .checked_sub(next.fetch_add(1, Ordering::Relaxed) + 1)
        {
            let (one, two) = pages[left].split_at(pages[left].len() / 2);
            let mut parts = match aligned {
                true => vec![IoSlice::new(pages[left])],
                false => vec![IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)],
            };
            told(draft.write((left * PAGE) as u64, &mut parts))?;
        }
        Outcome::Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mine = work();
        let others = other.join().unwrap_or_else(|_| Err("panicked".into()));
        mine.and(others)
    })?;
    match draft.read_back() {
        Err(error) if error.is_unsupported() && store.tag(key).is_none() => {}
        back => holds!(
            all(&*told(back)?)? == bytes,
            "{key:?}: reads back as other bytes"
        ),
    }
    match seal {
        true => told(draft.seal()),
        false => Ok(()),
    }
}

fn drafts_are_whole_or_absent(store: &dyn Store) -> Outcome {
    for kind in [
        ObjectKind::Container,
        ObjectKind::Partner,
        ObjectKind::Parity,
    ] {
        let key = container(kind, 1);
        let mut seed = 0;
        // The next takes the place of the last, longer or shorter.
        for length in [BYTES, 0, 2 * PAGE, 3 * PAGE - 5, 1, BYTES] {
            let before = store.tag(&key);
            let last = store.open(&key, false).ok();
            let last = last.map(|object| all(&*object)).transpose()?;
            seed += 2;
            let new = content(length, seed);
            write(store, &key, &new[..length], false)?;
            match &last {
                Some(last) => stands(store, &key, last)?,
                None => absent(store, &key)?,
            }
            write(store, &key, &new[..length], true)?;
            stands(store, &key, &new[..length])?;
            holds!(store.tag(&key) != before, "{key:?}: the same tag");
        }
        // Of two at once the last that is sealed stands.
        let (one, two) = (content(PAGE, 50), content(2 * PAGE, 52));
        let first = told(store.begin(&key, PAGE as u64, true))?;
        told(first.write(0, &mut [IoSlice::new(&one)]))?;
        write(store, &key, &two, true)?;
        told(first.seal())?;
        stands(store, &key, &one)?;
    }
    let [own, other] = [ObjectKind::Container, ObjectKind::Partner].map(|kind| container(kind, 1));
    write(store, &own, &content(PAGE, 60), true)?;
    stands(store, &other, &content(PAGE, 50))
}

fn ranges_are_read(store: &dyn Store) -> Outcome {
    let key = container(ObjectKind::Container, 2);
    let want = content(BYTES, 7);
    write(store, &key, &want, true)?;
    let object = told(store.open(&key, false))?;
    let (mut one, mut two) = ([0; 1000], [0; 3]);
    let mut slices = [&mut one[..], &mut [], &mut two].map(IoSliceMut::new);
    told(read_all(&*object, &mut slices, 4000))?;
    holds!(
        one == want[4000..5000] && two == want[5000..5003],
        "another range"
    );
    let count = told(object.read_at(BYTES as u64 - 1, &mut [IoSliceMut::new(&mut one)]))?;
    holds!(count == 1 && one[0] == want[BYTES - 1], "another end");
    for past in [BYTES as u64, BYTES as u64 + 5000] {
        let count = told(object.read_at(past, &mut [IoSliceMut::new(&mut one)]))?;
        holds!(count == 0, "{count} bytes behind the end");
    }
    let cut = read_exact(&*object, &mut one, BYTES as u64 - 999);
    let early = |error: io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    holds!(cut.is_err_and(early), "an end that is none");
    // Reading another time, past what only remembers, gives the same.
    for fresh in [false, true] {
        let again = told(object.again(fresh))?;
        holds!(all(&*again)? == want[..], "other bytes again");
    }
    Ok(())
}

fn put<'a>(key: &Key, bytes: &'a [u8]) -> Put<'a> {
    let (key, space) = (key.clone(), Space::FreeOrKept);
    Put { key, bytes, space }
}

fn small_objects_are_put(store: &dyn Store) -> Outcome {
    let (one, two) = (record("pin-i1-v1.rec"), record("pin-i1-v2.rec"));
    let mark = Key::record(ObjectKind::Mark, "history.rec".into());
    let small = [put(&one, b"1"), put(&two, b""), put(&mark, b"a mark")];
    let mut tags = Vec::new();
    for result in store.put_all(&small) {
        tags.push(told(result)?);
    }
    for (small, tag) in small.iter().zip(&tags) {
        stands(store, &small.key, small.bytes)?;
        holds!(store.tag(&small.key) == Some(*tag), "told another tag");
    }
    let results = store.put_all(&[put(&one, b"another")]);
    holds!(results.len() == 1 && results[0].is_ok(), "{results:?}");
    holds!(store.tag(&one) != Some(tags[0]), "the same tag");
    told(store.settle(ObjectKind::Record, &[one.clone(), two.clone()]))?;
    stands(store, &one, b"another")?;
    stands(store, &two, b"")?;
    for most in [0, 3, 7, 8] {
        let want = &b"another"[..7.min(most)];
        let got = told(store.get(&one, most as u64))?;
        holds!(got == want, "{got:?} of at most {most}");
        let got = told(store.get_still(&one, most as u64))?;
        holds!(got.as_deref() == Some(want), "{got:?} of at most {most}");
    }
    holds!(store.put_all(&[]).is_empty(), "results of nothing");
    Ok(())
}

fn one_of_many_creates(store: &dyn Store) -> Outcome {
    let key = record("commit-i1-v1-shared.rec");
    let each = |writer: u8| store.create(&key, &[writer; 9]).map(|made| (writer, made));
    let outcomes = std::thread::scope(|scope| {
        let writers: Vec<_> = (1..9).map(|it| scope.spawn(move || each(it))).collect();
        let joined = writers.into_iter().map(|thread| thread.join());
        joined.collect::<Vec<_>>()
    });
    let mut made = Vec::new();
    for outcome in outcomes {
        let (writer, mine) = told(outcome.map_err(|_| "panicked")?)?;
        made.extend(mine.then_some(writer));
    }
    holds!(made.len() == 1, "created by {made:?}");
    stands(store, &key, &[made[0]; 9])?;
    holds!(!told(store.create(&key, b"other"))?, "created twice");
    stands(store, &key, &[made[0]; 9])
}

fn appends_leave_the_rest(store: &dyn Store) -> Outcome {
    let key = record("decisions-i1-0000000000000007.log");
    let missing = store.append(&key, 0, &mut [IoSlice::new(b"x")]);
    holds!(missing.is_err_and(|it| it.cut), "appended to nothing");
    absent(store, &key)?;
    let tag = store.put_all(&[put(&key, &[7; PAGE])]).pop();
    let tag = told(tag.ok_or("no result")?)?;
    // Into room that is there, then behind the end.
    let mut want = vec![7; PAGE];
    for (at, length) in [(100, 50), (150, 9000), (9150, 1)] {
        let bytes = content(length, length as u8);
        let (one, two) = bytes[..length].split_at(length / 3);
        let mut parts = [IoSlice::new(one), IoSlice::new(two)];
        let appended = store.append(&key, at as u64, &mut parts);
        told(appended.map_err(|it| it.error))?;
        want.resize(want.len().max(at + length), 0);
        want[at..at + length].copy_from_slice(&bytes[..length]);
        stands(store, &key, &want)?;
        let got = told(store.get_still(&key, u64::MAX >> 1))?;
        holds!(got.as_deref() == Some(&want[..]), "other bytes, still");
    }
    holds!(store.tag(&key) == Some(tag), "another tag");
    Ok(())
}

fn what_is_removed_is_gone(store: &dyn Store) -> Outcome {
    for kind in [
        ObjectKind::Container,
        ObjectKind::Partner,
        ObjectKind::Parity,
        ObjectKind::Record,
        ObjectKind::Mark,
    ] {
        let items = told(store.list(kind))?.into_iter();
        let known = |key: &Key| key.id().is_some() || key.name().contains(".rec");
        let keys: Vec<Key> = items.map(|item| item.key).filter(known).collect();
        holds!(!keys.is_empty(), "{kind:?}: nothing to remove");
        for _ in 0..2 {
            told(store.remove(&keys))?;
            told(store.settle(kind, &[]))?;
        }
        keys.iter().try_for_each(|key| absent(store, key))?;
    }
    // What takes the room of what was removed has none of its bytes.
    for length in [PAGE, BYTES] {
        let key = container(ObjectKind::Partner, 9);
        let new = content(length, 99);
        write(store, &key, &new, true)?;
        stands(store, &key, &new)?;
        told(store.remove(&[key]))?;
    }
    holds!(told(store.room())? > 0, "no room");
    holds!(!store.name().is_empty(), "no name");
    Ok(())
}
