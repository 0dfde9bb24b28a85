//! The policy of supervision, as a pure state machine: no clock, process, file or
//! socket. [`Supervisor::handle`] takes what happened and when;
//! [`Supervisor::take_actions`] gives what is to be done, in order;
//! [`Supervisor::deadline`] says when it wants to be woken with [`Input::Timer`].
//!
//! Invariants:
//! - An incarnation is opened only when no process of the command runs, every lost
//!   slot was fenced and every slot has a live agent (P1: no old writer is left).
//! - Every failure is in the report, whenever it happens; the first of a recovery
//!   is what started it, later ones of the same place are folded into it.
//! - Every state has a bound after which something happens (P5): `start_ms`,
//!   `recovery_ms`, `drain_ms`, `fence_ms`, `kill_grace_ms`, `dead_ms`. Of the command's own
//!   time only a standstill has one (`hang`).
//! - Exactly one [`Action::Done`] is ever given, as the last action.

mod apart;
mod assemble;
mod course;
mod endings;
mod faults;
mod hang;
mod injections;
mod joining;
mod members;
mod notices;
mod routine;
mod silence;
mod stable;
mod steered;
#[cfg(test)]
mod tests;
mod types;
mod view;
mod words;

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::orders::{Opened, Order};
use outlive_base::{Error, Incarnation, Level, NodeId, Rank, Time, Version, placement};

pub use hang::file_name as hang_file;
pub use injections::NOT_INJECTED;
pub use types::{
    Action, EPOCH_STEP, Event, Input, Outcome, Planted, Said, Settings, Storage, Verdict,
};
pub use view::{NodeState, NodeView, Stage, View};

use crate::ended::Ended;
use crate::report::{FailureEntry, Report};
use crate::scrubbing::Scrubs;
use crate::standstill::Judge;
use crate::steering::Steering;

use stable::{Heard, Stable};

/// What the supervisor is doing.
#[derive(Debug)]
enum Phase {
    /// Waiting until nothing old runs and all slots have an agent.
    Assembling { since: Time },
    /// Agents look for the newest version and rebuild it.
    Opening {
        incarnation: Incarnation,
        since: Time,
        opened: Option<Opened>,
    },
    /// The command runs.
    Running {
        /// When the command was started.
        since: Time,
        /// Newest stable version when it was started.
        stable_before: Option<Version>,
        /// All ranks have registered.
        complete: bool,
    },
    /// The job is over; agents finish their flushes.
    Finishing { since: Time, asked: bool },
    /// Nodes are being ended.
    Stopping { since: Time },
    /// Nothing more happens.
    Done,
}

/// The command's processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CommandState {
    None,
    Running,
    /// The command itself may have ended; what it started is being ended.
    Ending,
}

/// Where a failure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Site {
    /// A slot and its holder's epoch.
    Node(NodeId, u64),
    Rank(Rank),
    Command,
    /// All ranks: they stand still.
    Hang,
    /// A start of the command: ranks do not join.
    Start,
}

/// A slot's holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NodeSlotState {
    /// The keeper was started; its agent has not said hello.
    Starting { since: Time },
    /// The agent speaks.
    Up,
    /// Lost; its processes are being killed.
    Fencing { since: Time, storage: Storage },
    /// Its keeper has ended, and that was wanted.
    Ended,
}

#[derive(Debug)]
struct NodeSlot {
    epoch: u64,
    state: NodeSlotState,
    address: Option<SocketAddr>,
    agent_pid: Option<u32>,
    agent_restarts: u32,
    /// When its agent was last seen to be started anew.
    anew: Option<Time>,
    ranks: BTreeMap<Rank, u32>,
    last_heard: Time,
    suspected: Option<Time>,
    suspected_by: BTreeSet<NodeId>,
    dead_by: BTreeSet<NodeId>,
    /// Peers that miss it, and since when they say so.
    missed: BTreeMap<NodeId, apart::Missed>,
    /// Since when peers call it dead while the launcher hears it.
    cut_off: Option<Time>,
    ready: bool,
    /// Since when its agent has not taken part in the incarnation that runs.
    outside: Option<Time>,
    /// A rank there waits for its agent.
    held: bool,
    /// Where the node took the restored bytes from.
    rebuilt_from: Option<Level>,
    finished: bool,
    /// How often members had changed when its holder last did, and when its agent was last told of
    /// them all on its present connection.
    changed: u64,
    told: Option<u64>,
    /// Storage was lost since the last incarnation.
    replaced: bool,
    /// An injection killed it then.
    hit: Option<Time>,
    /// The storage of the present holder was removed (by an injection), or is out of reach.
    wiped: bool,
    /// An injection has sent its keeper SIGKILL; its end is still to come.
    doomed: bool,
}

/// The supervision of one job. See the module's invariants.
#[derive(Debug)]
pub struct Supervisor {
    set: Settings,
    phase: Phase,
    command: CommandState,
    /// Since when the command's processes have been killed, until that was told.
    ending_since: Option<Time>,
    slots: BTreeMap<NodeId, NodeSlot>,
    /// How often a slot has come to live elsewhere.
    changes: u64,
    ranks_total: Option<u32>,
    /// Registered ranks of this incarnation that ended without failing.
    left: BTreeSet<Rank>,
    /// Ranks that are gone for a reason not yet known, and until when to wait.
    unexplained: BTreeMap<Rank, Time>,
    last_incarnation: u32,
    spares_left: u32,
    restarts: u32,
    /// The failures of the recovery under way: where, and when found. They are the
    /// last entries of the report.
    open: Vec<(Site, Time)>,
    /// Ranks of them that were killed by who knows whom: perhaps by the program's own
    /// launcher, because of the failure that is found next.
    collateral: BTreeSet<Rank>,
    /// Entries, from the end, that wait for all ranks to register.
    relaunching: usize,
    /// Restarts in a row without a newer stable version.
    fruitless: u32,
    /// Starts in a row that ended at once.
    quick: u32,
    /// The exit status of the first of them that ended by itself, else of the first,
    /// and whether it was its own.
    quick_first: Option<(u8, bool)>,
    /// The job's exit status is that of a rank that was killed by who knows whom: the
    /// first own status that is seen before the end takes its place.
    provisional: bool,
    not_before: Time,
    ready_at: Option<Time>,
    command_status: Option<Ended>,
    first_start: Option<Time>,
    newest_stable: Option<Version>,
    /// In this incarnation, by level: another one may come to the same versions.
    stable_here: Stable,
    newest_offered: Option<Version>,
    captured_here: Heard,
    pace: apart::Pace,
    judge: Judge,
    /// Where ranks are asked to be, of a job that stands still.
    inquiry: Option<hang::Inquiry>,
    /// For how long ranks have been awaited, and what is being found out about that.
    joining: Judge,
    look: Option<joining::Look>,
    /// The nodes that have captured a version, and the longest time a rank was blocked, until
    /// all have.
    capturing: Option<steered::Capturing>,
    steering: Option<Steering>,
    course: course::Course,
    words: words::Words,
    restore_errors: BTreeMap<Option<Rank>, Error>,
    verdict: Option<Verdict>,
    interrupts: u32,
    /// A checkpoint is to be taken before the job is ended from outside.
    warned: bool,
    /// The signal that has announced a preemption.
    announced: Option<i32>,
    injections: Vec<injections::Tracked>,
    rank_hits: BTreeMap<Rank, Time>,
    last_probe: Time,
    last_seen: Time,
    /// When all slots were looked at, the next time to do so: a [routine](routine) word before
    /// then changes nothing of that.
    due: Time,
    /// Of that, when a node that is silent will be suspected or given up.
    silence_at: Time,
    /// And when it may be said that the job stands still.
    hang_at: Time,
    /// Lost holders of which processes may still run.
    unfenced: BTreeSet<(NodeId, u64)>,
    open_retries: u32,
    /// Since when no incarnation opens for what all nodes share.
    shared_out_since: Option<Time>,
    /// How often the orders of this opening were repeated.
    repeats: u32,
    /// When they are repeated next.
    repeat_at: Time,
    fresh: bool,
    /// The newest incarnation in which a version was stable, 0 if none.
    history: Incarnation,
    /// What each node said that it has, if it is no committed version.
    traces: BTreeMap<NodeId, String>,
    scrubs: Scrubs,
    report: Report,
    actions: VecDeque<Action>,
}

impl Supervisor {
    /// A supervisor of a job whose nodes are to be started. Call
    /// [`Supervisor::handle`] with [`Input::Timer`] to begin.
    pub fn new(set: Settings, now: Time) -> Supervisor {
        let slot = |node: u32| (NodeId(node), NodeSlot::new(set.epoch_of(node), now));
        let mut supervisor = Supervisor {
            phase: Phase::Assembling { since: now },
            command: CommandState::None,
            ending_since: None,
            slots: (0..set.nodes).map(slot).collect(),
            changes: 0,
            ranks_total: None,
            left: BTreeSet::new(),
            unexplained: BTreeMap::new(),
            last_incarnation: set.last_incarnation,
            spares_left: set.spares,
            restarts: 0,
            open: Vec::new(),
            collateral: BTreeSet::new(),
            relaunching: 0,
            fruitless: 0,
            quick: 0,
            quick_first: None,
            provisional: false,
            not_before: now,
            ready_at: None,
            command_status: None,
            first_start: None,
            newest_stable: None,
            stable_here: Stable::default(),
            newest_offered: None,
            captured_here: Heard::default(),
            pace: apart::Pace::new(now),
            judge: Judge::new(now),
            inquiry: None,
            joining: Judge::new(now),
            look: None,
            capturing: None,
            steering: steered::begin(&set, now),
            course: course::Course::default(),
            words: words::Words::default(),
            restore_errors: BTreeMap::new(),
            verdict: None,
            interrupts: 0,
            warned: false,
            announced: None,
            injections: injections::track(&set.injections),
            rank_hits: BTreeMap::new(),
            last_probe: now,
            last_seen: now,
            due: now,
            silence_at: now,
            hang_at: now,
            unfenced: BTreeSet::new(),
            open_retries: 0,
            shared_out_since: None,
            repeats: 0,
            repeat_at: now,
            fresh: set.fresh,
            history: set.history,
            traces: BTreeMap::new(),
            scrubs: Scrubs::default(),
            report: Report {
                domains: set.domains.clone(),
                ..Report::new(&set.job, set.nodes)
            },
            actions: VecDeque::new(),
            set,
        };
        supervisor.report.policy = Some(supervisor.policy_entry(now));
        for (node, slot) in &supervisor.slots {
            supervisor.actions.push_back(Action::StartNode {
                node: *node,
                epoch: slot.epoch,
                storage: Storage::Keep,
            });
        }
        supervisor
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input) {
        if matches!(self.phase, Phase::Done) {
            return;
        }
        self.excuse_own_stall(now);
        if now < self.due && self.is_routine(&input) {
            return self.take_routine(now, input);
        }
        self.time_at_work(now);
        match input {
            Input::Timer => {}
            Input::Notice {
                node,
                epoch,
                notice,
            } => self.on_notice(now, node, epoch, notice),
            Input::LinkDown { node, epoch } => self.on_link_down(node, epoch),
            Input::KeeperEnded { node, epoch, ended } => {
                self.on_keeper_ended(now, node, epoch, ended);
            }
            Input::NodeGone {
                node,
                epoch,
                cause,
                storage,
            } => self.on_node_gone(now, (node, epoch), cause, storage),
            Input::NodeFailed { node, epoch, error } => {
                self.on_node_failed(now, node, epoch, error);
            }
            Input::Fenced {
                node,
                epoch,
                complete,
            } => self.on_fenced(now, node, epoch, complete),
            Input::CommandEnded { ended } => self.on_command_ended(now, ended),
            Input::CommandFailed { error } => self.on_command_failed(now, error),
            Input::CommandSeen { number, found } => self.on_command_seen(number, found),
            Input::TreeEnded => self.on_tree_ended(now),
            Input::RankGone { rank, pid, ended } => self.on_rank_gone(now, rank, pid, ended),
            Input::Interrupt {
                signal,
                from_terminal,
            } => self.on_interrupt(now, signal, from_terminal),
            Input::Coordinator(said) => self.on_coordinator(now, &said),
            Input::Note { error } => self.warn(error),
            Input::Refused { error } => self.on_refused(error),
        }
        self.advance(now);
        self.silence_at = self.next_silence();
        self.hang_at = self.next_hang();
        self.due = Time::NEVER;
        self.due = self.deadline();
    }

    /// What is to be done, oldest first.
    pub fn take_actions(&mut self) -> VecDeque<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The report so far.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// The number of the incarnation opened last, 0 before the first.
    pub const fn incarnation(&self) -> u32 {
        self.last_incarnation
    }

    fn tell(&mut self, event: Event) {
        if self.waits(&event) {
            return;
        }
        self.speak_before(&event);
        self.actions.push_back(Action::Tell(event));
        self.say_end();
    }

    fn order(&mut self, node: NodeId, order: Order) {
        self.actions.push_back(Action::Order { node, order });
    }

    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// True while the job may still go on.
    fn is_alive(&self) -> bool {
        self.verdict.is_none()
    }

    fn node_of(&self, rank: Rank) -> Option<NodeId> {
        let registered = self.slots.iter().find(|(_, s)| s.ranks.contains_key(&rank));
        match (registered, self.ranks_total) {
            (Some((node, _)), _) => Some(*node),
            (None, Some(ranks)) if rank.0 < ranks => {
                Some(placement::node_of(rank, ranks, self.set.nodes))
            }
            _ => None,
        }
    }

    fn pid_of(&self, rank: Rank) -> Option<u32> {
        self.slots
            .values()
            .find_map(|slot| slot.ranks.get(&rank).copied())
    }

    /// The failures of the recovery under way.
    fn open_entries(&mut self) -> &mut [FailureEntry] {
        let from = self.report.failures.len() - self.open.len();
        &mut self.report.failures[from..]
    }
}

impl NodeSlot {
    fn new(epoch: u64, now: Time) -> NodeSlot {
        NodeSlot {
            epoch,
            state: NodeSlotState::Starting { since: now },
            address: None,
            agent_pid: None,
            agent_restarts: 0,
            anew: None,
            ranks: BTreeMap::new(),
            last_heard: now,
            suspected: None,
            suspected_by: BTreeSet::new(),
            dead_by: BTreeSet::new(),
            missed: BTreeMap::new(),
            cut_off: None,
            ready: false,
            outside: None,
            held: false,
            rebuilt_from: None,
            finished: false,
            changed: 0,
            told: None,
            replaced: false,
            hit: None,
            wiped: false,
            doomed: false,
        }
    }

    /// True if an agent of this number belongs to the slot's present holder. The
    /// agent's number grows with each of its own restarts.
    const fn holds(&self, epoch: u64) -> bool {
        epoch >= self.epoch && epoch < self.epoch + types::EPOCH_STEP
    }

    fn is_up(&self) -> bool {
        self.state == NodeSlotState::Up
    }

    /// Its agent is heard and holds no rank.
    fn speaks(&self) -> bool {
        self.is_up() && self.suspected.is_none() && !self.held
    }
}
