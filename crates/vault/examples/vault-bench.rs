//! Containers against the bare disk, measured in the same run on held, touched
//! memory: `cargo run --release -p outlive-vault --example vault-bench -- DIR [MiB]`.
//!
//! Prints, per operation, our rate, the rate of plain O_DIRECT transfers of 4 MiB in
//! the best of one to three threads, and the ratio; medians of the repetitions.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use outlive_base::{ContainerId, Incarnation, NodeId, Rank, Version};
use outlive_capture::region::{self, Region};
use outlive_vault::{
    Buffer, Container, ContainerHead, Directory, Key, Layout, ObjectKind, RankImage, Store,
    WriteOptions, receive, write_container,
};

const CHUNK: usize = 4 << 20;
const REPETITIONS: usize = 5;

fn open(path: &Path, write: bool) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .write(write)
        .create(write)
        .truncate(write);
    options
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(path)
}

/// Plain sequential writes, preallocated and synced, as an application would do at best.
fn raw_write(path: &Path, data: &[u8], threads: usize) -> io::Result<()> {
    let file = open(path, true)?;
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::empty(),
        0,
        data.len() as u64,
    )?;
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || {
            while let Some(chunk) = data.chunks(CHUNK).nth(next.fetch_add(1, Ordering::Relaxed)) {
                let at = chunk.as_ptr().addr() - data.as_ptr().addr();
                rustix::io::pwritev(&file, &[IoSlice::new(chunk)], at as u64)?;
            }
            io::Result::Ok(())
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mine = work();
        others
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| io::Error::other("panic"))?)?;
        mine
    })?;
    file.sync_all()
}

fn raw_read(path: &Path, data: &mut [u8], threads: usize) -> io::Result<()> {
    let file = open(path, false)?;
    let length = data.len();
    std::thread::scope(|scope| {
        let part = length.div_ceil(threads).next_multiple_of(CHUNK);
        let readers: Vec<_> = data
            .chunks_mut(part)
            .enumerate()
            .map(|(nth, part_data)| {
                let file = &file;
                scope.spawn(move || {
                    for (chunk, at) in part_data.chunks_mut(CHUNK).zip((0u64..).step_by(CHUNK)) {
                        let offset = (nth * part) as u64 + at;
                        rustix::io::preadv(file, &mut [IoSliceMut::new(chunk)], offset)?;
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        readers
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| io::Error::other("panic"))?)
    })
}

/// Bytes per second of one run, in GiB/s.
fn rate(bytes: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    bytes as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 30)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Runs all in turn, so that a change of the machine's load hits each alike.
fn compare(name: &str, bytes: usize, mut ours: impl FnMut(), mut raw: impl FnMut(usize)) {
    let mut rates = vec![Vec::new(); 4];
    for _ in 0..REPETITIONS {
        for (threads, rates) in rates.iter_mut().enumerate() {
            rates.push(match threads {
                0 => rate(bytes, &mut ours),
                _ => rate(bytes, || raw(threads)),
            });
        }
    }
    let rates: Vec<f64> = rates.into_iter().map(median).collect();
    let limit = rates[1..].iter().copied().fold(0.0, f64::max);
    println!(
        "{name:24} ours {:5.2} GiB/s   limit {limit:5.2} GiB/s   ratio {:4.2}   (raw 1/2/3 threads {:.2}/{:.2}/{:.2})",
        rates[0],
        rates[0] / limit,
        rates[1],
        rates[2],
        rates[3]
    );
}

/// One rank's memory.
struct Into<'a>(&'a mut Buffer);

impl outlive_vault::Sink for Into<'_> {
    fn rank(&mut self, _: Rank, _: &[u8], _: u64) -> outlive_base::Result<&mut [u8]> {
        Ok(self.0)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: vault-bench DIR [MiB]")?;
    let mib: usize = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let bytes = mib << 20;
    let dir = Path::new(&dir).join(format!("vault-bench-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let mut data = Buffer::new(bytes);
    let mut back = Buffer::new(bytes);
    for (nth, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(
            &(nth as u64)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .to_le_bytes(),
        );
    }
    back.fill(1);
    let table = region::encode(&[Region::memory("data", bytes as u64)]);
    let id = ContainerId {
        incarnation: Incarnation(1),
        version: Version(1),
        node: NodeId(0),
    };
    let head = ContainerHead {
        job_hash: 1,
        id,
        ranks_total: 1,
    };
    let layout = || {
        let image = RankImage {
            rank: Rank(0),
            table: &table,
            data: &data,
        };
        Layout::new(head, vec![image]).expect("a valid layout")
    };
    let key = Key::container(ObjectKind::Container, id);
    let store = Directory::at(&dir);
    let (path, raw) = (store.locate(&key), dir.join("raw"));
    compare(
        "write_container",
        bytes,
        || {
            let _ = std::fs::remove_file(&path);
            write_container(&store, &key, &layout(), &WriteOptions::default()).expect("write");
        },
        |threads| {
            let _ = std::fs::remove_file(&raw);
            raw_write(&raw, &data, threads).expect("raw write");
        },
    );
    let open = || Container::open(&store, &key).expect("open");
    let mut scratch = Buffer::new(bytes);
    scratch.fill(1);
    let mut raw_reads = |threads| raw_read(&raw, &mut scratch, threads).expect("raw read");
    compare(
        "read_rank",
        bytes,
        || open().read_rank(Rank(0), &mut back).expect("read"),
        &mut raw_reads,
    );
    compare(
        "verify",
        bytes,
        || {
            open().verify(None).expect("verify");
        },
        &mut raw_reads,
    );
    let checks = rate(bytes, || {
        layout().seal();
    });
    println!(
        "{:24} {checks:5.2} GiB/s on one thread, from memory",
        "checksums of a layout"
    );
    let mut stream = Vec::with_capacity(bytes + (bytes >> 8) + (1 << 20));
    layout()
        .segments()
        .for_each(|part| stream.extend_from_slice(part));
    let received: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            rate(bytes, || {
                receive(&mut &stream[..], None, &mut Into(&mut back)).expect("receive");
            })
        })
        .collect();
    let copied: Vec<f64> = (0..REPETITIONS)
        .map(|_| rate(bytes, || scratch.copy_from_slice(&data)))
        .collect();
    println!(
        "{:24} {:5.2} GiB/s from memory (memcpy {:.2})",
        "receive",
        median(received),
        median(copied)
    );
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
