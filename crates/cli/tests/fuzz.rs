//! The fuzz targets' entry points over kept inputs and mutations of them, on stable Rust: a moment of
//! what `make soak` does for longer. Each call's memory is counted (P7).
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../fuzz/allocated.rs"]
mod allocated;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/outside.rs"]
mod outside;

use mutate::{run, run_with};
use outlive_base::ipc::{self, ToAgent, ToRank, VersionState};
use outlive_base::rng::Sequence;
use outlive_base::{Error, Incarnation, Level, NodeId, Rank, Survives, Version, control_block};
use outlive_control::node::shell::PeerMessage;
use outlive_control::orders::{
    Fault, Member, Notice, Opened, Order, Rejected, Step, decode, encode,
};

/// Of messages and small files: what serde takes at once for a list of unknown length, and what
/// each byte may become.
const SMALL: (usize, usize) = (3 << 20, 400);
/// Of texts from which tables are made.
const TABLES: (usize, usize) = (3 << 20, 4_000);
const SOME: usize = 3_000;

fn marked(kind: u8, bytes: Vec<u8>) -> Vec<u8> {
    std::iter::once(kind).chain(bytes).collect()
}

#[test]
fn orders() {
    let member = |node: u32| Member {
        node: NodeId(node),
        epoch: 3,
        address: ([127, 0, 0, 1], 4000 + node as u16).into(),
        domain: node / 2,
    };
    let orders = [
        Order::Open {
            incarnation: Incarnation(2),
            replaced: vec![NodeId(1), NodeId(3)],
            fenced: true,
            fresh: false,
            history: Incarnation(1),
        },
        Order::Inject {
            id: 1,
            fault: Fault::FailPoint {
                point: "agent.commit".to_owned(),
                nth: 2,
            },
        },
        Order::CheckpointNow {
            levels: vec![Level::DISK, Level::rs(4, 2).unwrap()],
        },
        Order::Members {
            revision: 3,
            changed: (0..4).map(member).collect(),
        },
        Order::Status,
    ];
    let notices = [
        Notice::Checkpoint {
            version: Version(7),
            step: Step::Aborted {
                level: Some(Level::PARTNER),
                error: Error::internal("x"),
            },
        },
        Notice::Opened(Opened {
            incarnation: Incarnation(2),
            restored: Some(Version(6)),
            level: Some(Level::DISK),
            ranks: 8,
            rebuild_ms: 1.5,
            rebuilt_bytes: 4096,
            rejected: vec![Rejected {
                version: Version(7),
                reason: "void".to_owned(),
            }],
            uncertain: false,
        }),
        Notice::Hello {
            address: ([10, 0, 0, 1], 99).into(),
            pid: 1,
            keeper_pid: 2,
            restarts: 0,
            ranks: vec![(Rank(1), 77)],
            heard: Some(2),
        },
    ];
    let peers = [
        PeerMessage::Lacks,
        PeerMessage::Service {
            service: 2,
            bytes: vec![1, 2, 3],
        },
    ];
    let mut good: Vec<Vec<u8>> = Vec::new();
    good.extend(orders.iter().map(|it| marked(0, encode(it).unwrap())));
    good.extend(notices.iter().map(|it| marked(1, encode(it).unwrap())));
    good.extend(peers.iter().map(|it| marked(2, encode(it).unwrap())));
    // A machine's message with a record, found by what its encoding says: any that decodes.
    let first = encode(&PeerMessage::Lacks).unwrap()[0];
    for (kind, fields) in (0..24).flat_map(|kind| (1..40).map(move |fields| (kind, fields))) {
        let bytes = [&[first, 0, 1, kind][..], &vec![1; fields]].concat();
        if decode::<PeerMessage>(&bytes).is_ok() {
            good.push(marked(2, bytes));
        }
    }
    run("orders", good, SOME * 3, SMALL, outside::orders);
}

#[test]
fn streams() {
    let first = encode(&()).unwrap()[0];
    let framed = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    // Variants of requests and answers, with numbers of a byte each.
    let good = (0..5).map(|kind| framed(&[&[first, kind][..], &[1; 6]].concat()));
    run("streams", good.collect(), SOME, SMALL, outside::streams);
}

#[test]
fn datagrams() {
    let (version, bytes) = (Version(5), 1 << 20);
    let to_agent = [
        ToAgent::Hello {
            abi: control_block::CONTROL_ABI,
            rank: Rank(1),
            ranks: 4,
            pid: 99,
            incarnation: Incarnation(1),
        },
        ToAgent::Slab { version, bytes },
        ToAgent::Wait {
            version,
            survives: Survives::NodeLoss,
            timeout_ms: 100,
        },
        ToAgent::Route {
            version,
            name: "out/state.h5".to_owned(),
        },
        ToAgent::Close,
    ];
    let to_rank = [
        ToRank::Welcome {
            node: NodeId(1),
            incarnation: Incarnation(1),
            restore: Some(version),
        },
        ToRank::State {
            version,
            survives: Survives::Domain,
            state: VersionState::Committed,
        },
        ToRank::Error {
            error: Error::internal("x"),
        },
    ];
    let mut good: Vec<Vec<u8>> = to_agent.iter().map(|it| ipc::encode(3, it)).collect();
    good.extend(to_rank.iter().map(|it| ipc::encode(4, it)));
    run("datagrams", good, SOME * 3, SMALL, outside::datagrams);
}

#[test]
fn strangers() {
    let head = |length: u16| {
        let mut bytes = b"OLNW".to_vec();
        bytes.extend(2u16.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(length.to_le_bytes());
        bytes
    };
    let mut good = Vec::new();
    for kind in 0..4 {
        good.push(marked(kind, head(100)));
        good.push(marked(kind, [head(200), vec![7; 300]].concat()));
    }
    run("strangers", good, SOME, SMALL, outside::strangers);
}

#[test]
fn machines() {
    run("machine", Vec::new(), SOME, TABLES, outside::machine);
}

#[test]
fn slurm() {
    // A short list may name a million nodes.
    let lists = (64 << 20, 4_000);
    run("slurm", Vec::new(), SOME, lists, outside::slurm);
}

#[test]
fn graphs() {
    run("graphs", Vec::new(), SOME, TABLES, outside::graphs);
}

#[test]
fn hosts() {
    run("hosts", Vec::new(), SOME, TABLES, outside::hosts);
}

#[test]
fn job_files() {
    run("job_file", Vec::new(), SOME / 2, TABLES, outside::job_file);
}

#[test]
fn runs() {
    run("runs", Vec::new(), SOME / 2, TABLES, outside::runs);
}

#[test]
fn words() {
    run("words", Vec::new(), SOME * 3, SMALL, outside::words);
}

/// What is to be found is found: memory that a length alone asks for, and a panic.
#[test]
fn a_target_that_takes_too_much_or_panics_is_caught() {
    let caught = |entry: fn(&[u8])| {
        let tried = std::panic::catch_unwind(|| {
            // fixed seed: a panic that is wanted must not be kept as a seed that failed.
            let random = Sequence::new(1, 0);
            run_with(
                random,
                "planted",
                &[vec![1; 40]],
                500,
                (1 << 20, 100),
                entry,
            );
        });
        assert!(tried.is_err());
    };
    caught(|bytes| {
        let length = bytes
            .iter()
            .take(3)
            .fold(0, |sum, it| sum << 8 | usize::from(*it));
        drop(std::hint::black_box(vec![1u8; length]));
    });
    caught(|bytes| assert!(!bytes.contains(&0xff)));
}
