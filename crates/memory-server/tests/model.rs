//! Many clients at once do what they like, and die where they like; after every step the server
//! has what a map of byte vectors has.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use outlive_base::Code;
use outlive_base::rng::Sequence;
use outlive_memory::wire::{CHUNK_BYTES, Message};
use outlive_memory::{Client, RegionKind, Server, Source, Transport};
use support::{BOUND, Raw, client, part, rights, server};

const QUOTA: u64 = 3 << 20;
const NAMES: [&str; 4] = ["a", "b", "c", "ü x"];
const RING: &str = "ring";

/// What a region should have.
struct Model {
    bytes: Vec<u8>,
    torn: Vec<bool>,
    puts: u64,
}

struct Job<'a> {
    server: &'a Server,
    name: String,
    key: u8,
    clients: Vec<Client>,
    random: Sequence,
    regions: BTreeMap<&'static str, Model>,
    ring: Option<VecDeque<Vec<u8>>>,
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

impl Job<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let (first, step) = (self.below(256), 1 + self.below(255));
        (0..length)
            .map(|nth| (first + nth * step + (nth >> 8)) as u8)
            .collect()
    }

    fn client(&mut self) -> usize {
        self.below(3) as usize
    }

    fn used(&self) -> u64 {
        let plain = self.regions.values().map(|it| pages(it.bytes.len() as u64));
        plain.sum::<u64>() + self.ring.as_ref().map_or(0, |_| 4096)
    }

    /// A part of a region that is there, often small, sometimes empty.
    fn part(&mut self) -> Option<(&'static str, usize, usize)> {
        let count = self.regions.len() as u64;
        let nth = (count > 0).then(|| self.below(count))? as usize;
        let (name, length) = self
            .regions
            .iter()
            .nth(nth)
            .map(|(name, it)| (*name, it.bytes.len()))?;
        let start = self.below(length as u64 + 1);
        let most = if self.random.chance(500_000) {
            5000
        } else {
            u64::MAX
        };
        let length = self.below((length as u64 - start).min(most) + 1);
        Some((name, start as usize, length as usize))
    }

    fn allocate(&mut self) {
        let name = NAMES[self.below(4) as usize];
        let huge = self.random.chance(100_000);
        let bytes = 1 + self.below(if huge { 1 << 40 } else { 3 << 19 });
        let nth = self.client();
        let made = self.clients[nth].allocate(name, bytes, RegionKind::Plain);
        match self.regions.get(name) {
            Some(there) if there.bytes.len() as u64 == bytes => assert!(!made.unwrap()),
            Some(_) => assert_eq!(made.unwrap_err().code(), Code::InvalidArgument),
            None if self.used() + pages(bytes) > QUOTA => {
                assert_eq!(made.unwrap_err().code(), Code::NoSpace);
            }
            None => {
                assert!(made.unwrap());
                let model = Model {
                    bytes: vec![0; bytes as usize],
                    torn: vec![false; bytes as usize],
                    puts: 0,
                };
                self.regions.insert(name, model);
            }
        }
    }

    fn delete(&mut self) {
        let name = NAMES[self.below(4) as usize];
        let nth = self.client();
        let deleted = self.clients[nth].delete(name);
        match self.regions.remove(name) {
            Some(_) => deleted.unwrap(),
            None => assert_eq!(deleted.unwrap_err().code(), Code::NotFound),
        }
    }

    fn put(&mut self) {
        let Some((name, start, length)) = self.part() else {
            return;
        };
        let (bytes, nth) = (self.bytes(length as u64), self.client());
        self.clients[nth].put(name, start as u64, &bytes).unwrap();
        self.wrote(name, start, &bytes);
    }

    fn wrote(&mut self, name: &str, start: usize, bytes: &[u8]) {
        let it = self.regions.get_mut(name).unwrap();
        it.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        it.torn[start..start + bytes.len()].fill(false);
        it.puts += 1;
    }

    fn get(&mut self) {
        let Some((name, start, length)) = self.part() else {
            return;
        };
        let nth = self.client();
        let mut got = vec![1; length];
        let done = self.clients[nth].get(name, start as u64, &mut got);
        let it = &self.regions[name];
        if it.torn[start..start + length].contains(&true) {
            assert_eq!(done.unwrap_err().code(), Code::Incomplete);
        } else {
            done.unwrap();
            assert!(
                got == it.bytes[start..start + length],
                "{name} {start} {length}"
            );
        }
    }

    fn beyond(&mut self) {
        let Some((name, ..)) = self.part() else {
            return;
        };
        let (nth, end) = (self.client(), self.regions[name].bytes.len() as u64);
        let big = vec![0; 40_000];
        for offset in [end + 1, end - end.min(39_999), u64::MAX - 5, u64::MAX] {
            let put = self.clients[nth].put(name, offset, &big).unwrap_err();
            assert_eq!(put.code(), Code::InvalidArgument);
            let got = self.clients[nth]
                .get(name, offset, &mut [0; 40_000])
                .unwrap_err();
            assert_eq!(got.code(), Code::InvalidArgument);
        }
    }

    /// A client that dies after some chunks of a put, or holding the memory itself.
    fn die(&mut self) {
        let Some((name, start, length)) = self.part().filter(|(_, _, length)| *length > 0) else {
            return;
        };
        let bytes = self.bytes(length as u64);
        let its = part(name, start as u64, length as u64);
        let torn = if self.random.chance(500_000) {
            let mut raw = Raw::tcp(self.server, &self.name, self.key);
            raw.say(&Message::Put(its, 60_000, None));
            assert_eq!(raw.hear(), Message::Go);
            let count = self.below(1 + length.div_ceil(CHUNK_BYTES) as u64);
            raw.chunks(&bytes, count as usize);
            count > 0
        } else {
            let mut raw = Raw::unix(&self.clients[0], &self.name, self.key);
            let file = raw.lend(its, true);
            let count = self.below(length as u64 + 1) as usize;
            file.write_all_at(&bytes[..count], start as u64).unwrap();
            true
        };
        if torn {
            self.regions.get_mut(name).unwrap().torn[start..start + length].fill(true);
        }
    }

    fn sum(&mut self) {
        let Some((name, start, length)) = self.part() else {
            return;
        };
        let others: Vec<&'static str> = self
            .regions
            .keys()
            .copied()
            .filter(|it| *it != name)
            .collect();
        let (mut want, mut sources, mut torn) = (vec![0; length], Vec::new(), false);
        for other in others {
            let from = self.below(self.regions[other].bytes.len() as u64) as usize;
            let it = &self.regions[other];
            let count = length.min(it.bytes.len() - from);
            torn |= it.torn[from..from + count].contains(&true);
            let bytes = &it.bytes[from..from + count];
            want.iter_mut()
                .zip(bytes)
                .for_each(|(sum, byte)| *sum ^= byte);
            sources.push(Source {
                at: None,
                name: other.into(),
                offset: from as u64,
                length: count as u64,
            });
        }
        if sources.is_empty() {
            return;
        }
        let nth = self.client();
        let done = self.clients[nth].sum(name, start as u64, length as u64, &sources);
        if torn {
            // Refused before anything was written.
            assert_eq!(done.unwrap_err().code(), Code::Incomplete);
        } else {
            done.unwrap();
            self.wrote(name, start, &want);
        }
    }

    fn stat(&mut self) {
        let nth = self.client();
        let about = self.clients[nth].about().unwrap();
        assert_eq!((about.quota, about.used), (QUOTA, self.used()));
        let list = self.clients[nth].list().unwrap();
        let names = list.iter().map(|stat| stat.name.as_str());
        let known = self.regions.keys().copied();
        let mut want: Vec<&str> = known.chain(self.ring.as_ref().map(|_| RING)).collect();
        want.sort_unstable();
        assert_eq!(names.collect::<Vec<_>>(), want);
        for (name, it) in &self.regions {
            let stat = self.clients[nth].stat(name).unwrap();
            assert_eq!((stat.bytes, stat.puts), (it.bytes.len() as u64, it.puts));
            if let Some(before) = it.puts.checked_sub(1) {
                let told = self.clients[nth].wait(name, before, BOUND).unwrap();
                assert_eq!(told, it.puts);
            }
        }
    }

    fn pass(&mut self) {
        let nth = self.client();
        if self.ring.is_none() {
            let made = self.clients[nth].allocate(RING, 3000, RegionKind::Ring);
            if self.used() + 4096 > QUOTA {
                assert_eq!(made.unwrap_err().code(), Code::NoSpace);
                return;
            }
            self.ring = Some(VecDeque::new());
        }
        let length = self.below(1200);
        let message = self.bytes(length);
        let now = Duration::from_millis(1);
        let ring = self.ring.as_mut().unwrap();
        let room = 3000 - ring.iter().map(|it| it.len() + 8).sum::<usize>();
        if self.random.chance(500_000) {
            let pushed = self.clients[nth].push(RING, &message, now);
            if message.len() + 8 <= room {
                pushed.unwrap();
                ring.push_back(message);
            } else {
                assert_eq!(pushed.unwrap_err().code(), Code::TimedOut);
            }
        } else if self.random.chance(200_000) && !ring.is_empty() {
            // A taker that dies with the message in its hands: it stays.
            let mut raw = Raw::tcp(self.server, &self.name, self.key);
            raw.say(&Message::Pop(RING.into(), 60_000));
            assert_eq!(raw.hear(), Message::Length(ring[0].len() as u64));
            drop(raw);
            let taken = self.clients[nth].pop(RING, BOUND);
            assert_eq!(taken.unwrap(), ring.pop_front().unwrap());
        } else {
            match ring.pop_front() {
                Some(want) => assert_eq!(self.clients[nth].pop(RING, BOUND).unwrap(), want),
                None => {
                    let none = self.clients[nth].pop(RING, now).unwrap_err();
                    assert_eq!(none.code(), Code::TimedOut);
                }
            }
        }
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=2 => self.allocate(),
            3 => self.delete(),
            4..=8 => self.put(),
            9..=12 => self.get(),
            13 => self.die(),
            14 => self.sum(),
            15 => self.stat(),
            16 => self.beyond(),
            _ => self.pass(),
        }
    }
}

#[test]
fn clients_of_all_kinds_find_what_a_map_would_hold() {
    for seed in outlive_base::seeds!(3) {
        let jobs: Vec<(String, u8)> = (0..3).map(|nth| (format!("job-{nth}"), nth)).collect();
        let admitted = jobs.iter().map(|(job, key)| rights(job, *key, Some(QUOTA)));
        let server = server(10 << 20, admitted.collect());
        std::thread::scope(|scope| {
            for (name, key) in jobs {
                let server = &server;
                scope.spawn(move || {
                    let transports = [Transport::Auto, Transport::Tcp, Transport::Shared];
                    let connect = |transport| client(server, &name, key, transport);
                    let mut job = Job {
                        server,
                        key,
                        clients: transports.map(connect).into(),
                        random: Sequence::new(seed, key.into()),
                        regions: BTreeMap::new(),
                        ring: None,
                        name: name.clone(),
                    };
                    (0..250).for_each(|_| job.step());
                });
            }
        });
        server.stop();
    }
}

/// Puts of many clients to one part, each of one value throughout: nobody ever gets a mixture.
#[test]
fn nobody_gets_half_of_a_put() {
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    let server = server(4 << 20, vec![rights("job", 1, None)]);
    let bytes = 300_000 + random.below(300_000) as usize;
    let make = |transport| client(&server, "job", 1, transport);
    make(Transport::Auto)
        .allocate("r", bytes as u64, RegionKind::Plain)
        .unwrap();
    std::thread::scope(|scope| {
        for value in 1..5 {
            let transport = [Transport::Tcp, Transport::Shared][value % 2];
            let writer = make(transport);
            scope.spawn(move || {
                for _ in 0..20 {
                    writer.put("r", 0, &vec![value as u8; bytes]).unwrap();
                }
            });
            let reader = make(transport);
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut got = vec![0xff; bytes];
                    reader.get("r", 0, &mut got).unwrap();
                    assert!(got.iter().all(|byte| *byte == got[0]));
                }
            });
        }
    });
    assert_eq!(make(Transport::Auto).stat("r").unwrap().puts, 80);
}
