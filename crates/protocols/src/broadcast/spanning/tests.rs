use super::*;
use crate::broadcast::tree::Ring;

const TIMEOUT: Time = Time(100);

fn config(processes: u32, root: u32, trees: u32) -> Config {
    let ring = Ring { processes, root };
    Config::new(ring, trees, Time(10), Repair::FailureProof(1), TIMEOUT).expect("valid")
}

fn cx(config: &Config, me: Peer, now: u64) -> Cx<'_, SpanningTrees> {
    Cx {
        me,
        now: Time(now),
        config,
        seed: 1,
    }
}

/// Everybody but the root may have children in exactly one tree.
#[test]
fn trees_share_the_ring_out() {
    for processes in 1..40 {
        for root in [0, processes / 2] {
            for trees in 1..8 {
                let config = config(processes, root, trees);
                let mut seen = vec![0; processes as usize];
                for tree in 0..trees {
                    for i in 0..config.members(tree) {
                        let who = config.ring.rank(config.member(tree, i));
                        assert_eq!(config.inner_in(who), Some(tree));
                        seen[who as usize] += 1;
                    }
                }
                assert_eq!(config.inner_in(root), None);
                seen[root as usize] += 1;
                assert!(seen.iter().all(|&times| times == 1), "{processes} {trees}");
            }
        }
    }
}

/// Processes between which messages arrive at once; those of `mute` are lost.
struct Few {
    config: Config,
    machines: Vec<SpanningTrees>,
    events: Vec<(Peer, Event)>,
    now: u64,
    mute: Option<Peer>,
}

impl Few {
    fn new(processes: u32, trees: u32) -> Few {
        Few {
            config: config(processes, 0, trees),
            machines: vec![SpanningTrees::default(); processes as usize],
            events: Vec::new(),
            now: 0,
            mute: None,
        }
    }

    fn command(&mut self, command: Command) {
        let cx = cx(&self.config, 0, self.now);
        self.machines[0].on_command(&cx, command);
        self.settle();
    }

    fn settle(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for me in 0..self.machines.len() as Peer {
                let here = cx(&self.config, me, self.now);
                while let Some(output) = self.machines[me as usize].poll(&here, Ready::ALL) {
                    moved = true;
                    match output {
                        Output::Send { to, msg, body } if self.mute != Some(me) => {
                            let there = cx(&self.config, to, self.now);
                            self.machines[to as usize].on_message(&there, me, msg, body);
                        }
                        Output::Event(event) => self.events.push((me, event)),
                        _ => {}
                    }
                }
            }
        }
    }

    /// To the next deadline of anyone.
    fn pass(&mut self) -> bool {
        let deadlines = (0..self.machines.len() as Peer)
            .filter_map(|me| self.machines[me as usize].deadline(&cx(&self.config, me, self.now)));
        let Some(next) = deadlines.min() else {
            return false;
        };
        self.now = next.0.max(self.now);
        for me in 0..self.machines.len() as Peer {
            let here = cx(&self.config, me, self.now);
            let machine = &mut self.machines[me as usize];
            if machine.deadline(&here).is_some_and(|at| at <= here.now) {
                machine.on_timeout(&here);
            }
        }
        self.settle();
        true
    }

    fn delivered(&self, who: Peer) -> Vec<u32> {
        let of = self.events.iter().filter_map(|&(at, event)| match event {
            Event::Delivered { number, .. } if at == who => Some(number),
            _ => None,
        });
        of.collect()
    }

    fn completed(&self) -> u32 {
        let completed = |(_, event): &&(Peer, Event)| matches!(event, Event::Completed { .. });
        self.events.iter().filter(completed).count() as u32
    }
}

/// A process whose answers are lost for a while is dropped, its tree is given up, and it is
/// grown in again when it is heard: it has every broadcast once.
#[test]
fn who_was_taken_for_dead_is_grown_in_again() {
    let mut few = Few::new(2, 1);
    few.command(Command::Broadcast { body: None });
    assert!(few.pass(), "gossip has an end");
    assert_eq!((few.completed(), few.delivered(1)), (1, vec![1]));
    few.mute = Some(1);
    few.command(Command::Broadcast { body: None });
    assert_eq!(few.completed(), 1, "nobody acknowledges");
    assert!(few.pass(), "it is asked");
    assert_eq!(few.completed(), 1);
    assert!(few.pass(), "it is dropped");
    let exhausted = |events: &[(Peer, Event)]| events.contains(&(0, Event::Exhausted));
    assert!(exhausted(&few.events), "its tree was the only one");
    few.mute = None;
    while few.completed() < 2 {
        assert!(few.pass(), "{:?}", few.events);
    }
    assert_eq!(few.delivered(1), [1, 2]);
    assert_eq!(few.machines[1].generation(), 2);
}

/// With a second tree there is no need to grow any: the other one is taken.
#[test]
fn another_tree_is_taken() {
    let mut few = Few::new(9, 2);
    few.command(Command::Plan);
    while !matches!(few.events.last(), Some((0, Event::Planned { .. }))) {
        assert!(few.pass(), "{:?}", few.events);
    }
    let inner = few.config.ring.rank(few.config.member(0, 1));
    few.mute = Some(inner);
    few.command(Command::Broadcast { body: None });
    while few.completed() < 1 {
        assert!(few.pass(), "{:?}", few.events);
    }
    assert!(few.events.contains(&(0, Event::Switched { to: 1 })));
    assert!(!few.events.contains(&(0, Event::Exhausted)));
    for who in 0..9 {
        // It still hears: only its answers are lost.
        assert_eq!(few.delivered(who), [1], "{who}");
    }
}

/// A death that is told is waited for by nobody, and its tree is not used; trees that are
/// grown again are whole without the dead.
#[test]
fn a_death_that_is_told_needs_no_time_out() {
    let mut few = Few::new(9, 2);
    few.command(Command::Plan);
    while few.machines[0].whole(&few.config).is_none() {
        assert!(few.pass(), "{:?}", few.events);
    }
    assert_eq!(few.machines[0].whole(&few.config), Some(0b11));
    let inner = few.config.ring.rank(few.config.member(0, 1));
    few.mute = Some(inner);
    for who in (0..9).filter(|&who| who != inner) {
        let here = cx(&few.config, who, few.now);
        few.machines[who as usize].on_command(&here, Command::Dead { peer: inner });
    }
    assert_eq!(few.machines[0].whole(&few.config), Some(0b10));
    few.command(Command::Broadcast { body: None });
    assert_eq!(few.completed(), 1, "at once");
    assert!(few.events.contains(&(0, Event::Switched { to: 1 })));
    let live = (0..9).filter(|&who| who != inner);
    assert!(live.clone().all(|who| few.delivered(who) == [1]));
    few.command(Command::Again);
    assert_eq!(few.machines[0].whole(&few.config), None, "they grow");
    while few.machines[0].whole(&few.config).is_none() {
        assert!(few.pass(), "{:?}", few.events);
        assert!(few.now < TIMEOUT.0, "without a time-out");
    }
    assert_eq!(few.machines[0].whole(&few.config), Some(0b11));
    few.command(Command::Broadcast { body: None });
    assert_eq!(few.completed(), 2);
    assert!(live.clone().all(|who| few.delivered(who) == [1, 2]));
}

/// The root bounds what waits; others take no commands.
#[test]
fn too_many_broadcasts_are_refused() {
    let mut few = Few::new(2, 1);
    for _ in 0..=QUEUE_MAX {
        few.command(Command::Broadcast { body: None });
    }
    let refused = |(_, event): &&(Peer, Event)| *event == Event::Refused;
    assert_eq!(few.events.iter().filter(refused).count(), 1);
    while few.completed() < QUEUE_MAX as u32 {
        assert!(few.pass());
    }
    let here = cx(&few.config, 1, few.now);
    few.machines[1].on_command(&here, Command::Broadcast { body: None });
    assert!(few.machines[1].poll(&here, Ready::ALL).is_none());
}

/// What comes from strangers, in old generations or of no tree changes nothing.
#[test]
fn stray_messages_are_ignored() {
    let mut few = Few::new(3, 2);
    few.command(Command::Broadcast { body: None });
    assert!(few.pass());
    let before = format!("{:?}", few.machines[1]);
    let data = Msg::Data {
        generation: 0,
        attempt: 9,
        number: 9,
        tree: 0,
    };
    let joined = Msg::Joined {
        generation: 1,
        tree: 31,
    };
    let offer = Msg::Offer {
        generation: 1,
        tree: 2,
        way: Way::Gossip,
        until: Time(1),
    };
    for (from, msg) in [(0, data), (2, joined), (0, offer), (7, joined), (1, offer)] {
        let here = cx(&few.config, 1, few.now);
        few.machines[1].on_message(&here, from, msg, None);
        assert_eq!(format!("{:?}", few.machines[1]), before, "{from} {msg:?}");
    }
}
