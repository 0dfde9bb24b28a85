//! Histories of a whole job: the supervisor and the nodes that run in jobs
//! ([`outlive_control`]), over simulated ranks, memory, storage, clocks and connections, with
//! faults from a seed and an independent judge.
//!
//! Invariants of the harness: what takes time ends later, in an order of its own; words
//! between launcher and agents come in order until their connection breaks, and then what is
//! under way is lost; peers lose, repeat and reorder; an agent may end between any two of its
//! effects; a keeper's memory outlives its agents, storage outlives the keeper if the fault
//! says so; every fault is told to the judge.

mod chaos;
mod checker;
mod ends;
mod forced;
mod health;
mod injected;
mod late;
mod launcher;
mod losses;
mod meetings;
mod node;
mod options;
mod parity;
mod program;
mod records;
mod scale;
mod scrub;
mod served;
mod shell;
mod slots;
mod storage;
mod strikes;
mod sweep;
mod themes;
mod transfer;
mod twins;
mod waits;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use outlive_base::ipc::{ToAgent, ToRank};
use outlive_base::machine::Op;
use outlive_base::rng::Sequence;
use outlive_base::{NodeId, Time};
use outlive_control::ended::{Ended, SIGKILL};
use outlive_control::health::Finding;
use outlive_control::node::Input as NodeInput;
use outlive_control::node::copies::Reading;
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::{Done, Making, PeerMessage, Rebuild, Target};
use outlive_control::orders::{Notice, Order};
use outlive_control::supervisor::{self, Input};
use outlive_ledger::GcPolicy;

use crate::engine::{Happening, Queue, Slab, Trace};
use crate::network::{Lossy, Network};

pub use checker::{Checker, CopyAt, Key};
pub use health::Unwell;
pub use losses::{AfterLoss, Loss, lose};
pub use meetings::{Meetings, Occasion};
pub use options::{Options, Weights};
pub use scale::{Phase, Scale, measure};
pub use strikes::{AfterStrike, Blow, First, Stage, Strike, Victim, strike, strike_told};
pub use sweep::{Summary, sweep};
pub use themes::Theme;

use ends::Ends;
use injected::Injections;
use launcher::Launcher;
use node::{Home, Process};
use program::Program;
use scale::Meter;
use shell::Carry;
use work::Writing;

/// So many times as long as usual something takes now and then.
const STRETCHED: u64 = 30;
/// And no longer than this by that, in microseconds.
const STRETCHED_MOST: u64 = 600_000;
/// What a stopped rank is to do is looked at again after so long.
const STOPPED_LOOK: Time = Time::from_ms(20);
/// Far more than ever happens in a history, unless messages answer each other without end.
const HAPPENINGS_MAX: u64 = 1_000_000;

/// What is going to happen.
enum Action {
    /// A peer's message arrives.
    Deliver {
        to: Process,
        from: NodeId,
        epoch: u64,
        message: Rc<PeerMessage>,
    },
    /// A word of an agent reaches the launcher, if the connection did not break.
    Hear {
        who: Process,
        number: u32,
        notice: Box<Notice>,
    },
    /// An order reaches an agent, if the connection did not break.
    Obey {
        who: Process,
        number: u32,
        order: Box<Order>,
    },
    /// A connection that broke is made again.
    Reconnect {
        who: Process,
        number: u32,
    },
    /// An agent must hear of the time.
    Wake {
        who: Process,
        life: u32,
        at: Time,
    },
    /// Something that an agent asked for is done.
    Done {
        who: Process,
        life: u32,
        done: Box<Done<PlainSlab>>,
    },
    /// A record is synced.
    Synced {
        who: Process,
        life: u32,
        op: Op,
        shared: bool,
    },
    /// A copy of a version is written.
    Copy {
        who: Process,
        life: u32,
        writing: Rc<Writing>,
        target: Target,
    },
    /// All copies are.
    Written {
        who: Process,
        life: u32,
        writing: Rc<Writing>,
    },
    /// A parity is made.
    Parity {
        who: Process,
        life: u32,
        making: Rc<Making>,
    },
    /// A copy at `shared` is made of a container.
    Transfer {
        who: Process,
        life: u32,
        way: transfer::OnTheWay,
    },
    /// A copy is read.
    Scrub {
        who: Process,
        life: u32,
        reading: Rc<Reading>,
    },
    /// An agent has waited at a fail point for as long as it may.
    HoldOver {
        who: Process,
        life: u32,
        id: u32,
    },
    /// Old copies are removed.
    Collect {
        who: Process,
        life: u32,
        policy: Box<GcPolicy>,
        shared: bool,
    },
    /// A version is brought into memory.
    Rebuild {
        who: Process,
        life: u32,
        tries: u32,
        wanted: Rc<Rebuild<PlainSlab>>,
    },
    /// What a process has written to shared storage appears there after its end.
    Lands {
        late: Box<late::Late>,
    },
    /// A keeper starts its agent again.
    Restart {
        who: Process,
    },
    /// The supervisor's timer.
    Timer {
        at: Time,
    },
    /// A keeper starts; it finds what the last holder of its slot stored, or nothing.
    StartNode {
        run: u32,
        node: u32,
        epoch: u64,
        keep: bool,
    },
    /// The processes of a slot are gone.
    Fenced {
        node: u32,
        epoch: u64,
    },
    /// The launcher sees that a keeper has ended.
    KeeperEnded {
        node: u32,
        epoch: u64,
    },
    /// The command starts its ranks.
    StartRanks {
        epoch: u32,
    },
    /// The ranks of the command are gone.
    EndRanks {
        epoch: u32,
    },
    /// The launcher sees the end of a rank.
    RankKilled {
        rank: u32,
        pid: u32,
    },
    /// The launcher sees that a rank has ended well.
    RankExited {
        rank: u32,
        pid: u32,
    },
    /// The command's own process ends.
    CommandOver {
        epoch: u32,
        ended: Ended,
    },
    /// A keeper that was told to end does.
    KeeperStops {
        node: u32,
        epoch: u64,
    },
    /// The programs come to their last version.
    LastVersions,
    /// An agent ends shortly before the job.
    LateRestart,
    /// A rank looks for its agent.
    Reach {
        rank: u32,
        epoch: u32,
    },
    /// A rank's next step.
    Step {
        rank: u32,
        epoch: u32,
    },
    /// A rank has filled its slab.
    Filled {
        rank: u32,
        epoch: u32,
    },
    /// A rank has waited long enough.
    Late {
        rank: u32,
        epoch: u32,
        sequence: u32,
    },
    /// A rank's message reaches the agent.
    Said {
        who: Process,
        life: u32,
        token: u64,
        sequence: u32,
        message: ToAgent,
    },
    /// An agent's answer reaches the rank.
    Answer {
        token: u64,
        sequence: u32,
        message: ToRank,
        carry: Carry,
    },
    /// A checkpoint that the program takes by itself.
    Force,
    /// What was under way at a node meets an end.
    Strike {
        who: Process,
        life: u32,
    },
    /// The strike that a job was made for, and its end.
    Blow,
    BlowOver,
    /// A fault is drawn.
    Chaos,
    /// A partition ends.
    Rejoin,
    /// All faults end.
    Heal,
}

/// What became of a history.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was drawn from it.
    pub options: Options,
    /// What the judge found; empty is good.
    pub violations: Vec<String>,
    /// The hash of the history (P8).
    pub trace: u64,
    /// Versions declared stable, by level.
    pub stable: usize,
    /// Times at which the job was said to stand still.
    pub hangs: u64,
    /// What people were told of the health of nodes: the node, and a sensor of it.
    pub health: Vec<(u32, Finding)>,
    /// Incarnations that opened.
    pub opened: usize,
    /// Injections that were carried out.
    pub injected: usize,
    /// Copies at `shared` that were made of containers in node storage.
    pub transfers: u64,
    /// Writes that appeared in shared storage after the end of their process.
    pub late: u64,
    /// Occasions at which something was to end.
    pub met: u64,
    /// Times at which a node has said how the coordinator's clock stands to its own.
    pub clocks: u64,
    /// Waits of ranks for a version that have ended.
    pub waited: u64,
    /// Copies that had rotted and were mended before they were needed.
    pub mended: u64,
    /// Openings that went back behind what was stable.
    pub behind: u64,
    /// Happenings.
    pub happenings: u64,
    /// The printable history, if asked for.
    pub lines: Vec<String>,
}

/// The whole history.
struct Job {
    now: Time,
    queue: Queue,
    actions: Slab<Action>,
    happenings: u64,
    trace: Trace,
    lines: Option<Vec<String>>,
    options: Options,
    seed: u64,
    random: Sequence,
    net: Lossy,
    judge: Checker,
    homes: Vec<Home>,
    /// Which process holds a slot.
    slots: Vec<Process>,
    programs: BTreeMap<u32, Program>,
    /// Connections of ranks: process, its life, rank, the ranks' epoch.
    links: BTreeMap<u64, (Process, u32, u32, u32)>,
    tokens: u64,
    /// Second processes that have greeted, by token: the rank, and its process and token then.
    twins: BTreeMap<u64, (u32, u32, u64)>,
    shared: storage::Shared,
    served: storage::Served,
    /// What the ranks of a node have captured of a version, by rank.
    captured: BTreeMap<(Key, u32), BTreeMap<u32, u64>>,
    /// What the ranks of a node have restored, by rank.
    restored: BTreeMap<(u32, u32), BTreeMap<u32, (Key, u64)>>,
    /// What each incarnation restored, as it was recorded.
    sources: BTreeMap<u32, Key>,
    launcher: Launcher,
    injections: Injections,
    ends: Ends,
    /// Ranks' life: grows with every start and stop.
    epoch: u32,
    /// Forced checkpoints: ranks' life and version. All ranks force them, however far apart they are.
    forced: BTreeSet<(u32, u64)>,
    /// What was told of the health of nodes.
    health: Vec<(u32, Finding)>,
    /// Why nothing could be restored, if so.
    nothing: Option<String>,
    /// Times at which it was said to stand still.
    hangs: u64,
    /// The last of them.
    hung: Time,
    /// Writes that appeared after the end of their process.
    late: u64,
    met: u64,
    clocks: slots::Clocks,
    /// Waits of ranks that have ended.
    waited: u64,
    /// Copies that were mended.
    mended: u64,
    /// Copies at `shared` made of containers.
    transfers: u64,
    calm: bool,
    /// When something under way met an end last.
    struck: Time,
    /// A strike at a stage that the job has to come to.
    pending: Option<Box<strikes::Pending>>,
    /// Counts what is sent, where that is measured.
    meter: Option<Box<Meter>>,
}

/// One history of this seed, with the options that the seed gives.
pub fn run_seed(seed: u64) -> Outcome {
    run_history(seed, Options::from_seed(seed), false)
}

/// The printable history of a seed: what `run_seed` did, line by line.
pub fn explain(seed: u64, options: Options) -> Outcome {
    run_history(seed, options, true)
}

/// One history.
pub fn run_history(seed: u64, options: Options, lines: bool) -> Outcome {
    let mut job = Job::new(seed, options);
    job.lines = lines.then(Vec::new);
    job.begin_all();
    let heal = job.options.heal;
    job.after(Time::from_ms(500), Action::Force);
    let tick = job.options.tick;
    job.after(tick, Action::Chaos);
    job.after(heal, Action::Heal);
    job.plan_end();
    job.run();
    job.final_end();
    Outcome {
        seed,
        options: job.options,
        stable: job.judge.stable_count(),
        hangs: job.hangs,
        health: job.health,
        opened: job.judge.opened_count(),
        injected: job.injections.count,
        late: job.late,
        met: job.met,
        clocks: job.clocks.told,
        waited: job.waited,
        mended: job.mended,
        transfers: job.transfers,
        behind: job.judge.behind,
        violations: job.judge.violations,
        trace: job.trace.0,
        happenings: job.happenings,
        lines: job.lines.take().unwrap_or_default(),
    }
}

impl Job {
    fn new(seed: u64, options: Options) -> Job {
        Job {
            now: Time::ZERO,
            queue: Queue::default(),
            actions: Slab::default(),
            happenings: 0,
            trace: Trace::default(),
            lines: None,
            seed,
            random: Sequence::new(seed, 0x6a6f_6273),
            net: Lossy::new(options.net.clone(), seed),
            judge: Checker::new(&options),
            homes: Vec::new(),
            slots: Vec::new(),
            programs: BTreeMap::new(),
            links: BTreeMap::new(),
            tokens: 0,
            twins: BTreeMap::new(),
            shared: storage::Shared::default(),
            served: storage::Served::default(),
            captured: BTreeMap::new(),
            restored: BTreeMap::new(),
            sources: BTreeMap::new(),
            launcher: Launcher::new(&options, seed),
            injections: Injections::after(
                &injected::specs(&options, seed, 0),
                &Injections::default(),
            ),
            ends: Ends::default(),
            epoch: 0,
            forced: BTreeSet::new(),
            health: Vec::new(),
            nothing: None,
            hangs: 0,
            hung: Time::ZERO,
            late: 0,
            met: 0,
            clocks: slots::Clocks::default(),
            waited: 0,
            mended: 0,
            transfers: 0,
            calm: false,
            struck: Time::ZERO,
            pending: None,
            meter: None,
            options,
        }
    }

    /// The launcher asks for all nodes.
    fn begin_all(&mut self) {
        for node in 0..self.options.nodes {
            // A holder for everyone who is asked for before its keeper has started.
            let who = self.new_home(node, 0);
            self.slots.push(who);
        }
        self.supervise(Input::Timer);
    }

    fn after(&mut self, delay: Time, action: Action) {
        let index = self.actions.put(action);
        self.queue
            .push(self.now + delay, Happening::new(0, 0, index));
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:12.3} {}", self.now.as_ms(), line()));
        }
    }

    fn run(&mut self) {
        while let Some((at, what)) = self.queue.pop() {
            let end = self.latest().max(self.options.heal) + ends::ENDING_MAX;
            if at > end || self.ends.is_over() {
                return;
            }
            self.happen(at, what);
            if self.happenings == HAPPENINGS_MAX {
                return self.wrong("P5: messages without end".to_owned());
            }
        }
    }

    fn happen(&mut self, at: Time, what: Happening) {
        self.now = at;
        let Some(action) = self.actions.take(what.index()) else {
            return;
        };
        self.happenings += 1;
        self.trace.add(at.0);
        self.act(action);
    }

    /// True if an agent is frozen: what it is to hear is put off.
    fn is_frozen(&mut self, who: Process) -> Option<Time> {
        let until = self.homes[who as usize].paused_until;
        (until > self.now).then(|| until.since(self.now))
    }

    fn act(&mut self, action: Action) {
        let directed = match &action {
            Action::Deliver { to: who, .. }
            | Action::Obey { who, .. }
            | Action::Wake { who, .. }
            | Action::Done { who, .. }
            | Action::Synced { who, .. }
            | Action::Copy { who, .. }
            | Action::Written { who, .. }
            | Action::Parity { who, .. }
            | Action::Scrub { who, .. }
            | Action::Transfer { who, .. }
            | Action::Collect { who, .. }
            | Action::Rebuild { who, .. }
            | Action::Said { who, .. } => Some(*who),
            _ => None,
        };
        if let Some(left) = directed.and_then(|who| self.is_frozen(who)) {
            return self.after(left, action);
        }
        if let Some(who) = directed.filter(|&who| self.home(who).stopped) {
            return self.home(who).missed.push(action);
        }
        if let Some(left) = self.launcher_waits(&action) {
            return self.after(left, action);
        }
        if self.is_of_stopped_rank(&action) {
            return self.after(STOPPED_LOOK, action);
        }
        match action {
            Action::Deliver {
                to,
                from,
                epoch,
                message,
            } => self.deliver(to, from, epoch, &message),
            Action::Hear {
                who,
                number,
                notice,
            } => self.hear(who, number, *notice),
            Action::Obey { who, number, order } => self.obey(who, number, *order),
            Action::Reconnect { who, number } => self.reconnect(who, number),
            Action::Wake { who, life, at } => self.wake(who, life, at),
            Action::Done { who, life, done } => self.done(who, life, *done),
            Action::Synced {
                who,
                life,
                op,
                shared,
            } => self.synced(who, life, op, shared),
            Action::Copy {
                who,
                life,
                writing,
                target,
            } => self.copy(who, life, &writing, target),
            Action::Written { who, life, writing } => self.written(who, life, writing),
            Action::Parity { who, life, making } => self.make_parity(who, life, &making),
            Action::Scrub { who, life, reading } => self.scrub(who, life, &reading),
            Action::Transfer { who, life, way } => self.transfer(who, life, way),
            Action::Collect {
                who,
                life,
                policy,
                shared,
            } => self.collected(who, life, &policy, shared),
            Action::Rebuild {
                who,
                life,
                tries,
                wanted,
            } => self.rebuild(who, life, tries, wanted),
            Action::Lands { late } => self.lands(*late),
            Action::Restart { who } => self.restart(who),
            Action::HoldOver { who, life, id } => self.hold_over(who, life, id),
            Action::Timer { at } => self.timer(at),
            Action::StartNode {
                run,
                node,
                epoch,
                keep,
            } => self.start_node(run, (node, epoch, keep)),
            Action::Fenced { node, epoch } => self.supervise(Input::Fenced {
                node: NodeId(node),
                epoch,
                complete: true,
            }),
            Action::KeeperEnded { node, epoch } => self.supervise(Input::KeeperEnded {
                node: NodeId(node),
                epoch,
                ended: Ended::Signal(SIGKILL),
            }),
            Action::StartRanks { epoch } => self.start_ranks(epoch),
            Action::EndRanks { epoch } => self.end_ranks(epoch),
            Action::RankKilled { rank, pid } => self.rank_killed(rank, pid),
            Action::RankExited { rank, pid } => self.rank_exited(rank, pid),
            Action::CommandOver { epoch, ended } => self.command_over(epoch, ended),
            Action::KeeperStops { node, epoch } => self.keeper_stops(node, epoch),
            Action::LastVersions => self.last_versions(),
            Action::LateRestart => self.late_restart(),
            Action::Reach { rank, epoch } => self.reach(rank, epoch),
            Action::Step { rank, epoch } => self.step(rank, epoch),
            Action::Filled { rank, epoch } => self.filled(rank, epoch),
            Action::Late {
                rank,
                epoch,
                sequence,
            } => self.late(rank, epoch, sequence),
            Action::Said {
                who,
                life,
                token,
                sequence,
                message,
            } => self.input(
                who,
                life,
                NodeInput::Said {
                    token,
                    sequence,
                    message,
                },
            ),
            Action::Answer {
                token,
                sequence,
                message,
                carry,
            } => self.answered(token, sequence, message, carry),
            Action::Force => self.force(),
            Action::Strike { who, life } => self.strike(who, life),
            Action::Blow => self.blow(),
            Action::BlowOver => self.blow_over(),
            Action::Chaos => self.chaos(),
            Action::Rejoin => self.net.partition(0),
            Action::Heal => self.heal(),
        }
    }

    /// A random time up to `most` microseconds.
    fn some_us(&mut self, most: u64) -> Time {
        // Without it nothing is drawn, and a seed's history stays as it was.
        let often = if self.calm { 0 } else { self.options.stretch };
        let most = match often > 0 && self.random.chance(often) {
            true => most.max((most * STRETCHED).min(STRETCHED_MOST)),
            false => most,
        };
        Time(1_000 * (1 + self.random.below(most)))
    }
}
