//! Full, forbidden, failing and slow storage; cancelled and interrupted writes.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Owned, at, bytes, id, layout, open, rank, store_stream, write_container};
use outlive_base::{Code, Error};
use outlive_vault::{Act, Fate, Faults, Faulty, Key, Vault, WriteOptions};

fn ranks() -> Vec<Owned> {
    vec![rank(0, &[300_000, 5], 1), rank(1, &[9000], 2)]
}

fn files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// Fails the nth transfer, or every seal.
#[derive(Debug)]
struct Fails {
    at: usize,
    seen: AtomicUsize,
    seal: bool,
    kind: io::ErrorKind,
}

impl Faults for Fails {
    fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
        let fails = match act {
            Act::Write => self.seen.fetch_add(1, Ordering::Relaxed) == self.at,
            Act::Seal => self.seal,
            _ => false,
        };
        match fails {
            true => Fate::Fails(self.kind),
            false => Fate::Goes,
        }
    }
}

/// The store in a file's directory with faults in front of it.
fn faulty(path: &Path, faults: Arc<dyn Faults>) -> (Faulty, Key) {
    let (store, key) = at(path);
    (Faulty::new(Arc::new(store), faults), key)
}

#[test]
fn a_write_that_fails_anywhere_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let ranks = ranks();
    let old = layout(id(1, 1, 0), &ranks);
    let sealed = write_container(&path, &old, &WriteOptions::default()).unwrap();
    let new = layout(id(1, 2, 0), &ranks);
    let stream = bytes(&new);
    let mut failures = 0;
    for nth in 0..10 {
        let full = io::ErrorKind::StorageFull;
        let broken = io::ErrorKind::Other;
        for (seal, kind, code) in [(false, full, Code::NoSpace), (true, broken, Code::Io)] {
            for streamed in [false, true] {
                let (store, key) = faulty(
                    &path,
                    Arc::new(Fails {
                        at: if seal { 99 } else { nth },
                        seen: 0.into(),
                        seal,
                        kind,
                    }),
                );
                let options = WriteOptions::default();
                let result = if streamed {
                    let length = stream.len() as u64;
                    outlive_vault::store_stream(&store, &key, &mut &stream[..], length, &options)
                } else {
                    outlive_vault::write_container(&store, &key, &new, &options).map(|_| ())
                };
                match result {
                    Err(error) => {
                        assert_eq!(Error::from(error).code(), code);
                        failures += 1;
                        assert_eq!(files(dir.path()), std::slice::from_ref(&path));
                        open(&path).unwrap().verify(Some(&sealed)).unwrap();
                    }
                    // Fewer transfers than `nth`: it went through.
                    Ok(()) => {
                        write_container(&path, &old, &WriteOptions::default()).unwrap();
                    }
                }
            }
        }
    }
    assert!(failures >= 20, "{failures}");
}

#[test]
fn a_cancelled_write_ends_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    #[derive(Debug)]
    struct Cancels(AtomicBool);
    impl Faults for Cancels {
        fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
            self.0.fetch_or(act == Act::Write, Ordering::Relaxed);
            Fate::Goes
        }
    }
    let cancels = Arc::new(Cancels(false.into()));
    let (store, key) = faulty(&path, cancels.clone());
    let options = WriteOptions {
        cancel: Some(&cancels.0),
        ..WriteOptions::default()
    };
    let ranks = ranks();
    let layout = layout(id(1, 1, 0), &ranks);
    let error = outlive_vault::write_container(&store, &key, &layout, &options).unwrap_err();
    assert_eq!(Error::from(error).code(), Code::CommitAborted);
    cancels.0.store(false, Ordering::Relaxed);
    let stream = bytes(&layout);
    let (reader, length) = (&mut &stream[..], stream.len() as u64);
    let error = outlive_vault::store_stream(&store, &key, reader, length, &options).unwrap_err();
    assert_eq!(Error::from(error).code(), Code::CommitAborted);
    assert!(files(dir.path()).is_empty());
}

/// Its other end is killed after these bytes.
struct Reset<'a>(&'a [u8]);

impl Read for Reset<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(into) {
            Ok(0) => Err(std::io::ErrorKind::ConnectionReset.into()),
            read => read,
        }
    }
}

#[test]
fn a_stream_that_breaks_off_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let ranks = ranks();
    let stream = bytes(&layout(id(1, 1, 0), &ranks));
    let mut short = stream.as_slice().take(stream.len() as u64 - 1);
    let options = WriteOptions::default();
    let error = store_stream(&path, &mut short, stream.len() as u64, &options).unwrap_err();
    let error = Error::from(error);
    // No file is damaged, and no device: the connection is gone.
    assert_eq!(error.code(), Code::Network, "{error}");
    let came = format!("after {} of {} bytes", stream.len() - 1, stream.len());
    assert!(error.reason().contains(&came), "{error}");
    assert!(files(dir.path()).is_empty());
    let mut reset = Reset(&stream[..5000]);
    let error = store_stream(&path, &mut reset, stream.len() as u64, &options).unwrap_err();
    let error = Error::from(error);
    assert_eq!(error.code(), Code::Network, "{error}");
    assert!(error.reason().contains("after 5000 of"), "{error}");
    // A length that is no whole page is stored all the same: the caller will see.
    store_stream(&path, &mut &stream[..5000], 5000, &options).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), &stream[..5000]);
    let error = open(&path).unwrap_err();
    assert_eq!(Error::from(error).code(), Code::Truncated);
}

#[test]
fn missing_and_forbidden_directories_have_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = ranks();
    let layout = layout(id(1, 1, 0), &ranks);
    let path = dir.path().join("no/a.olc");
    assert_eq!(Error::from(open(&path).unwrap_err()).code(), Code::NotFound);
    // Somebody has removed it while the job runs.
    write_container(&path, &layout, &WriteOptions::default()).unwrap();
    open(&path).unwrap().verify(None).unwrap();
    // Permissions do not bind root; a file in the place of a directory binds all.
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    assert!(Vault::create(&file, 1).is_err());
    if !rustix::process::geteuid().is_root() {
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
        std::fs::set_permissions(&closed, mode).unwrap();
        let error =
            write_container(&closed.join("a"), &layout, &WriteOptions::default()).unwrap_err();
        assert_eq!(Error::from(error).code(), Code::Permission);
    }
    let denied = Arc::new(Fails {
        at: 0,
        seen: 0.into(),
        seal: false,
        kind: io::ErrorKind::PermissionDenied,
    });
    let (store, key) = faulty(&dir.path().join("a"), denied);
    let options = WriteOptions::default();
    let error = outlive_vault::write_container(&store, &key, &layout, &options).unwrap_err();
    assert_eq!(Error::from(error).code(), Code::Permission);
}

/// A real file system of 256 KiB, where this process may mount one.
#[test]
fn a_full_file_system_is_reported_and_left_clean() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(dir.path())
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        eprintln!("no mount here: the faults in the tests above stand in");
        return;
    }
    let ranks = ranks();
    let layout = layout(id(1, 1, 0), &ranks);
    let path = dir.path().join("a.olc");
    let result = std::panic::catch_unwind(|| {
        let stream = bytes(&layout);
        let options = WriteOptions::default();
        for _ in 0..2 {
            let error = write_container(&path, &layout, &options).unwrap_err();
            assert_eq!(Error::from(error).code(), Code::NoSpace);
            let length = stream.len() as u64;
            let error = store_stream(&path, &mut &stream[..], length, &options).unwrap_err();
            assert_eq!(Error::from(error).code(), Code::NoSpace);
            assert!(files(dir.path()).is_empty());
        }
        // What fits is written: tmpfs, whatever it says to O_DIRECT.
        let small = [rank(0, &[9000], 1)];
        let small = common::layout(id(1, 2, 0), &small);
        let sealed = write_container(&path, &small, &options).unwrap();
        open(&path).unwrap().verify(Some(&sealed)).unwrap();
    });
    let _ = std::process::Command::new("umount")
        .arg(dir.path())
        .status();
    result.unwrap();
}

/// The child of the test below; does nothing by itself.
#[test]
fn helper_may_start_no_thread() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let Some(dir) = std::env::var_os("OUTLIVE_TEST_NO_THREADS") else {
        return;
    };
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Nproc, none).unwrap();
    if rustix::process::geteuid().is_root() {
        // Root is exempt. Only this thread changes: nothing else runs in the child.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
    }
    assert!(std::thread::Builder::new().spawn(|| {}).is_err());
    let path = Path::new(&dir).join("a.olc");
    let ranks = ranks();
    let layout = layout(id(1, 1, 0), &ranks);
    let sealed = write_container(&path, &layout, &WriteOptions::default()).unwrap();
    let container = open(&path).unwrap();
    container.verify(Some(&sealed)).unwrap();
    for want in &ranks {
        let mut data = outlive_vault::Buffer::new(want.data.len());
        container.read_rank(want.rank, &mut data).unwrap();
        assert!(data[..] == want.wanted()[..]);
    }
    // A short stream is stored all the same; what needs a second thread says so.
    let stream = bytes(&layout);
    let copy = Path::new(&dir).join("b.olc");
    let (options, length) = (WriteOptions::default(), stream.len() as u64);
    store_stream(&copy, &mut &stream[..], length, &options).unwrap();
    assert_eq!(std::fs::read(&copy).unwrap(), stream);
    let stream = vec![0; (4 << 20) + 4096];
    let (options, length) = (WriteOptions::default(), stream.len() as u64);
    let stored = store_stream(&path, &mut &stream[..], length, &options).unwrap_err();
    let sent = container.send_to(&mut Vec::new()).unwrap_err();
    let mut sink = common::Collect::default();
    let received = outlive_vault::receive(&mut &bytes(&layout)[..], None, &mut sink).unwrap_err();
    for error in [stored.into(), sent.into(), received.into()] {
        let error: Error = error;
        assert!(error.reason().starts_with("start a thread"), "{error}");
    }
    container.verify(Some(&sealed)).unwrap();
}

#[test]
fn without_threads_a_copy_is_slower_or_refused_and_nothing_panics() {
    let dir = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_may_start_no_thread", "--nocapture"])
        .env("OUTLIVE_TEST_NO_THREADS", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// The child of the test below; does nothing by itself.
#[test]
fn helper_writes_until_it_is_killed() {
    #[derive(Debug)]
    struct Tells;
    impl Faults for Tells {
        fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
            if matches!(act, Act::Write | Act::Seal) {
                io::Write::write_all(&mut io::stderr(), b"w").unwrap();
            }
            Fate::Goes
        }
    }
    let Some(dir) = std::env::var_os("OUTLIVE_TEST_KILLED_WRITER") else {
        return;
    };
    let (store, key) = faulty(&Path::new(&dir).join("a.olc"), Arc::new(Tells));
    let ranks = ranks();
    let options = WriteOptions::default();
    for version in 1.. {
        let layout = layout(id(1, version, 0), &ranks);
        outlive_vault::write_container(&store, &key, &layout, &options).unwrap();
    }
}

#[test]
fn a_writer_killed_anywhere_leaves_no_half_file_under_a_final_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = Vault::create(dir.path(), 1).unwrap();
    let containers = dir.path().join("containers");
    for transfers in 1..24 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_writes_until_it_is_killed", "--nocapture"])
            .env("OUTLIVE_TEST_KILLED_WRITER", &containers)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = vec![0; transfers];
        let spoke = child.stderr.take().unwrap().read_exact(&mut told);
        child.kill().unwrap();
        child.wait().unwrap();
        spoke.unwrap();
        for path in files(&containers) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                open(&path).unwrap().verify(None).unwrap();
            }
        }
        assert!(
            store.found().unwrap().is_empty(),
            "unfinished files are no containers"
        );
        // The next agent sweeps them.
        Vault::create(dir.path(), 1).unwrap();
        assert!(files(&containers).len() <= 1);
    }
    assert!(
        containers.join("a.olc").exists(),
        "some writes went through"
    );
}
