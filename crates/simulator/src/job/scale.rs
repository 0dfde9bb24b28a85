//! What orders, reports and messages of a large job cost: the nodes and the supervisor that run,
//! without faults but for one lost node, with each message counted.
//!
//! Invariants: the bounds and defaults are those of `outlive run`; what is counted was encoded as
//! it travels; a process takes one message after the other, so that whoever speaks with all of them
//! needs time for each. Ranks cost nothing, and storage what [`super::work`] draws.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use outlive_base::{Level, Levels, NodeId, Time};
use outlive_control::node::shell::PeerMessage;
use outlive_control::orders::{Notice, Order, Step, encode};
use outlive_control::traffic::Traffic;

use super::node::Process;
use super::shell::Memo;
use super::{Job, Options, Weights};
use crate::network::LossyOptions;
use crate::world::Faults;

/// What a process needs for a message, sent or received: taken apart, decided on, encrypted.
pub const MESSAGE_COST: Time = Time(5_000);
/// What it needs for each byte of one: a gigabyte in a second.
pub const BYTE_COST: Time = Time(1);
/// What a phase leaves on its way may take so long, and is not counted.
const QUIET: Time = Time::from_secs(2);
/// For which signs of life are counted.
const SECOND: Time = Time::from_secs(1);
/// No phase takes longer: a job that stands still is a finding.
const PHASE_MAX: Time = Time::from_secs(600);
/// The ranks of such a job offer a version about so often.
const STEP_MAX: Time = Time::from_ms(200);

/// What a part of the job's life has cost.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Which.
    pub name: &'static str,
    /// How long it took, in the simulated time.
    pub took: Time,
    /// The launcher's part.
    pub launcher: Traffic,
    /// That of the coordinator's node.
    pub coordinator: Traffic,
    /// Of the other nodes that of half of which is no larger, by messages.
    pub node_median: Traffic,
    /// And the largest.
    pub node_max: Traffic,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Nodes of the job, a rank each.
    pub nodes: u32,
    /// `opening`, from the start of the agents to that of the command; `second`, in which nothing
    /// happens; `checkpoint`, from the order to the version's being stable at all levels;
    /// `detection`, from the loss of a node to its being given up; `recovery`, from there to the
    /// command's next start.
    pub phases: Vec<Phase>,
    /// With how many others a node has spoken, but for the coordinator: the median and the most.
    pub peers: (usize, usize),
    /// With how many the coordinator's node has.
    pub coordinator_peers: usize,
}

impl Scale {
    /// A phase by its name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// Counts what each process sends and receives, and how busy that keeps it.
pub struct Meter {
    /// The nodes, then the launcher.
    counts: Vec<Traffic>,
    /// Until when each one takes what has come.
    busy: Vec<Time>,
    peers: Vec<BTreeSet<u32>>,
    /// Levels at which the coordinator has called the version stable.
    stable: BTreeSet<Level>,
    pub memo: Rc<RefCell<Memo>>,
    given_up: bool,
    started: bool,
    aborted: Option<String>,
}

impl Meter {
    fn new(nodes: u32) -> Meter {
        let places = nodes as usize + 1;
        Meter {
            counts: vec![Traffic::default(); places],
            busy: vec![Time::ZERO; places],
            peers: vec![BTreeSet::new(); places],
            stable: BTreeSet::new(),
            memo: Rc::default(),
            given_up: false,
            started: false,
            aborted: None,
        }
    }

    fn place(&self, node: NodeId) -> usize {
        (node.0 as usize).min(self.counts.len() - 1)
    }

    /// A process needs its time for a message that it can begin with at `at`.
    fn works(&mut self, place: usize, at: Time, bytes: usize) -> Time {
        let cost = MESSAGE_COST + Time(BYTE_COST.0 * bytes as u64);
        let over = self.busy[place].max(at) + cost;
        self.busy[place] = over;
        over
    }

    /// Something leaves; when it has been taken in, if it needs `way` in between.
    pub fn carries(
        &mut self,
        now: Time,
        (from, to): (NodeId, NodeId),
        (is_sign, bytes): (bool, usize),
        way: Time,
    ) -> Time {
        let (from, to) = (self.place(from), self.place(to));
        let left = self.works(from, now, bytes);
        self.counts[from].sends(is_sign, bytes);
        self.counts[to].receives(is_sign, bytes);
        self.peers[from].insert(to as u32);
        self.peers[to].insert(from as u32);
        self.works(to, left + way, bytes)
    }

    pub const fn gives_up(&mut self) {
        self.given_up = true;
    }

    pub const fn starts(&mut self) {
        self.started = true;
    }

    /// The coordinator tells something.
    pub fn tells(&mut self, notice: &Notice) {
        match notice {
            Notice::Checkpoint {
                step: Step::Stable(level),
                ..
            } => drop(self.stable.insert(*level)),
            Notice::Checkpoint {
                step: Step::Aborted { error, .. },
                ..
            } => self.aborted = Some(error.to_string()),
            _ => {}
        }
    }
}

/// The length of a message between agents, as it travels. Of what goes to all nodes the bytes are
/// shared, and it is not encoded for each.
pub(super) fn length(message: &PeerMessage) -> usize {
    let encoded = |message: &PeerMessage| encode(message).map_or(0, |bytes| bytes.len());
    match message {
        PeerMessage::Commit {
            msg,
            records,
            named,
            left_out,
        } => {
            let bare = encoded(&PeerMessage::Commit {
                msg: *msg,
                records: Vec::new(),
                named: named.clone(),
                left_out: left_out.clone(),
            });
            // Before each record its length, in groups of seven bits.
            let digits = |length: usize| (usize::BITS - length.leading_zeros()).div_ceil(7).max(1);
            let whole = |bytes: &Arc<[u8]>| digits(bytes.len()) as usize + bytes.len();
            bare + records.iter().map(whole).sum::<usize>()
        }
        PeerMessage::Service { .. } | PeerMessage::Lacks => encoded(message),
    }
}

fn options(nodes: u32) -> Options {
    Options {
        slots: Default::default(),
        nodes,
        coordinator: 0,
        ranks: 1,
        bare: 0,
        domains: Vec::new(),
        levels: Levels::of(&[Level::MEMORY, Level::DISK, Level::PARTNER]),
        partners: 1,
        net: LossyOptions::CALM,
        faults: Faults {
            crash: 0,
            refuse: 0,
            sync_max: Time::from_ms(2),
        },
        torn: 0,
        scrub: None,
        from_disk: false,
        transfer_steps: 0,
        transfer_hangs: 0,
        slow: 0,
        stretch: 0,
        lasts: (Time::ZERO, Time::ZERO),
        sparse: 2,
        weights: Weights::default(),
        meetings: super::Meetings::default(),
        tick: Time::NEVER,
        heal: Time::ZERO,
        end: Time::NEVER,
        last: Time::NEVER,
        late_restarts: 0,
        early: 0,
        step_max: STEP_MAX,
        stride: 1,
        forces: 0,
        steady: false,
        peace: false,
        late: 0,
        forgets: 0,
        waits: 0,
        commit_ms: outlive_control::orders::Bounds::default().commit_ms,
        planted: None,
        planted_node: None,
        planted_supervisor: None,
        unwell: None,
        breaks: 0,
        hang: None,
    }
}

/// Runs a job of so many nodes, from 3, through its opening, one checkpoint and the loss of a node.
///
/// # Errors
/// In words, if something of that does not come to pass.
pub fn measure(nodes: u32, seed: u64) -> Result<Scale, String> {
    if nodes < 3 {
        return Err(format!(
            "{nodes} nodes: a node is lost, and two others stay"
        ));
    }
    let mut job = Job::new(seed, options(nodes));
    job.calm = true;
    job.meter = Some(Box::new(Meter::new(nodes)));
    job.launcher = super::launcher::Launcher::of_run(&job.options, job.now);
    job.begin_all();
    let mut phases = Vec::new();
    phases.push(job.phase("opening", |meter| meter.started)?);
    // The ranks join; that is no message between nodes but one to the launcher for each.
    job.lets_pass(QUIET);
    job.zero();
    job.lets_pass(SECOND);
    phases.push(job.counted("second", SECOND));
    let levels = job.options.levels.iter().count();
    let order = Order::CheckpointNow { levels: Vec::new() };
    job.send_order(job.options.coordinator, order);
    phases.push(job.phase("checkpoint", |meter| meter.stable.len() == levels)?);
    job.lets_pass(QUIET);
    job.loses(nodes / 2);
    phases.push(job.phase("detection", |meter| meter.given_up)?);
    if let Some(meter) = &mut job.meter {
        meter.started = false;
    }
    phases.push(job.phase("recovery", |meter| meter.started)?);
    Ok(job.scale(phases))
}

impl Job {
    fn meter(&mut self) -> &mut Meter {
        let meter = self.meter.as_deref_mut();
        meter.expect("it was put there before the job began")
    }

    /// Counts until something has come to pass.
    fn phase(
        &mut self,
        name: &'static str,
        over: impl Fn(&Meter) -> bool,
    ) -> Result<Phase, String> {
        let since = self.now;
        while !over(self.meter()) {
            let next = self.queue.pop();
            let (at, what) = next.ok_or_else(|| format!("{name}: nothing more happens"))?;
            if at > since + PHASE_MAX {
                return Err(format!("{name}: not over within {} s", PHASE_MAX.as_secs()));
            }
            self.happen(at, what);
            if let Some(why) = self.meter().aborted.take() {
                return Err(format!("{name}: the version was given up: {why}"));
            }
            if let Some(why) = &self.launcher.over {
                return Err(format!("{name}: the supervisor ended the job: {why}"));
            }
        }
        let took = self.now.since(since);
        Ok(self.counted(name, took))
    }

    /// What was counted since the last phase ended.
    fn counted(&mut self, name: &'static str, took: Time) -> Phase {
        let coordinator = self.options.coordinator as usize;
        let counts = self.zero();
        let (launcher, nodes) = counts.split_last().expect("the launcher's is the last");
        let mut others: Vec<Traffic> = nodes.to_vec();
        others.remove(coordinator);
        others.sort_by_key(|it| (it.work().messages, it.work().bytes));
        Phase {
            name,
            took,
            launcher: *launcher,
            coordinator: nodes[coordinator],
            node_median: others[others.len() / 2],
            node_max: *others.last().expect("there are three nodes"),
        }
    }

    fn zero(&mut self) -> Vec<Traffic> {
        let counts = &mut self.meter().counts;
        let empty = vec![Traffic::default(); counts.len()];
        std::mem::replace(counts, empty)
    }

    /// Time passes; what happens is not counted.
    fn lets_pass(&mut self, time: Time) {
        let end = self.now + time;
        while let Some((at, what)) = self.queue.pop() {
            if at > end {
                // It happens a moment later than it would have.
                self.queue.push(at, what);
                break;
            }
            self.happen(at, what);
        }
        self.now = end;
    }

    /// A node falls silent, with all that it holds.
    fn loses(&mut self, node: u32) {
        let who: Process = self.at(node);
        self.ranks_fall(node, false);
        self.kill_all_of(who);
        self.wiped(who);
        self.zero();
    }

    fn scale(mut self, phases: Vec<Phase>) -> Scale {
        let coordinator = self.options.coordinator as usize;
        let nodes = self.options.nodes;
        let peers = &self.meter().peers;
        let all: Vec<usize> = peers.iter().map(BTreeSet::len).collect();
        let mut others = all[..nodes as usize].to_vec();
        others.remove(coordinator);
        others.sort_unstable();
        Scale {
            nodes,
            phases,
            peers: (others[others.len() / 2], others[others.len() - 1]),
            coordinator_peers: all[coordinator],
        }
    }
}
