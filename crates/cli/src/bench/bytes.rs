//! What the bytes of a small checkpoint cost by themselves: the limit of `bench small`.
//!
//! One node's container is summed, written past the page cache, synced, named, read back and
//! summed again; meanwhile it goes over TCP to a peer that does the same, and an older file is
//! removed at both. Two threads, one connection, nothing else: no agreement, no records, no
//! messages.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::{Buffer, direct};

/// Peers that do not answer are given up.
const BOUND: Duration = Duration::from_secs(60);

/// Processor seconds of this thread.
pub(super) fn used() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Where one of the two keeps its copies.
struct Folder {
    folder: File,
    temporary: PathBuf,
    names: [PathBuf; 2],
    turn: usize,
}

impl Folder {
    fn new(at: &Path) -> io::Result<Folder> {
        std::fs::create_dir_all(at)?;
        Ok(Folder {
            folder: File::open(at)?,
            temporary: at.join("temporary"),
            names: [at.join("0"), at.join("1")],
            turn: 0,
        })
    }

    /// Writes the buffer so that it lasts, reads it back and removes the copy before.
    fn keep(&mut self, buffer: &mut Buffer, back: &mut Buffer) -> io::Result<()> {
        let name = &self.names[self.turn % 2];
        let file = direct(
            OpenOptions::new().write(true).create(true).truncate(true),
            &self.temporary,
        )?;
        file.write_all_at(buffer.all(), 0)?;
        file.sync_data()?;
        std::fs::rename(&self.temporary, name)?;
        self.folder.sync_all()?;
        let read = direct(OpenOptions::new().read(true), name)?;
        read.read_exact_at(back.all(), 0)?;
        let length = back.all().len();
        std::hint::black_box(outlive_codec::sums(back.all(), &[], length));
        if self.turn > 0 {
            std::fs::remove_file(&self.names[(self.turn + 1) % 2])?;
        }
        self.turn += 1;
        Ok(())
    }
}

fn peer(place: &Path, listener: &TcpListener, bytes: usize, times: usize) -> io::Result<f64> {
    let (mut buffer, mut back) = (Buffer::of(bytes), Buffer::of(bytes));
    let mut place = Folder::new(place)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(BOUND))?;
    let start = used();
    for _ in 0..times {
        stream.read_exact(buffer.all())?;
        place.keep(&mut buffer, &mut back)?;
        stream.write_all(&[1])?;
    }
    Ok(used() - start)
}

fn node(place: &Path, mut stream: TcpStream, bytes: usize, times: usize) -> io::Result<f64> {
    let (mut buffer, mut back) = (Buffer::of(bytes), Buffer::of(bytes));
    let mut place = Folder::new(place)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    let start = used();
    for _ in 0..times {
        std::hint::black_box(outlive_codec::sums(buffer.all(), &[], bytes));
        place.keep(&mut buffer, &mut back)?;
        stream.write_all(buffer.all())?;
        stream.read_exact(&mut [0])?;
    }
    Ok(used() - start)
}

/// Milliseconds of processor time for one copy of `bytes` at a node and at its partner.
///
/// # Errors
/// What storage or the network says.
pub fn measure(dir: &Path, bytes: usize, times: usize) -> io::Result<f64> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (here, there) = (dir.join("bytes-node"), dir.join("bytes-peer"));
    let both = std::thread::scope(|scope| {
        let peer = scope.spawn(|| peer(&there, &listener, bytes, times));
        let mine = node(&here, stream, bytes, times)?;
        let other = peer
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a panic")))?;
        Ok::<f64, io::Error>(mine + other)
    })?;
    std::fs::remove_dir_all(here)?;
    std::fs::remove_dir_all(there)?;
    Ok(both * 1e3 / times.max(1) as f64)
}
