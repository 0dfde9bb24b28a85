//! Datagrams: encoding, hostile bytes, descriptors, deadlines.
#![allow(clippy::unwrap_used)] // helpers of tests

use outlive_base::{Code, Entity, Error, Incarnation, NodeId, Rank, Survives, Version};
use outlive_capture::ipc::{
    Connection, IpcError, Listener, ToAgent, ToRank, VersionState, decode, encode,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rustix::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

fn to_agent() -> Vec<ToAgent> {
    let version = Version(7);
    vec![
        ToAgent::Hello {
            abi: 1,
            rank: Rank(1),
            ranks: 2,
            pid: 9,
            incarnation: Incarnation(3),
        },
        ToAgent::Slab {
            version,
            bytes: 8192,
        },
        ToAgent::Captured {
            version,
            slot: 1,
            generation: 2,
            table_bytes: 3,
            data_bytes: 4,
            blocked_ns: 5,
            forced: true,
        },
        ToAgent::Failed {
            version,
            code: Code::RouteMissing,
        },
        ToAgent::Wait {
            version,
            survives: Survives::AllNodes,
            timeout_ms: 10,
        },
        ToAgent::Restore,
        ToAgent::Restored {
            version,
            code: None,
        },
        ToAgent::Restored {
            version,
            code: Some(Code::RegionSize),
        },
        ToAgent::Route {
            version,
            name: "out.h5".into(),
        },
        ToAgent::Inject { version },
        ToAgent::Force {
            version: Version::MAX,
            bytes: 4096,
        },
        ToAgent::Close,
    ]
}

fn to_rank() -> Vec<ToRank> {
    let version = Version(7);
    let mut all = vec![
        ToRank::Welcome {
            node: NodeId(1),
            incarnation: Incarnation(2),
            restore: None,
        },
        ToRank::Welcome {
            node: NodeId(1),
            incarnation: Incarnation(2),
            restore: Some(version),
        },
        ToRank::Slab {
            version,
            slot: 1,
            generation: 2,
            capacity: 3,
        },
        ToRank::State {
            version,
            survives: Survives::NodeCrash,
            state: VersionState::Aborted,
        },
        ToRank::Restore {
            version,
            capacity: 8192,
        },
        ToRank::Fresh,
        ToRank::Path {
            path: "/node/files/x".into(),
        },
        ToRank::Ok,
    ];
    for entity in [
        Entity::Call,
        Entity::Option("o".into()),
        Entity::Region("r".into()),
        Entity::Rank(1),
        Entity::Node(2),
        Entity::File("/f".into()),
        Entity::Address("a:1".into()),
        Entity::Version(3),
        Entity::Job("j".into()),
    ] {
        all.push(ToRank::Error {
            error: Error::new(Code::NoSpace, entity, "why", "what to do"),
        });
    }
    all
}

#[test]
fn messages_round_trip_and_every_cut_and_addition_is_refused() {
    for (number, message) in to_agent().into_iter().enumerate() {
        let mut bytes = encode(number as u32, &message);
        assert_eq!(decode::<ToAgent>(&bytes).unwrap(), (number as u32, message));
        assert!(decode::<ToRank>(&bytes).is_err());
        for cut in 0..bytes.len() {
            assert!(decode::<ToAgent>(&bytes[..cut]).is_err());
        }
        bytes.push(0);
        assert!(decode::<ToAgent>(&bytes).is_err());
    }
    for message in to_rank() {
        let mut bytes = encode(5, &message);
        assert_eq!(decode::<ToRank>(&bytes).unwrap(), (5, message));
        for cut in 0..bytes.len() {
            assert!(decode::<ToRank>(&bytes[..cut]).is_err());
        }
        bytes.push(0);
        assert!(decode::<ToRank>(&bytes).is_err());
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let refused = |message: ToAgent| decode::<ToAgent>(&encode(0, &message)).is_err();
    assert!(refused(ToAgent::Slab {
        version: Version(u64::MAX),
        bytes: 1
    }));
    assert!(refused(ToAgent::Slab {
        version: Version(1),
        bytes: u64::MAX
    }));
    let hello = |rank, ranks| ToAgent::Hello {
        abi: 1,
        rank: Rank(rank),
        ranks,
        pid: 1,
        incarnation: Incarnation(1),
    };
    assert!(refused(hello(2, 2)) && refused(hello(0, 0)) && !refused(hello(1, 2)));
    for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
        assert!(
            refused(ToAgent::Route {
                version: Version(1),
                name: name.into()
            }),
            "{name}"
        );
    }
    for path in ["", "relative", "/a\0b", &format!("/{}", "x".repeat(4096))] {
        assert!(decode::<ToRank>(&encode(0, &ToRank::Path { path: path.into() })).is_err());
    }
}

#[test]
fn long_errors_are_cut_at_a_character() {
    let long = "ü".repeat(5000);
    let error = Error::new(Code::Io, Entity::File(long.clone()), long.clone(), long);
    let (_, message) = decode::<ToRank>(&encode(0, &ToRank::Error { error })).unwrap();
    let ToRank::Error { error } = message else {
        panic!()
    };
    assert_eq!(error.reason(), "ü".repeat(512));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]
    #[test]
    fn no_bytes_can_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u16..110) {
        let _ = decode::<ToAgent>(&bytes);
        let _ = decode::<ToRank>(&bytes);
        let mut known = kind.to_le_bytes().to_vec();
        known.extend(&bytes);
        // What decodes must encode to the same bytes: one meaning, one encoding.
        if let Ok((sequence, message)) = decode::<ToAgent>(&known) {
            prop_assert_eq!(encode(sequence, &message), known.clone());
        }
        if let Ok((sequence, message)) = decode::<ToRank>(&known) {
            prop_assert_eq!(encode(sequence, &message), known);
        }
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(10))
}

#[test]
fn a_connection_carries_messages_and_a_descriptor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/job/agent-0.sock");
    assert!(matches!(
        Connection::connect(&path, soon()),
        Err(IpcError::Io { .. })
    ));
    let listener = Listener::bind(&path).unwrap();
    assert!(matches!(listener.accept(None), Err(IpcError::TimedOut)));
    let rank = Connection::connect(&path, soon()).unwrap();
    let (agent, peer) = listener.accept(soon()).unwrap();
    assert_eq!(peer.pid, std::process::id() as i32);
    for message in to_agent() {
        rank.send(3, &message, None, soon()).unwrap();
        let received = agent.recv::<ToAgent>(soon()).unwrap();
        assert_eq!((received.sequence, received.message), (3, message));
        assert!(received.fd.is_none());
    }
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    agent
        .send(4, &ToRank::Ok, Some(file.as_fd()), soon())
        .unwrap();
    let fd = rank.recv::<ToRank>(soon()).unwrap().fd.unwrap();
    let flags = rustix::io::fcntl_getfd(&fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let start = Instant::now();
    let deadline = Some(start + Duration::from_millis(50));
    assert!(matches!(
        rank.recv::<ToRank>(deadline),
        Err(IpcError::TimedOut)
    ));
    assert!(start.elapsed() >= Duration::from_millis(50));
    drop(agent);
    assert!(matches!(rank.recv::<ToRank>(soon()), Err(IpcError::Closed)));
    assert!(matches!(
        rank.send(0, &ToAgent::Close, None, soon()),
        Err(IpcError::Closed)
    ));
    // A restarted agent takes the path over.
    drop(listener);
    let listener = Listener::bind(&path).unwrap();
    let _rank = Connection::connect(&path, soon()).unwrap();
    listener.accept(soon()).unwrap();
}

#[test]
fn a_peer_that_never_reads_cannot_block_a_sender() {
    let (one, _other) = Connection::pair().unwrap();
    let deadline = Some(Instant::now() + Duration::from_millis(100));
    let stuck = loop {
        if let Err(error) = one.send(0, &ToAgent::Restore, None, deadline) {
            break error;
        }
    };
    assert!(matches!(stuck, IpcError::TimedOut), "{stuck}");
}

#[test]
fn paths_too_long_and_open_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let long = directory.path().join("x".repeat(120));
    assert!(matches!(
        Listener::bind(&long),
        Err(IpcError::PathTooLong { .. })
    ));
    assert!(matches!(
        Connection::connect(&long, None),
        Err(IpcError::PathTooLong { .. })
    ));
    let open = directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(
        Listener::bind(&open.join("s")),
        Err(IpcError::NotPrivate(_))
    ));
}
