//! A rail that says "not now": corrections wait, are decided anew, and become fewer.

use std::sync::Arc;
use std::time::Duration;

use outlive_base::Time;
use outlive_collectives::engine::{Bounds, Engine, Start, Wired};
use outlive_network::rail::{Can, Content, Frame, Key, News, Rail};
use outlive_protocols::broadcast::{Msg as Spreads, tree::Shape};
use outlive_protocols::collective::{Call, CollectiveKind, Command, Event};
use outlive_protocols::corrected::{Config, Machine, Msg, Part, Spread};

const PROCESSES: u32 = 64;
const KEY: Key = Key {
    comm: 1,
    sequence: 0,
    incarnation: 0,
    protocol: 1,
};

/// Process 0 of a world in which nobody else does anything by itself.
#[derive(Default)]
struct Scripted {
    now: u64,
    waiting: usize,
    sent: Vec<(u32, Part)>,
}

impl Rail for Scripted {
    fn me(&self) -> u32 {
        0
    }
    fn size(&self) -> u32 {
        PROCESSES
    }
    fn name(&self) -> &'static str {
        "a script"
    }
    fn can(&self) -> Can {
        Can::default()
    }
    fn now(&self) -> Time {
        Time(self.now)
    }
    fn ready(&self) -> bool {
        true
    }
    fn waiting(&self) -> usize {
        self.waiting
    }
    fn send(&mut self, to: u32, frame: Frame) {
        let msg = <Machine as Wired>::decode(&frame.msg).expect("a message");
        self.sent.push((to, msg.part));
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        None
    }
    fn news(&mut self) -> Option<News> {
        None
    }
    fn leave(&mut self, _: Duration) {}
    fn wait(&mut self, until: Time) {
        self.now = until.0;
    }
    fn flushed(&mut self) -> bool {
        true
    }
}

fn is_correction(part: &Part) -> bool {
    matches!(
        part,
        Part::Spread(Spreads::Leftward | Spreads::Rightward, _)
    )
}

/// A broadcast from process 0, not pulled yet.
fn begun(pace: u64) -> (Scripted, Engine<Machine>) {
    let rail = Scripted::default();
    let mut engine = Engine::new(0, Bounds::default());
    let tree = Spread::Tree(Shape::Binomial);
    let mut config = Config::new(PROCESSES, tree, 1).expect("valid");
    config.pace = Time(pace);
    let start = Start {
        key: KEY,
        members: (0..PROCESSES).collect(),
        me: 0,
        machine: Machine::new(),
        config: Arc::new(config),
        seed: 1,
    };
    engine.start(&rail, start);
    let call = Call {
        kind: CollectiveKind::Bcast,
        root: 0,
        value: None,
        ordered: false,
    };
    let content = Some((0, Content::new(vec![7])));
    engine.command(&rail, KEY, content, |value| {
        Command::Start(Call { value, ..call })
    });
    (rail, engine)
}

fn hear(rail: &Scripted, engine: &mut Engine<Machine>, from: u32, what: Spreads) {
    let msg = Msg {
        seq: 0,
        root: 0,
        by: 0,
        kind: CollectiveKind::Bcast,
        part: Part::Spread(what, 9),
    };
    let msg = <Machine as Wired>::encode(msg);
    let body = Some(Content::new(vec![7]));
    engine.deliver(
        rail,
        from,
        Frame {
            key: KEY,
            msg,
            body,
        },
    );
}

fn ended(engine: &mut Engine<Machine>) -> bool {
    std::iter::from_fn(|| engine.event(KEY)).any(|(event, _)| matches!(event, Event::Done { .. }))
}

#[test]
fn what_is_heard_while_the_rail_is_busy_makes_corrections_fewer() {
    // A rail that takes everything at once: nobody is heard, once round the ring.
    let (mut rail, mut engine) = begun(0);
    engine.pump(&mut rail, KEY, None);
    let all = rail
        .sent
        .iter()
        .filter(|(_, part)| is_correction(part))
        .count();
    assert_eq!(all as u32, PROCESSES, "once round the ring");
    assert!(ended(&mut engine));

    // One that is busy: nothing leaves, and the call does not end.
    let (mut rail, mut engine) = begun(0);
    rail.waiting = <Machine as Wired>::WINDOW;
    for _ in 0..3 {
        engine.pump(&mut rail, KEY, None);
        assert!(rail.sent.is_empty() && !ended(&mut engine));
    }
    for (from, what) in [
        (1, Spreads::Leftward),
        (PROCESSES - 1, Spreads::Rightward),
        (2, Spreads::Leftward),
        (PROCESSES - 2, Spreads::Rightward),
    ] {
        hear(&rail, &mut engine, from, what);
    }
    rail.waiting = 0;
    engine.pump(&mut rail, KEY, None);
    let few = rail.sent.iter().filter(|(_, part)| is_correction(part));
    let mut few: Vec<u32> = few.map(|(to, _)| *to).collect();
    few.sort_unstable();
    assert_eq!(
        few,
        [1, 2, PROCESSES - 2, PROCESSES - 1],
        "as far as those it relies on"
    );
    assert_eq!(
        rail.sent.len() - few.len(),
        6,
        "all children, whatever was heard"
    );
    assert!(ended(&mut engine));
}

#[test]
fn corrections_keep_their_pace_and_children_do_not_wait_for_it() {
    let (mut rail, mut engine) = begun(1_000);
    engine.pump(&mut rail, KEY, None);
    assert_eq!(
        rail.sent.len(),
        6 + 1,
        "the children, and the first correction"
    );
    for turn in 2..20u64 {
        let due = engine.deadline().expect("a correction waits for its pace");
        assert_eq!(due, Time(1_000 * (turn - 1)));
        rail.now = due.0 - 1;
        engine.pump(&mut rail, KEY, None);
        assert_eq!(rail.sent.len() as u64, 6 + turn - 1, "not before its time");
        rail.now = due.0;
        engine.pump(&mut rail, KEY, None);
        assert_eq!(rail.sent.len() as u64, 6 + turn);
    }
}
