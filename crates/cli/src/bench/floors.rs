//! What the machine does at best with the bytes that a level must move: the limit of `bench
//! levels` and `bench tiers`.
//!
//! A level takes each protected byte once from memory to memory, sends what its scheme needs
//! over the network and writes what it keeps. All emulated nodes share one machine, so that their
//! bytes are added up and divided by what all of it does at once. The three go on side by side:
//! the slowest alone is the limit. Reading back what was written (P1) is no part of it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use outlive_base::level::StoreKind;
use outlive_base::{Level, Result};
use outlive_vault::groups;
use serde::Serialize;

use super::machine::{Buffer, write_direct};

/// Of a transfer between two ends of a connection.
const CHUNK: usize = 1 << 20;
/// Of a transfer of [`write_direct`].
const WRITE: u64 = 4 << 20;
/// Ends that do not answer are given up.
const BOUND: Duration = Duration::from_secs(120);

/// Bytes that a level must move for each protected byte.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Moves {
    /// From memory to memory: the capture.
    pub memory: f64,
    /// From node to node, the least that the scheme needs.
    pub link: f64,
    /// To storage: containers, copies and parities.
    pub disk: f64,
}

/// What the machine does a second, in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rates {
    /// All ranks copy their memory at once.
    pub memory: f64,
    /// Connections over the loopback device, as many as nodes or cores.
    pub link: f64,
    /// Files that are written past the page cache and synced, as many as nodes or cores.
    pub disk: f64,
}

impl Moves {
    /// Of a level over so many nodes, each a failure domain of its own. Where nodes do not divide
    /// into groups, some have more members and store less (`docs/how-to/levels.md`).
    ///
    /// # Errors
    /// [`outlive_base::Code::Config`] if there are too few nodes for a group.
    pub fn of(level: Level, nodes: u32) -> Result<Moves> {
        let protection = level.protection();
        let (k, m) = (f64::from(protection.k), f64::from(protection.m));
        let domains: Vec<u32> = (0..nodes).collect();
        let groups = groups(level, &domains)?;
        // In a group of n, n - m members' bytes are behind each parity.
        let mean = |of: &dyn Fn(f64) -> f64| match groups.is_empty() {
            true => of(k),
            false => {
                let sizes = groups.iter().map(|group| group.len() as f64);
                let sum: f64 = sizes.map(|n| n * of(n - m)).sum();
                sum / f64::from(nodes)
            }
        };
        let copies = mean(&|k| 1.0 + m / k);
        // Of m copies or parities of a byte one node at least makes all but the first, and sends
        // them on (`docs/design/levels.md`).
        let sent = match m > 0.0 {
            true => mean(&|k| 1.0 + (m - 1.0) / k),
            false => 0.0,
        };
        let (link, disk) = match level.store() {
            StoreKind::Keeper => (sent, 0.0),
            StoreKind::Node | StoreKind::Shared => (sent, copies),
            // Nodes write their containers; the server pulls them and keeps what it adds up.
            StoreKind::Server => (1.0, 1.0),
        };
        Ok(Moves {
            memory: 1.0,
            link,
            disk,
        })
    }

    /// Protected bytes a second at best, and what bounds them.
    pub fn limit(&self, rates: &Rates) -> (f64, &'static str) {
        let bounds = [
            (self.memory, rates.memory, "memory"),
            (self.link, rates.link, "link"),
            (self.disk, rates.disk, "disk"),
        ];
        let bounds = bounds.into_iter().filter(|(moves, ..)| *moves > 0.0);
        let bounds = bounds.map(|(moves, rate, name)| (rate / moves, name));
        bounds
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::INFINITY, "nothing"))
    }
}

fn panicked<T>(_: T) -> io::Error {
    io::Error::other("a thread panicked")
}

/// Bytes a second over so many connections of the loopback device at once, `bytes` in all.
///
/// # Errors
/// What the network says.
pub fn link(bytes: u64, connections: usize) -> io::Result<f64> {
    let connections = connections.max(1);
    let each = (bytes / connections as u64).max(1);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut pairs = Vec::new();
    for _ in 0..connections {
        let from = TcpStream::connect(listener.local_addr()?)?;
        let (to, _) = listener.accept()?;
        from.set_write_timeout(Some(BOUND))?;
        to.set_read_timeout(Some(BOUND))?;
        pairs.push((from, to, vec![1u8; CHUNK], vec![2u8; CHUNK]));
    }
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for (from, to, out, into) in &mut pairs {
            ends.push(scope.spawn(move || {
                let mut left = each;
                while left > 0 {
                    let now = left.min(CHUNK as u64);
                    from.write_all(&out[..now as usize])?;
                    left -= now;
                }
                Ok::<_, io::Error>(())
            }));
            ends.push(scope.spawn(move || {
                let mut left = each;
                while left > 0 {
                    let now = left.min(CHUNK as u64);
                    to.read_exact(&mut into[..now as usize])?;
                    left -= now;
                }
                Ok(())
            }));
        }
        ends.into_iter()
            .try_for_each(|end| end.join().map_err(panicked)?)
    })?;
    Ok((each * connections as u64) as f64 / start.elapsed().as_secs_f64())
}

/// Files that are written at once, with their buffers, held and touched.
pub struct Disk {
    buffers: Vec<Buffer>,
}

impl Disk {
    pub fn new(files: usize) -> Disk {
        let buffers = (0..files.max(1)).map(|_| Buffer::new());
        Disk {
            buffers: buffers.collect(),
        }
    }

    /// Bytes a second with which files of `bytes` in all come into being in a directory.
    ///
    /// # Errors
    /// What storage says.
    pub fn write(&mut self, dir: &Path, bytes: u64) -> io::Result<f64> {
        let files = self.buffers.len() as u64;
        // Whole transfers: no file system takes less past the page cache.
        let each = (bytes / files).max(1).next_multiple_of(WRITE);
        let slowest = std::thread::scope(|scope| {
            let buffers = self.buffers.iter_mut().enumerate();
            let ends: Vec<_> = buffers
                .map(|(nth, buffer)| {
                    let path = dir.join(format!("floor-{nth}"));
                    scope.spawn(move || write_direct(&path, each, buffer))
                })
                .collect();
            ends.into_iter().try_fold(0.0f64, |slowest, end| {
                Ok::<f64, io::Error>(slowest.max(end.join().map_err(panicked)??))
            })
        })?;
        Ok((each * files) as f64 / slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(level: &str, nodes: u32) -> (f64, f64, f64) {
        let moves = Moves::of(level.parse().unwrap(), nodes).unwrap();
        (moves.memory, moves.link, moves.disk)
    }

    #[test]
    fn a_level_must_move_what_its_scheme_says() {
        assert_eq!(of("memory", 1), (1.0, 0.0, 0.0));
        assert_eq!(of("disk", 4), (1.0, 0.0, 1.0));
        assert_eq!(of("shared", 4), (1.0, 0.0, 1.0));
        assert_eq!(of("partner", 4), (1.0, 1.0, 2.0));
        assert_eq!(of("xor:3", 3), (1.0, 1.0, 1.5));
        assert_eq!(of("xor:5", 5), (1.0, 1.0, 1.25));
        assert_eq!(of("rs:4+2", 6), (1.0, 1.25, 1.5));
        assert_eq!(of("rs:2+2", 4), (1.0, 1.5, 2.0));
        assert_eq!(of("memory-server:4", 4), (1.0, 1.0, 1.0));
    }

    #[test]
    fn groups_with_more_members_store_less() {
        // One group of five: a parity of four.
        assert_eq!(of("xor:3", 5), (1.0, 1.0, 1.25));
        // Groups of three and of four.
        let (_, _, disk) = of("xor:3", 7);
        assert!((disk - (3.0 * 1.5 + 4.0 * (1.0 + 1.0 / 3.0)) / 7.0).abs() < 1e-12);
        let few = Moves::of("rs:4+2".parse().unwrap(), 5).unwrap_err();
        assert_eq!(few.code(), outlive_base::Code::Config);
    }

    #[test]
    fn the_slowest_way_is_the_limit() {
        let rates = Rates {
            memory: 8e9,
            link: 3e9,
            disk: 1e9,
        };
        let limit = |level: &str, nodes| {
            let moves = Moves::of(level.parse().unwrap(), nodes).unwrap();
            moves.limit(&rates)
        };
        assert_eq!(limit("memory", 4), (8e9, "memory"));
        assert_eq!(limit("disk", 4), (1e9, "disk"));
        assert_eq!(limit("partner", 4), (0.5e9, "disk"));
        assert_eq!(limit("rs:2+2", 4), (0.5e9, "disk"));
        let slow = Rates {
            link: 0.3e9,
            ..rates
        };
        let moves = Moves::of("rs:2+2".parse().unwrap(), 4).unwrap();
        let (limit, by) = moves.limit(&slow);
        assert!((limit - 0.2e9).abs() < 1.0 && by == "link", "{limit} {by}");
    }

    #[test]
    fn floors_are_measured_and_leave_nothing() {
        assert!(link(3 << 20, 2).unwrap() > 0.0);
        let dir = tempfile::tempdir().unwrap();
        assert!(Disk::new(2).write(dir.path(), 1).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
