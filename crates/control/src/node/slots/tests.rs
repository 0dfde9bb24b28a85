#![allow(clippy::unwrap_used)]

use outlive_base::{Level, NodeId, Rank};

use super::super::Input;
use super::super::service::Service;
use super::super::shell::{Link, PeerMessage};
use super::super::still::{Still, one_of};
use super::*;
use crate::node::Node;
use crate::slots::Slots as Setting;

const MS: Time = Time::from_ms(1);

/// Node 1 of two, node 0 of which is the coordinator, with slots of 50 ms each second and a rank.
fn node() -> Node<Still> {
    let mut node = one_of(2, 1, Level::PARTNER);
    node.core.set_service(crate::slots::ServiceSettings {
        slots: Setting {
            period_ms: 1_000,
            length_ms: 50,
        },
        daemon: Some("collect".into()),
    });
    connect(&mut node);
    node
}

fn connect(node: &mut Node<Still>) {
    let link = Link { token: 1, pid: 1 };
    node.core.connect_rank(Rank(1), link);
}

fn acts(node: &mut Node<Still>) -> Vec<DaemonAct> {
    let asked = node.shell().asked.iter();
    asked
        .filter_map(|ask| match ask {
            Ask::Daemon(act) => Some(*act),
            _ => None,
        })
        .collect()
}

/// Time passes from wake-up to wake-up.
fn until(node: &mut Node<Still>, at: Time) -> Vec<(u64, bool)> {
    let mut edges = Vec::new();
    loop {
        let before = node.may_serve();
        let next = node.services.slots.deadline(&node.core).unwrap();
        if next > at {
            return edges;
        }
        node.on_time(next.max(node.now()));
        if node.may_serve() != before {
            edges.push((node.now().as_ms() as u64, node.may_serve()));
        }
    }
}

fn asked_at(node: &mut Node<Still>) -> Vec<Time> {
    let words = node
        .shell()
        .sent
        .iter()
        .filter_map(|(to, message)| match message {
            PeerMessage::Service { service, bytes } if *service == Slots::NUMBER => {
                assert_eq!(*to, NodeId(0));
                postcard::from_bytes(bytes).ok()
            }
            _ => None,
        });
    words
        .filter_map(|word| match word {
            Word::Ask { sent, .. } => Some(sent),
            Word::Told { .. } => None,
        })
        .collect()
}

fn hears(node: &mut Node<Still>, at: Time, (sent, told, life): (Time, Time, u64)) {
    let asker = node.life();
    hears_of(node, at, (sent, told, life), asker);
}

/// An answer to what this agent, or another one before it, asked.
fn hears_of(node: &mut Node<Still>, at: Time, (sent, told, life): (Time, Time, u64), asker: u64) {
    let word = Word::Told {
        sent,
        asker,
        told,
        life,
    };
    let message = PeerMessage::Service {
        service: Slots::NUMBER,
        bytes: postcard::to_allocvec(&word).unwrap(),
    };
    let from = NodeId(0);
    node.on(at, Input::Peer { from, message });
}

#[test]
fn slots_go_by_the_own_clock_until_the_coordinator_s_is_known_and_then_by_that() {
    let mut node = node();
    let edges = until(&mut node, Time::from_ms(1_999));
    assert_eq!(edges, [(50, false), (1_000, true), (1_050, false)]);
    assert_eq!(
        acts(&mut node),
        [
            DaemonAct::Run,
            DaemonAct::Pause,
            DaemonAct::Run,
            DaemonAct::Pause
        ]
    );
    // 300 ms ahead; on the way 10 ms each.
    let now = Time::from_ms(1_999);
    hears(&mut node, now, (now - MS - MS, now + Time::from_ms(299), 9));
    let edges = until(&mut node, Time::from_ms(4_000));
    assert_eq!(
        edges,
        [(2_700, true), (2_750, false), (3_700, true), (3_750, false)]
    );
    // Another agent is the coordinator now, of another clock: what was known of the first is void.
    let now = Time::from_ms(4_000);
    hears(&mut node, now, (now, now, 10));
    assert!(node.may_serve());
    let edges = until(&mut node, Time::from_ms(5_200));
    assert_eq!(edges, [(4_050, false), (5_000, true), (5_050, false)]);
}

#[test]
fn the_clock_is_asked_for_often_at_first_and_seldom_later() {
    let mut node = node();
    let _ = until(&mut node, Time::from_secs(60));
    let asked = asked_at(&mut node);
    assert!((8..20).contains(&asked.len()), "{asked:?}");
    assert!(asked[1] < Time::from_secs(1));
    let last = asked.len() - 1;
    assert_eq!(asked[last] - asked[last - 1], LATER);
}

#[test]
fn whoever_is_asked_says_what_time_it_is() {
    let mut node = node();
    let sent = Time::from_ms(77);
    let message = PeerMessage::Service {
        service: Slots::NUMBER,
        bytes: postcard::to_allocvec(&Word::Ask { sent, asker: 5 }).unwrap(),
    };
    let (from, now) = (NodeId(0), Time::from_ms(500));
    node.on(now, Input::Peer { from, message });
    let life = node.life();
    let (to, PeerMessage::Service { bytes, .. }) = node.shell().sent.last().unwrap() else {
        panic!("another word");
    };
    let word: Word = postcard::from_bytes(bytes).unwrap();
    assert_eq!(
        (*to, word),
        (
            from,
            Word::Told {
                sent,
                asker: 5,
                told: now,
                life
            }
        )
    );
}

/// There is nobody to disturb without ranks, nor once the job ends.
#[test]
fn nothing_waits_without_slots_without_ranks_and_at_the_end() {
    let mut plain = one_of(2, 1, Level::PARTNER);
    connect(&mut plain);
    assert_eq!(plain.services.slots.deadline(&plain.core), None);
    plain.on_time(Time::from_secs(3));
    assert!(plain.may_serve());

    let mut node = node();
    node.on_time(Time::from_ms(500));
    assert!(!node.may_serve());
    node.on(node.now(), Input::Order(Order::Finish { success: true }));
    assert!(node.may_serve());
    assert_eq!(acts(&mut node).last(), Some(&DaemonAct::End));
    assert!(until(&mut node, Time::from_secs(5)).is_empty());
    assert_eq!(acts(&mut node).last(), Some(&DaemonAct::End));
}

#[test]
fn a_daemon_without_slots_runs_and_is_looked_after() {
    let mut node = one_of(2, 1, Level::PARTNER);
    node.core.set_service(crate::slots::ServiceSettings {
        slots: Setting::default(),
        daemon: Some("collect".into()),
    });
    connect(&mut node);
    for second in 1..4 {
        node.on_time(Time::from_secs(second));
        node.look_around();
    }
    let acts = acts(&mut node);
    assert!(acts.len() >= 2, "{acts:?}");
    assert!(acts.iter().all(|act| *act == DaemonAct::Run));
}

/// Its clock was another.
#[test]
fn an_answer_to_the_agent_before_this_one_says_nothing() {
    let mut node = node();
    let now = Time::from_ms(500);
    let other = node.life() + 1;
    let said = (Time::from_ms(400), Time::from_ms(9_000), 9);
    hears_of(&mut node, now, said, other);
    assert_eq!(node.services.slots.clock.offset(now), None);
    hears(&mut node, now, said);
    assert!(node.services.slots.clock.offset(now).is_some());
}
