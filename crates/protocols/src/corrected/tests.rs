//! Bytes and bounds; behaviour is tested in the simulator.

use super::*;
use crate::broadcast::{self, tree::Shape};
use crate::reduce;

#[test]
fn messages_come_back_from_their_bytes_and_nothing_else_is_one() {
    assert!(size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX);
    let up = |step, clean| Part::Reduce(reduce::Msg { step, clean });
    let parts = [
        Part::Spread(broadcast::Msg::Spread, 0),
        Part::Spread(broadcast::Msg::Leftward, 7),
        Part::Spread(broadcast::Msg::Rightward, u32::MAX),
        up(reduce::MsgStep::Exchange, true),
        up(reduce::MsgStep::Up, false),
        Part::Ask(true),
        Part::Ask(false),
        Part::Wait(true),
        Part::Claim,
        Part::Give,
        Part::Result(true),
        Part::Gone,
        Part::Mismatch,
        Part::Out,
        Part::Branch {
            generation: 0x0506_0708,
            trees: 1 << 31 | 1,
        },
        Part::Grow {
            what: Grow::Rightward,
            tree: 31,
            at: u32::MAX,
        },
        Part::Grow {
            what: Grow::Full,
            tree: 0,
            at: 0,
        },
    ];
    for (seq, part) in (0x0102_0304..).zip(parts) {
        let branch = matches!(part, Part::Branch { .. });
        let msg = Msg {
            seq,
            root: 5,
            by: if branch { 5 } else { 6 },
            kind: CollectiveKind::Barrier,
            part,
        };
        assert_eq!(Msg::decode(msg.encode()), Some(msg));
    }
    let mut decoded = 0;
    for tag in 0..=255 {
        for detail in 0..=255 {
            let mut bytes = [0; Msg::BYTES];
            (bytes[17], bytes[18]) = (tag, detail);
            decoded += usize::from(Msg::decode(bytes).is_some());
            bytes[16] = 7;
            assert_eq!(Msg::decode(bytes), None, "no such kind");
        }
    }
    // 4 of the broadcast; a flag each for 2 of the reduce, asking, waiting and the
    // result; 9 of the growth; the six others do not look at it.
    assert_eq!(decoded, 4 + 5 * 2 + 9 + 6 * 256);
}

/// Of more roots than a process has room for it takes no trees, and says so.
#[test]
fn trees_of_too_many_roots_are_declined() {
    use outlive_base::machine::Machine as _;
    let keep = Keep {
        trees: 2,
        gossip: Time(8),
    };
    let config = Config::new(100, Spread::Tree(Shape::Binomial), 1).expect("valid");
    let config = config.keeping(keep).expect("valid");
    let cx = Cx {
        me: 0,
        now: Time(1),
        config: &config,
        seed: 1,
    };
    let mut machine = Machine::new();
    for root in 1..=ROOTS_MAX as u32 + 1 {
        let offer = Msg {
            seq: 1,
            root,
            by: 8,
            kind: CollectiveKind::Bcast,
            part: Part::Grow {
                what: Grow::Gossip,
                tree: 0,
                at: 4,
            },
        };
        machine.on_message(&cx, root, offer, None);
    }
    let mut full = Vec::new();
    while let Some(output) = machine.poll(&cx, Ready::ALL) {
        if let Output::Send { to, msg, .. } = output
            && matches!(
                msg.part,
                Part::Grow {
                    what: Grow::Full,
                    ..
                }
            )
        {
            full.push(to);
        }
    }
    assert_eq!(full, [ROOTS_MAX as u32 + 1]);
}

#[test]
fn wrong_sizes_and_shapes_are_refused() {
    let tree = Spread::Tree(Shape::Binomial);
    assert!(Config::new(0, tree, 1).is_err());
    assert!(Config::new(4, Spread::Tree(Shape::Kary(0)), 1).is_err());
    let alone = Config::new(1, tree, 5).expect("one process");
    assert_eq!(alone.failures, 0);
    for (trees, gossip) in [(0, 1), (2, 1), (33, 1), (3, 1 << 40)] {
        let gossip = Time(gossip);
        let two = Config::new(8, tree, 2).expect("valid");
        assert!(two.keeping(Keep { trees, gossip }).is_err(), "{trees}");
    }
    assert!(serves(CollectiveKind::Bcast, true) && !serves(CollectiveKind::Allreduce, true));
}
