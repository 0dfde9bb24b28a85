use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::fault::Fault;
use crate::wire::Part;

const LONG: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

fn store(hold: Duration) -> Store {
    let store = Store::new(Pool::new(8 << 20, true).unwrap(), 8 << 20, 20, hold);
    store.admit("job", 6 << 20);
    store.admit("other", 6 << 20);
    store
}

fn part(offset: u64, length: u64) -> Part {
    Part {
        name: "r".into(),
        offset,
        length,
    }
}

fn code<T>(outcome: Outcome<T>) -> Code {
    match outcome {
        Err(Fault::Told(error)) => error.code(),
        Err(Fault::Gone(error)) => panic!("{error}"),
        Ok(_) => panic!("it went well"),
    }
}

fn make(store: &Store, job: &str, name: &str, bytes: u64) -> Outcome<bool> {
    store.allocate(job, name, bytes, RegionKind::Plain, &mut || Ok(()))
}

fn hold<'a>(store: &'a Store, part: &Part, how: How, bound: Duration) -> Outcome<Hold<'a>> {
    store.hold("job", part, how, bound, &mut || Ok(()))
}

#[test]
fn quota_and_memory_are_kept_and_come_back() {
    let store = store(LONG);
    assert!(make(&store, "job", "r", 5 << 20).unwrap());
    assert_eq!(code(make(&store, "job", "more", 2 << 20)), Code::NoSpace);
    // The other job's quota would allow it; the memory is not there.
    assert_eq!(code(make(&store, "other", "r", 4 << 20)), Code::NoSpace);
    assert!(make(&store, "other", "r", 3 << 20).unwrap());
    assert_eq!(store.room("job"), (8 << 20, 0, 6 << 20, 5 << 20));
    store.delete("job", "r", &mut || Ok(())).unwrap();
    assert_eq!(store.room("other"), (8 << 20, 5 << 20, 6 << 20, 3 << 20));
    assert!(make(&store, "job", "r", 5 << 20).unwrap());
    // Ten regions are a job's share of twenty.
    store.delete("other", "r", &mut || Ok(())).unwrap();
    let small = (0..12).map(|nth| make(&store, "job", &nth.to_string(), 1));
    assert_eq!(small.filter(|made| made.is_ok()).count(), 9);
}

#[test]
fn what_overlaps_waits_and_what_does_not_does_not() {
    let store = store(LONG);
    make(&store, "job", "r", 100).unwrap();
    let writes = hold(&store, &part(10, 10), How::Write, NOW).unwrap();
    let _beside = hold(&store, &part(20, 10), How::Write, NOW).unwrap();
    let _empty = hold(&store, &part(15, 0), How::Read, NOW).unwrap();
    assert_eq!(
        code(hold(&store, &part(19, 1), How::Read, NOW)),
        Code::TimedOut
    );
    writes.finish().unwrap();
    let _one = hold(&store, &part(10, 10), How::Read, NOW).unwrap();
    let _two = hold(&store, &part(10, 10), How::Read, NOW).unwrap();
    assert_eq!(
        code(hold(&store, &part(10, 1), How::Write, NOW)),
        Code::TimedOut
    );
    assert_eq!(store.stat("job", "r").unwrap().puts, 1);
}

/// Readers that keep coming do not keep a writer out for ever.
#[test]
fn who_comes_first_is_served_first() {
    let store = store(LONG);
    make(&store, "job", "r", 100).unwrap();
    let reads = hold(&store, &part(0, 10), How::Read, NOW).unwrap();
    thread::scope(|scope| {
        let writer =
            scope.spawn(|| hold(&store, &part(0, 10), How::Write, LONG).map(|it| it.finish()));
        // Once the writer waits, no reader gets in before it.
        while hold(&store, &part(0, 10), How::Read, NOW).is_ok() {
            thread::yield_now();
        }
        drop(reads);
        assert!(matches!(writer.join().unwrap(), Ok(Ok(()))));
    });
    assert!(hold(&store, &part(0, 10), How::Read, NOW).is_ok());
}

#[test]
fn a_part_that_was_begun_is_torn_until_it_is_put_whole() {
    let store = store(LONG);
    make(&store, "job", "r", 100).unwrap();
    drop(hold(&store, &part(10, 10), How::Write, NOW).unwrap());
    assert!(
        store.stat("job", "r").unwrap().torn.is_empty(),
        "nothing was written"
    );
    let begun = hold(&store, &part(10, 10), How::Write, NOW).unwrap();
    begun.begin();
    drop(begun);
    assert_eq!(
        code(hold(&store, &part(0, 100), How::Read, NOW)),
        Code::Incomplete
    );
    assert!(hold(&store, &part(0, 10), How::Read, NOW).is_ok());
    hold(&store, &part(5, 10), How::Write, NOW)
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(store.stat("job", "r").unwrap().torn, [(15, 20)]);
    hold(&store, &part(0, 100), How::Write, NOW)
        .unwrap()
        .finish()
        .unwrap();
    assert!(hold(&store, &part(0, 100), How::Read, NOW).is_ok());
}

/// A client that is stopped with the memory in its hands: others go on, and what it writes when
/// it wakes up reaches nobody.
#[test]
fn a_writer_that_took_too_long_cannot_write_any_more() {
    let store = store(NOW);
    make(&store, "job", "r", 100).unwrap();
    hold(&store, &part(0, 100), How::Write, LONG)
        .unwrap()
        .finish()
        .unwrap();
    let sleeper = hold(&store, &part(10, 10), How::LendWrite, LONG).unwrap();
    let (its, number) = (sleeper.file.clone(), sleeper.number);
    its.write_all_at(&[7; 5], 10).unwrap();
    let next = hold(&store, &part(15, 10), How::Write, LONG).unwrap();
    assert_ne!(next.number, number, "the memory was moved");
    next.file.write_all_at(&[1; 10], 15).unwrap();
    next.finish().unwrap();
    assert!(its.write_all_at(&[7; 5], 15).is_err());
    assert_eq!(sleeper.finish().unwrap_err().code(), Code::Incomplete);
    assert_eq!(store.stat("job", "r").unwrap().torn, [(10, 15)]);
    let reads = hold(&store, &part(15, 10), How::Read, LONG).unwrap();
    let mut got = [0; 10];
    reads.file.read_exact_at(&mut got, 15).unwrap();
    assert_eq!(got, [1; 10]);
}

#[test]
fn a_reader_that_took_too_long_is_told() {
    let store = store(NOW);
    make(&store, "job", "r", 100).unwrap();
    let sleeper = hold(&store, &part(0, 50), How::LendRead, LONG).unwrap();
    hold(&store, &part(0, 50), How::Write, LONG)
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(sleeper.finish().unwrap_err().code(), Code::Incomplete);
    assert!(store.stat("job", "r").unwrap().torn.is_empty());
}

#[test]
fn deletion_ends_whoever_waits_or_writes() {
    let store = store(LONG);
    make(&store, "job", "r", 100).unwrap();
    let writes = hold(&store, &part(0, 100), How::Write, NOW).unwrap();
    let (told, waits) = mpsc::channel();
    thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || {
            let mut first = true;
            let mut tick = || {
                if std::mem::take(&mut first) {
                    told.send(()).unwrap();
                }
                Ok(())
            };
            let waited = store.wait("job", "r", 0, LONG, &mut tick);
            assert_eq!(code(waited), Code::NotFound);
        });
        waits.recv().unwrap();
        store.delete("job", "r", &mut || Ok(())).unwrap();
    });
    assert!(writes.file.write_all_at(&[1], 0).is_err());
    assert_eq!(writes.broken().code(), Code::NotFound);
    assert_eq!(writes.finish().unwrap_err().code(), Code::NotFound);
    // Its successor of the same name knows nothing of it.
    make(&store, "job", "r", 100).unwrap();
    let stat = store.stat("job", "r").unwrap();
    assert_eq!((stat.puts, stat.torn.len(), stat.writers), (0, 0, 0));
}

#[test]
fn who_gives_up_waiting_leaves_no_trace() {
    let store = store(LONG);
    make(&store, "job", "r", 100).unwrap();
    let writes = hold(&store, &part(0, 100), How::Write, NOW).unwrap();
    let gone = store.hold("job", &part(0, 1), How::Read, LONG, &mut || {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    });
    assert!(matches!(gone, Err(Fault::Gone(_))));
    writes.finish().unwrap();
    assert!(hold(&store, &part(0, 1), How::Write, NOW).is_ok());
}
