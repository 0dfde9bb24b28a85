//! Scripted histories. `World` answers every action as a healthy machine would,
//! except where a script says otherwise; then the script looks at what was done.

mod counts;
mod endings;
mod failures;
mod hangs;
mod injections;
mod joining;
mod preempted;
mod silences;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use crate::orders::{LevelSetting, NodeStatus, Notice, Opened, Order, RankEnd, Step};
use outlive_base::{Code, Error, Incarnation, JobName, Level, NodeId, Rank, Time, Version};

use super::{Action, Event, Input, Outcome, Settings, Storage, Supervisor};
use crate::ended::Ended;
use crate::inject;

pub(super) struct World {
    pub sup: Supervisor,
    pub now: Time,
    pub log: Vec<Action>,
    pub ranks: u32,
    nodes: u32,
    epochs: BTreeMap<NodeId, u64>,
    /// Agents that answer nothing.
    pub mute: BTreeSet<NodeId>,
    /// Agents that do not become ready.
    pub unready: BTreeSet<NodeId>,
    /// The command does not end when told so.
    pub stubborn: bool,
    /// Keepers that are killed do not end at once.
    pub lingering: bool,
    /// Nobody says that a fenced node's processes are gone.
    pub unfenced: bool,
    /// The command cannot be started.
    pub no_command: bool,
    /// Ranks never register.
    pub silent_ranks: bool,
    /// What the agents restore.
    pub newest: Option<Version>,
    /// Answer to an opening instead of readiness.
    pub open_fails: Option<Error>,
    pub outcome: Option<Outcome>,
    /// Nodes whose agents take no part.
    pub outside: BTreeSet<NodeId>,
    /// Nodes of which a rank waits for its agent.
    pub held: BTreeSet<NodeId>,
    /// Nodes that do not say where their ranks are.
    pub blind: BTreeSet<NodeId>,
    /// Nobody says what the command's processes do.
    pub unseen: bool,
    /// What agents that are told of a fault say of it; `None`: nothing.
    pub injected: Option<Result<(), Error>>,
}

pub(super) fn settings(nodes: u32) -> Settings {
    Settings::new(JobName::new("job").unwrap(), nodes)
}

impl World {
    pub fn new(set: Settings, ranks: u32) -> World {
        let mut world = World::before(set, ranks);
        world.pump();
        world
    }

    /// A world in which nothing was carried out yet.
    pub fn before(set: Settings, ranks: u32) -> World {
        World {
            nodes: set.nodes,
            sup: Supervisor::new(set, Time::ZERO),
            now: Time::ZERO,
            log: Vec::new(),
            ranks,
            epochs: BTreeMap::new(),
            mute: BTreeSet::new(),
            unready: BTreeSet::new(),
            stubborn: false,
            lingering: false,
            unfenced: false,
            no_command: false,
            silent_ranks: false,
            newest: None,
            open_fails: None,
            outcome: None,
            outside: BTreeSet::new(),
            held: BTreeSet::new(),
            blind: BTreeSet::new(),
            unseen: false,
            injected: Some(Ok(())),
        }
    }

    /// A world in which the job runs.
    pub fn running(set: Settings, ranks: u32) -> World {
        let world = World::new(set, ranks);
        assert_eq!(world.count(|a| matches!(a, Action::StartCommand { .. })), 1);
        world
    }

    pub fn pid(&self, rank: u32) -> u32 {
        1_000 * self.sup.incarnation() + rank
    }

    pub fn input(&mut self, input: Input) {
        self.sup.handle(self.now, input);
        self.pump();
    }

    pub fn notice(&mut self, node: u32, notice: Notice) {
        let node = NodeId(node);
        let epoch = self.epochs[&node];
        self.input(Input::Notice {
            node,
            epoch,
            notice,
        });
    }

    pub fn gone(&mut self, rank: u32, ended: Option<Ended>) {
        let pid = self.pid(rank);
        self.input(Input::RankGone {
            rank: Rank(rank),
            pid,
            ended,
        });
    }

    pub fn down(&mut self, rank: u32, end: RankEnd) {
        let pid = self.pid(rank);
        let node = rank * self.nodes / self.ranks;
        self.notice(
            node,
            Notice::RankDown {
                rank: Rank(rank),
                pid,
                end,
            },
        );
    }

    pub fn keeper_ended(&mut self, node: u32) {
        let node = NodeId(node);
        let epoch = self.epochs[&node];
        let ended = Ended::Signal(9);
        self.input(Input::KeeperEnded { node, epoch, ended });
    }

    pub fn command_ended(&mut self, ended: Ended) {
        self.input(Input::CommandEnded { ended });
    }

    pub fn stable(&mut self, version: u64) {
        let version = Version(version);
        self.newest = Some(version);
        let step = Step::Stable(Level::PARTNER);
        self.notice(0, Notice::Checkpoint { version, step });
    }

    /// Lets time pass as the supervisor asks to be woken; agents answer probes
    /// and say that they live.
    pub fn pass(&mut self, ms: u64) {
        let end = self.now + Time::from_ms(ms);
        for _ in 0..100_000 {
            let next = self.sup.deadline().max(self.now + Time(1)).min(end);
            self.now = next;
            self.input(Input::Timer);
            // Heartbeats: often enough, though less often than in life.
            for node in 0..self.nodes {
                let held = self.held.contains(&NodeId(node));
                self.say(
                    NodeId(node),
                    Notice::Alive {
                        offered: None,
                        held,
                    },
                );
            }
            self.pump();
            if next == end || self.outcome.is_some() {
                return;
            }
        }
        panic!("woken without end");
    }

    pub fn count(&self, wanted: impl Fn(&Action) -> bool) -> usize {
        self.log.iter().filter(|action| wanted(action)).count()
    }

    pub fn starts(&self) -> usize {
        self.count(|action| matches!(action, Action::StartCommand { .. }))
    }

    pub fn told(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.count(|action| matches!(action, Action::Tell(event) if wanted(event))) > 0
    }

    pub fn exit(&self) -> u8 {
        self.outcome.expect("the job has ended").exit_status
    }

    pub fn codes(&self) -> Vec<String> {
        let errors = &self.sup.report().errors;
        errors.iter().map(|error| error.code.clone()).collect()
    }

    fn pump(&mut self) {
        for _ in 0..10_000 {
            let actions = self.sup.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                assert!(
                    self.outcome.is_none(),
                    "an action after the end: {action:?}"
                );
                self.log.push(action.clone());
                self.answer(action);
            }
        }
        panic!("acts without end");
    }

    fn tell(&mut self, input: Input) {
        self.sup.handle(self.now, input);
    }

    fn say(&mut self, node: NodeId, notice: Notice) {
        let epoch = self.epochs[&node];
        if !self.mute.contains(&node) {
            self.tell(Input::Notice {
                node,
                epoch,
                notice,
            });
        }
    }

    pub fn join(&mut self, rank: u32) {
        let node = NodeId(rank * self.nodes / self.ranks);
        let (ranks, pid) = (self.ranks, self.pid(rank));
        let rank = Rank(rank);
        self.say(node, Notice::RankUp { rank, ranks, pid });
    }

    fn answer(&mut self, action: Action) {
        match action {
            Action::StartNode { node, epoch, .. } => {
                self.epochs.insert(node, epoch);
                self.mute.remove(&node);
                self.say(node, hello(node, 0));
            }
            Action::Order { node, order } => self.obey(node, order),
            Action::Fence { node, epoch, .. } if !self.unfenced => {
                let complete = true;
                self.tell(Input::Fenced {
                    node,
                    epoch,
                    complete,
                });
            }
            Action::StartCommand { .. } if self.no_command => {
                let error = Error::new(Code::CommandFailed, outlive_base::Entity::Call, "no", "x");
                self.tell(Input::CommandFailed { error });
            }
            Action::StartCommand { .. } if !self.silent_ranks => {
                for rank in 0..self.ranks {
                    self.join(rank);
                }
            }
            Action::LookAtCommand { number, .. } if !self.unseen => {
                let found = joining::processes();
                self.tell(Input::CommandSeen { number, found });
            }
            Action::EndCommand { .. } if !self.stubborn => {
                let ended = Ended::Signal(9);
                self.tell(Input::CommandEnded { ended });
                self.tell(Input::TreeEnded);
            }
            Action::StopNode { node } => {
                let epoch = self.epochs[&node];
                let ended = Ended::Code(0);
                self.tell(Input::KeeperEnded { node, epoch, ended });
            }
            Action::KillNode { node, .. } | Action::KillKeeper { node } if !self.lingering => {
                let epoch = self.epochs[&node];
                self.now = self.now + Time::from_ms(3);
                let ended = Ended::Signal(9);
                self.tell(Input::KeeperEnded { node, epoch, ended });
            }
            Action::Freeze {
                node,
                keeper: true,
                stop,
                ..
            } => {
                match stop {
                    true => self.mute.insert(node),
                    false => self.mute.remove(&node),
                };
            }
            Action::Done(outcome) => self.outcome = Some(outcome),
            _ => {}
        }
    }

    fn obey(&mut self, node: NodeId, order: Order) {
        match order {
            Order::Open {
                incarnation, fresh, ..
            } => {
                if let Some(error) = self.open_fails.clone() {
                    return self.say(
                        node,
                        Notice::OpenFailed {
                            incarnation,
                            error,
                            known: incarnation,
                        },
                    );
                }
                if !self.unready.contains(&node) {
                    self.say(
                        node,
                        Notice::NodeReady {
                            incarnation,
                            level: None,
                            rebuilt_bytes: 0,
                        },
                    );
                }
                if node == NodeId(0) {
                    // Its record makes void what was before.
                    self.newest.take_if(|_| fresh);
                    let restored = self.newest;
                    self.say(
                        node,
                        Notice::Opened(opened(incarnation, restored, self.ranks)),
                    );
                }
            }
            Order::Status => {
                let status = NodeStatus {
                    incarnation: self.sup.incarnation() * u32::from(!self.outside.contains(&node)),
                    ..NodeStatus::default()
                };
                self.say(node, Notice::Status(status));
            }
            Order::Stacks { number, .. } if !self.blind.contains(&node) => {
                let here = (0..self.ranks).filter(|rank| rank * self.nodes / self.ranks == node.0);
                let found = hangs::stacks(here);
                self.say(node, Notice::Stacks { number, found });
            }
            Order::Inject { id, fault } if fault.is_effect() => {
                if let Some(outcome) = self.injected.clone() {
                    self.say(node, Notice::Injected { id, fault, outcome });
                }
            }
            Order::EndRanks => self.say(node, Notice::RanksEnded),
            Order::Finish { .. } => self.say(node, Notice::Finished),
            _ => {}
        }
    }
}

pub(super) fn hello(node: NodeId, restarts: u32) -> Notice {
    Notice::Hello {
        address: (
            [127, 0, 0, 1],
            5_000 + node.0 as u16 + restarts as u16 * 100,
        )
            .into(),
        pid: 100 + node.0 + restarts * 10,
        keeper_pid: 50 + node.0,
        restarts,
        ranks: Vec::new(),
        heard: Some(0),
    }
}

fn opened(incarnation: Incarnation, restored: Option<Version>, ranks: u32) -> Opened {
    Opened {
        incarnation,
        restored,
        level: restored.map(|_| Level::PARTNER),
        ranks,
        rebuild_ms: 12.5,
        rebuilt_bytes: 0,
        rejected: Vec::new(),
        uncertain: false,
    }
}
