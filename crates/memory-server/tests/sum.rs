//! Parity that the server computes of what it pulls, and a lost source made from it.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use outlive_base::rng::Sequence;
use outlive_base::{Code, Ports};
use outlive_memory::wire::{CHUNK_BYTES, Message};
use outlive_memory::{
    Client, Exposure, ReadAt, RegionKind, Rights, Server, ServerOptions, Source, Transport,
};
use outlive_network::channel::{Channel, within};
use support::{BOUND, client, key, rights, server};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn source(at: Option<SocketAddr>, name: &str, length: usize) -> Source {
    Source {
        at,
        name: name.into(),
        offset: 0,
        length: length as u64,
    }
}

fn get(client: &Client, name: &str, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    client.get(name, 0, &mut out).unwrap();
    out
}

/// The definition, byte for byte.
fn xor(all: &[Vec<u8>], length: usize) -> Vec<u8> {
    let at = |nth| {
        all.iter()
            .filter_map(|it| it.get(nth))
            .fold(0, |sum, byte| sum ^ byte)
    };
    (0..length).map(at).collect()
}

/// Sources in other processes' memory, on another server and on the server itself, of any
/// lengths: the sum is that of the definition, and any lost one comes back from it.
#[test]
fn sums_are_those_of_the_definition_and_give_back_what_was_lost() {
    for seed in outlive_base::seeds!(4) {
        let mut random = Sequence::new(seed, 0);
        let server = server(16 << 20, vec![rights("job", 1, None)]);
        let other = support::server(8 << 20, vec![rights("job", 1, None)]);
        let transport = [Transport::Tcp, Transport::Shared][random.below(2) as usize];
        let to = client(&server, "job", 1, transport);
        let beside = client(&other, "job", 1, Transport::Auto);
        let exposure = Exposure::new((ANY.ip(), Ports::ANY), "job", &key(1)).unwrap();
        let count = 1 + random.below(6) as usize;
        let most = 1 + random.below(3 * CHUNK_BYTES as u64);
        let (mut all, mut sources) = (Vec::new(), Vec::new());
        for nth in 0..count {
            let length = random.below(most + 1) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            let name = format!("node-{nth}");
            let at = match random.below(3) {
                0 => {
                    exposure.add(&name, Arc::new(bytes.clone()));
                    Some(exposure.address())
                }
                place => {
                    let (holder, at) = match place {
                        1 => (&to, None),
                        _ => (&beside, Some(other.address())),
                    };
                    holder
                        .allocate(&name, length.max(1) as u64, RegionKind::Plain)
                        .unwrap();
                    holder.put(&name, 0, &bytes).unwrap();
                    at
                }
            };
            sources.push(source(at, &name, length));
            all.push(bytes);
        }
        let longest = all.iter().map(Vec::len).max().unwrap();
        let parity = longest + random.below(50) as usize;
        to.allocate("parity", parity as u64 + 1, RegionKind::Plain)
            .unwrap();
        to.sum("parity", 0, parity as u64, &sources).unwrap();
        assert!(get(&to, "parity", parity) == xor(&all, parity));
        // Each source in turn is lost, and made from the parity and the others.
        for (lost, want) in all.iter().enumerate() {
            let mut left = sources.clone();
            left[lost] = source(None, "parity", parity);
            to.allocate("back", parity as u64 + 1, RegionKind::Plain)
                .unwrap();
            to.sum("back", 0, parity as u64, &left).unwrap();
            assert!(get(&to, "back", want.len()) == *want);
        }
    }
}

/// One whose bytes end in the middle, as it says itself.
struct Failing(usize);

impl ReadAt for Failing {
    fn bytes(&self) -> u64 {
        1 << 40
    }
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        if offset as usize >= self.0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.fill(1);
        Ok(())
    }
}

/// A process that shows the key, sends some chunks, and then is silent or gone.
fn dying(chunks: usize, silent: bool) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind(ANY).unwrap();
    let address = listener.local_addr().unwrap();
    let run = move || {
        let (socket, from) = listener.accept().unwrap();
        let known = |_: &str| Some(Arc::new(key(1)));
        let (mut channel, _) = Channel::accept(socket, from, &known, BOUND).unwrap();
        channel.receive(&mut within(BOUND)).unwrap();
        for _ in 0..chunks {
            let message = Message::Chunk(CHUNK_BYTES as u32).bytes();
            channel.send(&message, &mut within(BOUND)).unwrap();
            channel
                .send_bytes(&[9; CHUNK_BYTES], &mut within(BOUND))
                .unwrap();
        }
        if silent {
            // Until the server gives it up.
            assert!(channel.receive(&mut within(BOUND)).is_err());
        }
    };
    (address, thread::spawn(run))
}

fn impatient(silence: Duration) -> Server {
    let mut options = ServerOptions::new(16 << 20);
    options.jobs = vec![Rights {
        job: "job".into(),
        key: key(1).into(),
        quota: None,
    }];
    options.silence = silence;
    Server::start(&options).unwrap()
}

#[test]
fn a_source_that_is_lost_midway_leaves_the_target_incomplete() {
    let server = impatient(Duration::from_millis(600));
    let to = client(&server, "job", 1, Transport::Auto);
    let length = 4 * CHUNK_BYTES + 5;
    to.allocate("parity", length as u64 + 10, RegionKind::Plain)
        .unwrap();
    let exposure = Exposure::new((ANY.ip(), Ports::ANY), "job", &key(1)).unwrap();
    exposure.add("good", Arc::new(vec![7u8; length]));
    exposure.add("bad", Arc::new(Failing(2 * CHUNK_BYTES)));
    let good = || source(Some(exposure.address()), "good", length);
    let whole = |sources: &[Source]| to.sum("parity", 3, length as u64, sources);
    for (silent, chunks) in [(false, 2), (true, 2), (false, 4)] {
        let (address, thread) = dying(chunks, silent);
        let error = whole(&[good(), source(Some(address), "x", length)]).unwrap_err();
        thread.join().unwrap();
        assert_eq!(error.code(), Code::Network, "{error}");
        assert!(error.to_string().contains(&address.to_string()));
        let torn = to.stat("parity").unwrap().torn;
        assert_eq!(torn, [(3, 3 + length as u64)]);
        let got = to.get("parity", 0, &mut vec![0; length]).unwrap_err();
        assert_eq!(got.code(), Code::Incomplete);
        // What lies beside it was not touched.
        to.get("parity", 0, &mut [0; 3]).unwrap();
        whole(&[good()]).unwrap();
        assert!(get(&to, "parity", length + 3)[3..] == vec![7; length]);
    }
    let own = whole(&[good(), source(Some(exposure.address()), "bad", length)]).unwrap_err();
    assert_eq!(
        own.code(),
        Code::Truncated,
        "what the source itself says: {own}"
    );
    assert!(!to.stat("parity").unwrap().torn.is_empty());
}

#[test]
fn a_source_that_is_not_there_changes_nothing() {
    let server = impatient(Duration::from_secs(20));
    let to = client(&server, "job", 1, Transport::Auto);
    to.allocate("parity", 100, RegionKind::Plain).unwrap();
    to.put("parity", 0, &[5; 100]).unwrap();
    let gone = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
    let strangers = Exposure::new((ANY.ip(), Ports::ANY), "job", &key(2)).unwrap();
    strangers.add("x", Arc::new(vec![1u8; 100]));
    let exposure = Exposure::new((ANY.ip(), Ports::ANY), "job", &key(1)).unwrap();
    exposure.add("short", Arc::new(vec![1u8; 50]));
    for (from, name, code) in [
        (Some(gone), "x", Code::Network),
        (Some(strangers.address()), "x", Code::KeyMismatch),
        (Some(exposure.address()), "none", Code::NotFound),
        (Some(exposure.address()), "short", Code::InvalidArgument),
        (None, "none", Code::NotFound),
        (None, "parity", Code::InvalidArgument),
    ] {
        let error = to
            .sum("parity", 0, 100, &[source(from, name, 100)])
            .unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(get(&to, "parity", 100), [5; 100]);
    }
    let none = to.sum("parity", 0, 100, &[]).unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);
}
