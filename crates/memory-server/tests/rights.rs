//! Jobs are kept apart, hostile clients harm nobody else, and a server's end is told.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use outlive_base::Code;
use outlive_base::rng::Sequence;
use outlive_memory::wire::{CHUNK_BYTES, Message};
use outlive_memory::{Client, Key, Options, RegionKind, Server, ServerOptions, Transport};
use outlive_network::channel::{Channel, within};
use support::{BOUND, Raw, client, key, options, part, rights, server};

const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Shared];

/// Of a job that never ran, and of one that was deleted and runs again.
#[test]
fn a_key_in_a_file_may_come_later_and_be_another() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("key");
    let mut job = rights("job", 1, None);
    job.key = Key::File(path.clone());
    let server = server(1 << 20, vec![job]);
    let address = server.address().to_string();
    let connect = |of| Client::connect(&address, "job", &key(of), options(Transport::Tcp));
    let refused = |of| connect(of).unwrap_err().code();
    assert_eq!(refused(1), Code::KeyMismatch, "there is none");
    key(1).save(&path).unwrap();
    let before = connect(1).unwrap();
    before.allocate("state", 100, RegionKind::Plain).unwrap();
    std::fs::remove_file(&path).unwrap();
    key(2).save(&path).unwrap();
    assert_eq!(refused(1), Code::KeyMismatch);
    let after = connect(2).unwrap();
    assert_eq!(after.list().unwrap().len(), 1);
    // Who was there stays.
    before.put("state", 0, &[1; 100]).unwrap();
}

#[test]
fn jobs_see_nothing_of_each_other() {
    let jobs = vec![
        rights("one", 1, Some(1 << 20)),
        rights("two", 2, Some(2 << 20)),
    ];
    let server = server(4 << 20, jobs);
    let address = server.address().to_string();
    for transport in BOTH {
        let one = client(&server, "one", 1, transport);
        let two = client(&server, "two", 2, transport);
        one.allocate("same", 300_000, RegionKind::Plain).unwrap();
        one.put("same", 0, &[1; 300_000]).unwrap();
        let mut got = vec![9; 300_000];
        assert_eq!(
            two.get("same", 0, &mut got).unwrap_err().code(),
            Code::NotFound
        );
        assert_eq!(two.delete("same").unwrap_err().code(), Code::NotFound);
        assert!(two.list().unwrap().is_empty());
        two.allocate("same", 300_000, RegionKind::Plain).unwrap();
        two.get("same", 0, &mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == 0), "memory comes empty");
        two.put("same", 0, &[2; 300_000]).unwrap();
        one.get("same", 0, &mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == 1));
        // A quota is the job's own.
        let beyond = one
            .allocate("more", 1 << 20, RegionKind::Plain)
            .unwrap_err();
        assert_eq!(beyond.code(), Code::NoSpace);
        assert!(two.allocate("more", 1 << 20, RegionKind::Plain).unwrap());
        two.delete("more").unwrap();
        two.delete("same").unwrap();
        one.delete("same").unwrap();
        for (job, its) in [("one", 2), ("two", 1), ("three", 1)] {
            let refused = Client::connect(&address, job, &key(its), options(transport));
            assert_eq!(refused.unwrap_err().code(), Code::KeyMismatch);
        }
    }
}

#[test]
fn what_a_client_holds_ends_with_its_region() {
    let server = server(
        4 << 20,
        vec![rights("job", 1, None), rights("other", 2, None)],
    );
    let it = client(&server, "job", 1, Transport::Shared);
    it.allocate("r", 1 << 20, RegionKind::Plain).unwrap();
    it.put("r", 0, &[1; 1 << 20]).unwrap();
    let mut raw = Raw::unix(&it, "job", 1);
    let file = raw.lend(part("r", 0, 10), false);
    it.delete("r").unwrap();
    // All of it is to be had again, whoever still has the descriptor.
    let other = client(&server, "other", 2, Transport::Shared);
    other.allocate("r", 4 << 20, RegionKind::Plain).unwrap();
    assert!(file.read_exact_at(&mut [0; 10], 0).is_err());
    assert!(file.write_all_at(&[1; 10], 0).is_err());
    assert!(file.set_len(4096).is_err(), "it cannot grow");
    raw.say(&Message::Return(true));
    assert!(matches!(raw.hear(), Message::Failed(error) if error.code() == Code::NotFound));
}

/// One that cuts its own region's memory off hurts itself alone.
#[test]
fn memory_that_a_client_cuts_off_is_told_as_lost() {
    let server = server(4 << 20, vec![rights("job", 1, None)]);
    for transport in BOTH {
        let it = client(&server, "job", 1, transport);
        it.allocate("r", 1 << 20, RegionKind::Plain).unwrap();
        let helper = client(&server, "job", 1, Transport::Shared);
        let mut raw = Raw::unix(&helper, "job", 1);
        raw.lend(part("r", 0, 10), false).set_len(0).unwrap();
        raw.say(&Message::Return(true));
        raw.hear();
        let mut out = vec![0; 1 << 20];
        assert_eq!(
            it.get("r", 0, &mut out).unwrap_err().code(),
            Code::Incomplete
        );
        assert_eq!(it.put("r", 0, &out).unwrap_err().code(), Code::Incomplete);
        it.delete("r").unwrap();
        it.allocate("r", 1 << 20, RegionKind::Plain).unwrap();
        it.put("r", 0, &out).unwrap();
        it.delete("r").unwrap();
    }
}

/// Whatever somebody with the key says, the server goes on and the others' bytes stay.
#[test]
fn nonsense_ends_its_own_connection() {
    let server = server(
        4 << 20,
        vec![rights("job", 1, None), rights("bad", 2, None)],
    );
    let good = client(&server, "job", 1, Transport::Auto);
    good.allocate("r", 100_000, RegionKind::Plain).unwrap();
    good.put("r", 0, &[3; 100_000]).unwrap();
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    let bad = client(&server, "bad", 2, Transport::Auto);
    bad.allocate("r", 1000, RegionKind::Plain).unwrap();
    let mut first = vec![
        Message::Go,
        Message::Taken,
        Message::End(None),
        Message::Chunk(7),
        Message::Done(1),
        Message::Return(true),
        Message::Put(part("r", 0, 500), 1, Some(vec![1; 3])),
        Message::Put(part("r", u64::MAX, u64::MAX), 1, Some(vec![1; 3])),
        Message::Get(part("r", 1, u64::MAX), 1, true),
        Message::Put(part("r", 0, u64::MAX), 1, None),
        Message::Allocate("x".into(), u64::MAX, RegionKind::Ring),
        Message::Push("r".into(), u64::MAX, 1, None),
        Message::Lend(part("r", 0, 1), 1, true, u64::MAX),
    ];
    for _ in 0..100 {
        let nth = random.below(first.len() as u64) as usize;
        first.push(first[nth].clone());
    }
    for message in first {
        for mut raw in [Raw::tcp(&server, "bad", 2), Raw::unix(&bad, "bad", 2)] {
            let mut bytes = message.bytes();
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            raw.0.send(&bytes, &mut within(BOUND)).unwrap();
            if random.chance(500_000) {
                // Then bytes that are no record.
                let _ = raw.0.send_bytes(&[7; 100], &mut within(BOUND));
            }
        }
    }
    // Strangers without a key.
    for _ in 0..20 {
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        let noise: Vec<u8> = (0..random.below(300))
            .map(|_| random.below(256) as u8)
            .collect();
        let _ = stranger.write_all(&noise);
    }
    let mut got = vec![0; 100_000];
    good.get("r", 0, &mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 3));
    assert_eq!(good.list().unwrap().len(), 1);
}

/// A put whose client is silent in the middle is given up, and others go on.
#[test]
fn a_silent_writer_holds_nobody_up() {
    let mut options = ServerOptions::new(4 << 20);
    options.jobs = vec![rights("job", 1, None)];
    options.silence = Duration::from_millis(300);
    let server = Server::start(&options).unwrap();
    let it = client(&server, "job", 1, Transport::Tcp);
    it.allocate("r", 1 << 20, RegionKind::Plain).unwrap();
    let mut raw = Raw::tcp(&server, "job", 1);
    raw.say(&Message::Put(part("r", 0, 1 << 20), 1000, None));
    assert_eq!(raw.hear(), Message::Go);
    raw.chunks(&[1; CHUNK_BYTES], 1);
    // It waits for the silent one's end, which comes by the bound and not by the connection's.
    it.put("r", 100, &[2; 10]).unwrap();
    assert_eq!(it.stat("r").unwrap().torn, [(0, 100), (110, 1 << 20)]);
    it.put("r", 0, &[2; 1 << 20]).unwrap();
    drop(raw);
}

/// A client that wants direct access, and finds its socket closed already, is told that the server
/// ends, and not that it is far away.
#[test]
fn a_server_that_ends_is_not_taken_for_one_far_away() {
    for _ in 0..20 {
        let server = server(1 << 20, vec![rights("job", 1, None)]);
        let (address, key) = (server.address().to_string(), key(1));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let (address, key) = (address.clone(), key.clone());
                thread::spawn(move || {
                    loop {
                        let direct = options(Transport::Shared);
                        if let Err(error) = Client::connect(&address, "job", &key, direct) {
                            return error;
                        }
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(20));
        server.stop();
        for caller in callers {
            let error = caller.join().unwrap();
            assert_eq!(error.code(), Code::ServerLost, "{error}");
        }
    }
}

#[test]
fn a_job_has_its_share_of_connections() {
    let mut options = ServerOptions::new(1 << 20);
    options.jobs = vec![rights("job", 1, None), rights("other", 2, None)];
    options.connections_max = 4;
    options.shared = false;
    let server = Server::start(&options).unwrap();
    let _one = client(&server, "job", 1, Transport::Auto);
    let two = client(&server, "job", 1, Transport::Auto);
    let address = server.address().to_string();
    let third = || Client::connect(&address, "job", &key(1), support::options(Transport::Auto));
    assert_eq!(third().unwrap_err().code(), Code::NoSpace);
    client(&server, "other", 2, Transport::Auto)
        .about()
        .unwrap();
    drop(two);
    // Its place is free as soon as the server has seen it go.
    while third().is_err() {
        thread::yield_now();
    }
    let shared = Client::connect(
        &address,
        "other",
        &key(2),
        support::options(Transport::Shared),
    );
    assert_eq!(
        shared.unwrap_err().code(),
        Code::Network,
        "it was not offered"
    );
}

/// Every call that waits when the server ends is told so; and those that come later.
#[test]
fn the_end_of_a_server_is_told() {
    let server = server(4 << 20, vec![rights("job", 1, None)]);
    let first = client(&server, "job", 1, Transport::Auto);
    first.allocate("r", 1 << 20, RegionKind::Plain).unwrap();
    first.allocate("ring", 1 << 20, RegionKind::Ring).unwrap();
    let raw = Raw::tcp(&server, "job", 1);
    let waits: Vec<_> = BOTH
        .into_iter()
        .flat_map(|transport| {
            let (one, two) = (
                client(&server, "job", 1, transport),
                client(&server, "job", 1, transport),
            );
            [
                thread::spawn(move || one.wait("r", 0, BOUND).unwrap_err()),
                thread::spawn(move || two.pop("ring", BOUND).unwrap_err()),
            ]
        })
        .collect();
    server.stop();
    for wait in waits {
        let error = wait.join().unwrap();
        assert_eq!(error.code(), Code::ServerLost);
    }
    for _ in 0..2 {
        assert_eq!(first.stat("r").unwrap_err().code(), Code::ServerLost);
    }
    drop(raw);
}

#[test]
fn a_server_that_is_not_there_or_silent_is_lost() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let refused = Client::connect(&gone, "job", &key(1), Options::default()).unwrap_err();
    assert_eq!(refused.code(), Code::ServerLost);
    // One that answers the first question and then never again.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let frozen = thread::spawn(move || {
        let (socket, from) = listener.accept().unwrap();
        let mut alive = socket.try_clone().unwrap();
        let known = |_: &str| Some(Arc::new(key(1)));
        let (mut channel, _) = Channel::accept(socket, from, &known, BOUND).unwrap();
        channel.receive(&mut within(BOUND)).unwrap();
        let about = outlive_memory::About {
            instance: 1,
            unix: String::new(),
            memory: 1,
            free: 1,
            quota: 1,
            used: 0,
        };
        channel
            .send(&Message::About(about).bytes(), &mut within(BOUND))
            .unwrap();
        alive.set_nonblocking(false).unwrap();
        // Until the client has given up.
        let _ = alive.read_to_end(&mut Vec::new());
    });
    let mut impatient = options(Transport::Auto);
    impatient.silence = Duration::from_millis(300);
    let it = Client::connect(&address, "job", &key(1), impatient).unwrap();
    let error = it.wait("r", 0, BOUND).unwrap_err();
    assert_eq!(error.code(), Code::ServerLost);
    assert!(error.reason().contains("silent"), "{error}");
    drop(it);
    frozen.join().unwrap();
}

#[test]
fn what_cannot_be_started_is_refused() {
    let refused = |change: &dyn Fn(&mut ServerOptions)| {
        let mut options = ServerOptions::new(1 << 20);
        options.jobs = vec![rights("job", 1, None)];
        change(&mut options);
        Server::start(&options).map(drop).unwrap_err().code()
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    assert_eq!(refused(&|it| it.memory = 1 << 50), Code::InvalidArgument);
    assert_eq!(refused(&|it| it.memory = 5), Code::InvalidArgument);
    assert_eq!(refused(&|it| it.jobs.clear()), Code::InvalidArgument);
    assert_eq!(
        refused(&|it| it.jobs.push(it.jobs[0].clone())),
        Code::InvalidArgument
    );
    assert_eq!(
        refused(&|it| it.jobs[0].job = "a\n".into()),
        Code::InvalidArgument
    );
    assert_eq!(refused(&|it| it.listen = taken), Code::AddressInUse);
    drop(listener);
}
