//! What goes into the supervisor and what comes out.

use crate::orders::{Bounds, LevelSetting, Notice, Order, Policy};
use crate::processes::Process;
use outlive_base::{Error, Incarnation, JobName, Level, NodeId, Rank, Version};

use serde::{Deserialize, Serialize};

use crate::ended::Ended;
use crate::health::Change;
use crate::inject::Injection;
use crate::refused::Refused;
use crate::scrubbing::ScrubSetting;
use crate::standstill::HangRule;
use crate::steering::Wishes;
use crate::transfers::TransferSetting;
use crate::turns::{Answer, Ask, Tiers};
use outlive_planner::online::learned::Learned;

/// Distance between the epochs of two holders of a slot; an agent that its keeper
/// starts anew counts up in between.
pub const EPOCH_STEP: u64 = 1 << 16;

/// How the supervisor is to act. Times in milliseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job.
    pub job: JobName,
    /// Number of slots.
    pub nodes: u32,
    /// The slot whose agent begins checkpoints and decides; agents hear it from who starts them. It
    /// is the same in all runs of a job: no record says which it was, and another would not know
    /// what the last one alone had decided.
    pub coordinator: NodeId,
    /// Nodes that may take the place of lost ones.
    pub spares: u32,
    /// Restarts of the command at most.
    pub max_restarts: u32,
    /// First delay before a restart that follows one without progress; doubles.
    pub backoff_ms: u64,
    /// Largest such delay.
    pub backoff_max_ms: u64,
    /// From SIGTERM to SIGKILL when the command is ended in order.
    pub kill_grace_ms: u64,
    /// How long a rank that is gone for unknown reason waits for the command's end.
    pub settle_ms: u64,
    /// From a keeper's start to its agent's first word.
    pub start_ms: u64,
    /// From SIGKILL to the end of all processes of a node.
    pub fence_ms: u64,
    /// A start that fails earlier, without a newer stable version, died at once.
    pub quick_ms: u64,
    /// So many in a row end the job.
    pub quick_max: u32,
    /// Tries in a row to open an incarnation, after the first.
    pub open_tries_max: u32,
    /// How long storage that all nodes share and that cannot be read or written, or the way between
    /// two nodes, is waited for before the job is given up.
    pub shared_patience_ms: u64,
    /// Between two looks at the clock: a longer gap is the launcher's own stall.
    pub look_ms: u64,
    /// Between two questions to each agent.
    pub probe_ms: u64,
    /// Bounds of the agents, and of silence.
    pub bounds: Bounds,
    /// The failure domain of each node; empty: each is its own.
    pub domains: Vec<u32>,
    /// Levels in use.
    pub levels: Vec<LevelSetting>,
    /// When a checkpoint is wanted.
    pub policy: Policy,
    /// It is decided by costs and failures; `policy` then says nothing.
    pub auto: Option<Wishes>,
    /// A signal that announces a preemption, the first time that it comes: a last version, then an
    /// orderly end.
    pub preempt_signal: Option<i32>,
    /// Versions to keep.
    pub keep: u32,
    /// How many nodes take turns at a node's copies, version by version (level partner).
    pub partners: u32,
    /// How copies are read before they are needed.
    pub scrub: ScrubSetting,
    /// How they come to shared storage.
    pub transfer: TransferSetting,
    /// What a version may not hold.
    pub refused: Refused,
    /// Restore nothing at the first start.
    pub fresh: bool,
    /// Begin anew by itself when nothing can be restored (`--on-nothing-usable fresh`).
    pub anew_if_nothing: bool,
    /// The newest incarnation in which a version is known to have been stable, 0 if none.
    pub history: Incarnation,
    /// When the job is said to stand still, and what follows.
    pub hang: HangRule,
    /// Faults.
    pub injections: Vec<Injection>,
    /// The last incarnation of earlier runs, 0 if none.
    pub last_incarnation: u32,
    /// The epoch before the first of this run: `epoch_base + EPOCH_STEP` is used.
    pub epoch_base: u64,
    /// Two nodes that miss each other for so long after they would have called each other dead,
    /// while ranks wait: one of them is given up. `None`: never.
    pub apart_ms: Option<u64>,
    /// A fenced node's storage stays in reach (one machine, no emulation).
    pub storage_stays: bool,
    /// A fault of the supervisor, in tests.
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

/// Faults of a supervisor that the tests plant to prove that the simulator's judge sees them.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// What was carried out is carried out again when an agent is started anew.
    RepeatInjection,
    /// What is lost on its way to an agent is not said again.
    ForgetInjection,
    /// That a number of an incarnation was used before changes nothing.
    IgnoreUsedNumbers,
}

impl Settings {
    /// Defaults for a job of `nodes` slots.
    pub fn new(job: JobName, nodes: u32) -> Settings {
        Settings {
            job,
            nodes,
            coordinator: NodeId(0),
            spares: 1,
            max_restarts: 10,
            backoff_ms: 1_000,
            backoff_max_ms: 60_000,
            kill_grace_ms: 2_000,
            settle_ms: 80,
            start_ms: 30_000,
            fence_ms: 5_000,
            quick_ms: 5_000,
            quick_max: 3,
            open_tries_max: 3,
            shared_patience_ms: 600_000,
            look_ms: 250,
            probe_ms: 1_000,
            bounds: Bounds::default(),
            domains: Vec::new(),
            levels: Vec::new(),
            policy: Policy::default(),
            auto: None,
            preempt_signal: None,
            keep: 2,
            partners: 1,
            scrub: ScrubSetting::default(),
            transfer: TransferSetting::default(),
            refused: Refused::default(),
            fresh: false,
            anew_if_nothing: false,
            history: Incarnation(0),
            hang: HangRule::default(),
            injections: Vec::new(),
            last_incarnation: 0,
            epoch_base: 0,
            apart_ms: None,
            storage_stays: nodes == 1,
            planted: None,
        }
    }

    pub(super) fn domain_of(&self, node: NodeId) -> u32 {
        let given = self.domains.get(node.0 as usize).copied();
        given.unwrap_or(node.0)
    }

    pub(super) const fn epoch_of(&self, _node: u32) -> u64 {
        self.epoch_base + EPOCH_STEP
    }
}

/// What becomes of a slot's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Storage {
    /// The next holder finds it as it is.
    Keep,
    /// The next holder begins with an empty one.
    Empty,
}

/// What a job hears of the coordinator of its shared storage.
#[derive(Clone, Debug)]
pub enum Said {
    /// What it writes to is known, or is another now.
    Tiers(Tiers),
    /// It is there.
    Up,
    /// It is gone.
    Down,
    /// It answers.
    Answer(Answer),
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Timer,
    /// An agent said something.
    Notice {
        /// Its slot.
        node: NodeId,
        /// Which agent.
        epoch: u64,
        /// What.
        notice: Notice,
    },
    /// The connection to an agent broke.
    LinkDown {
        /// Its slot.
        node: NodeId,
        /// Which agent.
        epoch: u64,
    },
    /// A keeper's process ended.
    KeeperEnded {
        /// Its slot.
        node: NodeId,
        /// Which holder.
        epoch: u64,
        /// How.
        ended: Ended,
    },
    /// The machine of a slot cannot be reached, or takes no keeper.
    NodeGone {
        /// Its slot.
        node: NodeId,
        /// Which holder.
        epoch: u64,
        /// What was seen.
        cause: String,
        /// What another start may find: [`Storage::Keep`] if the machine may be there still.
        storage: Storage,
    },
    /// A keeper could not be started, and no other place would help.
    NodeFailed {
        /// Its slot.
        node: NodeId,
        /// Which holder.
        epoch: u64,
        /// Why.
        error: Error,
    },
    /// The processes of a slot are gone ([`Action::Fence`]).
    Fenced {
        /// The slot.
        node: NodeId,
        /// Which holder.
        epoch: u64,
        /// False: some could not be ended within the bound.
        complete: bool,
    },
    /// The command's own process ended.
    CommandEnded {
        /// How.
        ended: Ended,
    },
    /// The command could not be started.
    CommandFailed {
        /// Why.
        error: Error,
    },
    /// What the command's processes are doing ([`Action::LookAtCommand`]).
    CommandSeen {
        /// The number of the look.
        number: u32,
        /// Those on the launcher's machine, parents before their children.
        found: Vec<Process>,
    },
    /// No process of the command is left ([`Action::EndCommand`]).
    TreeEnded,
    /// A registered rank's process ended, seen by the launcher itself.
    RankGone {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
        /// How, if the kernel tells.
        ended: Option<Ended>,
    },
    /// A signal asks the launcher to end; SIGUSR1: says that something else will end it.
    Interrupt {
        /// Its number.
        signal: i32,
        /// The terminal sent it to the command as well.
        from_terminal: bool,
    },
    /// The coordinator of the shared storage is there, says something, or is gone.
    Coordinator(Said),
    /// What was found out beside the job, to be told.
    Note {
        /// Details.
        error: Error,
    },
    /// Somebody without the key, or of another version, knocked.
    Refused {
        /// Details.
        error: Error,
    },
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Start a keeper for this slot.
    StartNode {
        /// The slot.
        node: NodeId,
        /// Which holder.
        epoch: u64,
        /// What it finds.
        storage: Storage,
    },
    /// Send an order to the slot's agent.
    Order {
        /// The slot.
        node: NodeId,
        /// The order.
        order: Order,
    },
    /// SIGKILL keeper, agent and ranks of a slot; answer [`Input::Fenced`].
    Fence {
        /// The slot.
        node: NodeId,
        /// Which holder.
        epoch: u64,
        /// Its other processes.
        pids: Vec<u32>,
    },
    /// An injection: the same without an answer, and the storage goes too.
    KillNode {
        /// The slot.
        node: NodeId,
        /// Its processes besides the keeper.
        pids: Vec<u32>,
    },
    /// An injection: SIGKILL the keeper only.
    KillKeeper {
        /// The slot.
        node: NodeId,
    },
    /// SIGKILL these processes.
    Kill {
        /// The slot on which they live.
        node: NodeId,
        /// Their numbers.
        pids: Vec<u32>,
    },
    /// SIGSTOP or SIGCONT these processes of a slot.
    Freeze {
        /// The slot on which they live.
        node: NodeId,
        /// Its keeper is meant too.
        keeper: bool,
        /// Processes.
        pids: Vec<u32>,
        /// Stop, or go on.
        stop: bool,
    },
    /// Watch this process; answer [`Input::RankGone`] when it ends.
    WatchRank {
        /// The slot on which it lives.
        node: NodeId,
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
    },
    /// Start the command; answer [`Input::CommandFailed`] if that is impossible and
    /// [`Input::CommandEnded`] when it ends.
    StartCommand {
        /// The incarnation it belongs to.
        incarnation: Incarnation,
    },
    /// End every process of the command; answer [`Input::TreeEnded`].
    EndCommand {
        /// Sent to the command first, if given.
        signal: Option<i32>,
        /// From then to SIGKILL, in milliseconds.
        grace_ms: u64,
    },
    /// End the keeper in order: SIGTERM, then SIGKILL.
    StopNode {
        /// The slot.
        node: NodeId,
    },
    /// Remember durably that this incarnation is being opened.
    RecordIncarnation {
        /// Its number.
        incarnation: Incarnation,
        /// The largest epoch in use.
        epoch: u64,
    },
    /// Remember durably the newest version that is known to be stable, and the incarnation
    /// in which it is; `None`: the owner's word to begin anew was carried out.
    RecordHistory {
        /// What is known.
        history: Option<(Incarnation, Version)>,
    },
    /// Remember durably what was learned of costs and failures.
    RecordLearned(Learned),
    /// Write down where the ranks of a job that stands still are.
    WriteStacks {
        /// The number of the standstill.
        number: u32,
        /// For people.
        text: String,
    },
    /// Look at the command's processes on this machine; answer [`Input::CommandSeen`].
    LookAtCommand {
        /// The number of the look.
        number: u32,
        /// How long that may take, in milliseconds.
        within_ms: u64,
    },
    /// Say this to the coordinator of the shared storage.
    Coordinate(Ask),
    /// Tell the user.
    Tell(Event),
    /// The end. Kill whatever is left.
    Done(Outcome),
}

/// How the job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The command ended with 0.
    Ok,
    /// It did not, or cannot go on; the exit status.
    Failed(u8),
    /// A signal asked for the end; the exit status.
    Interrupted(u8),
}

/// The end of supervision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How the job ended.
    pub verdict: Verdict,
    /// The exit status of `outlive run`.
    pub exit_status: u8,
}

/// Something a user may want to see while it happens. As JSON its name is the field `kind`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Event {
    /// All agents speak.
    NodesUp {
        /// How many.
        nodes: u32,
    },
    /// An incarnation is open.
    Opened {
        /// Its number.
        incarnation: Incarnation,
        /// The version that ranks will restore.
        restored: Option<Version>,
        /// The most stable level that was needed.
        level: Option<Level>,
        /// Milliseconds.
        rebuild_ms: f64,
        /// Newer versions that could not be used.
        rejected: usize,
        /// The command ran before in this run.
        restart: bool,
        /// The version was given up at that level: other nodes' copies are not there.
        given_up: bool,
    },
    /// The command runs.
    CommandStarted {
        /// Of this incarnation.
        incarnation: Incarnation,
    },
    /// All ranks have registered.
    RanksUp {
        /// How many.
        ranks: u32,
        /// Since the incarnation was open, in milliseconds.
        after_ms: f64,
    },
    /// When checkpoints are wanted has changed.
    Steered {
        /// What is in force and why.
        why: String,
    },
    /// A version was captured by all ranks.
    Captured {
        /// The version.
        version: Version,
    },
    /// A version is stable at a level.
    Stable {
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// A version was given up.
    Aborted {
        /// The version.
        version: Version,
        /// At one level, or at all.
        level: Option<Level>,
        /// Why.
        error: Error,
    },
    /// A level keeps versions again that it had given up.
    KeptAgain {
        /// The version that it keeps.
        version: Version,
        /// The level; `None`: all ranks captured one again.
        level: Option<Level>,
        /// So many in a row were given up before.
        given_up: u64,
    },
    /// At the end: versions in a row that were given up, told once, counted since.
    NotKept {
        /// At this level, or at all.
        level: Option<Level>,
        /// So many.
        versions: u64,
        /// The last of them.
        last: Version,
    },
    /// A failure was found.
    Failure {
        /// What.
        what: String,
        /// After so many milliseconds a silent node was suspected.
        suspected_ms: Option<f64>,
        /// After so many milliseconds, if that is known.
        detect_ms: Option<f64>,
    },
    /// The ranks live and come no further.
    Hang {
        /// For how long, and where they are.
        what: String,
    },
    /// The ranks of a job that was said to stand still come forward.
    Resumed {
        /// After how long, and what that changes.
        what: String,
    },
    /// All processes of the command and of lost nodes are gone.
    Cleared {
        /// Milliseconds since the failure was found.
        fence_ms: f64,
    },
    /// A spare took a slot, or the slot was started again.
    Replaced {
        /// The slot.
        node: NodeId,
        /// Spares left; `None`: none was needed.
        spares_left: Option<u32>,
    },
    /// The next start waits.
    BackOff {
        /// Milliseconds.
        ms: u64,
    },
    /// A node is silent.
    Suspected {
        /// The node.
        node: NodeId,
        /// For so long, in milliseconds.
        silent_ms: u64,
    },
    /// It was heard again.
    Heard {
        /// The node.
        node: NodeId,
    },
    /// An agent was started anew by its keeper; the job did not stop.
    AgentRestarted {
        /// The node.
        node: NodeId,
        /// How often so far.
        restarts: u32,
    },
    /// An injection was carried out.
    Injected {
        /// As written.
        text: String,
        /// At this version, if the target offered one.
        version: Option<Version>,
    },
    /// A signal says that the job will be ended from outside: a checkpoint is taken now.
    Warned,
    /// A signal announces a preemption: a checkpoint is taken now and another one as late as that
    /// is safe, then the job ends in order.
    Announced {
        /// Its number.
        signal: i32,
        /// Until the machines are taken away, in milliseconds.
        notice_ms: u64,
    },
    /// A signal asks for the end.
    Interrupted {
        /// Its number.
        signal: i32,
        /// How often so far.
        times: u32,
    },
    /// The job is over; flushes are being finished.
    Finishing,
    /// A sensor of a node's machine is worse than it was, or well again. Nothing follows of it
    /// yet.
    Health {
        /// The node.
        node: NodeId,
        /// What has changed.
        change: Change,
    },
    /// Something went wrong that stops nothing.
    Warning(Error),
    /// So many more like one that was told.
    More {
        /// The one that was told.
        error: Error,
        /// How many.
        more: u64,
    },
    /// Something ended the job.
    Fatal(Error),
}

impl Event {
    /// What has failed, as the report names it: `node:2`, `rank:3`, `command`.
    pub fn place(&self) -> Option<&str> {
        match self {
            Event::Failure { what, .. } => Some(what.split_once(" lost: ")?.0),
            _ => None,
        }
    }
}
