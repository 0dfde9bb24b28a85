//! Spanning trees grown by corrected gossip: what they promise, by sweep, and planted
//! weaker rules, to show that the sweep would catch them. `SPANNING_RUNS` makes it longer
//! (`scripts/sweep-broadcast.sh`, `make soak`).
#![allow(missing_docs, clippy::unwrap_used)]

use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};
use outlive_base::rng::Sequence;
use outlive_base::{Code, Time};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::spanning::{
    Command, Config, Event, Msg, Repair, SpanningTrees, TREES_MAX,
};
use outlive_protocols::broadcast::tree::Ring;
use outlive_simulator::broadcast::spanning::{Grows, Parameters, Plans, Run};
use outlive_simulator::broadcast::{Faults, Moment, Quantity};
use outlive_simulator::logp::{Death, Model};

fn seeds() -> u64 {
    let runs = std::env::var("SPANNING_RUNS").ok();
    runs.and_then(|runs| runs.parse().ok()).unwrap_or(2_000)
}

fn parameters(processes: u32, trees: u32) -> Parameters {
    Parameters {
        ring: Ring { processes, root: 0 },
        model: Model {
            logp: LogP {
                latency: 2,
                overhead: 1,
                gap: 1,
            },
            byte_gap: 0,
            half_duplex: false,
        },
        trees,
        gossip_time: None,
        repair: Repair::Checked,
        timeout: None,
        broadcasts: 3,
        bytes: 1,
        faults: Faults::none(),
    }
}

/// Drawn from a seed: any number of trees, gossip too short or long, any root and cost, up
/// to half of the processes dead before.
fn scenario(seed: u64) -> Parameters {
    let mut random = Sequence::new(seed, 0x7370_616e);
    let processes = 2 + random.below(if seed.is_multiple_of(20) { 200 } else { 50 }) as u32;
    let root = random.below(u64::from(processes)) as u32;
    let overhead = random.below(3);
    let mut parameters = parameters(processes, 1 + random.below(5) as u32);
    parameters.ring.root = root;
    parameters.model.logp = LogP {
        latency: random.below(9),
        overhead,
        gap: overhead.max(1) + random.below(3),
    };
    parameters.model.half_duplex = random.chance(300_000);
    parameters.broadcasts = 1 + random.below(4) as u32;
    if random.chance(500_000) {
        parameters.gossip_time = Some(random.below(40));
    }
    let dead = random.below(1 + u64::from(processes) / 2);
    let mut dead: Vec<u32> = (0..dead)
        .map(|_| random.below(u64::from(processes)) as u32)
        .filter(|&who| who != root)
        .collect();
    dead.sort_unstable();
    dead.dedup();
    parameters.faults.dead = dead;
    parameters
}

/// `failures` of those that are left die at any moment.
fn during(mut parameters: Parameters, failures: u32) -> Parameters {
    let left = parameters.ring.processes - 1 - parameters.faults.dead.len() as u32;
    parameters.faults.random = Quantity::Number(failures.min(left));
    parameters.faults.moment = Moment::During;
    parameters
}

fn run(parameters: &Parameters, seed: u64) -> Run {
    Plans::new(parameters.clone()).unwrap().run(seed).unwrap()
}

/// Nobody fails: all trees hold everybody and are independent, a broadcast costs two
/// messages a process, and the trees are not deep.
#[test]
fn calm_trees_are_independent_and_cheap() {
    for (processes, trees) in [(1, 1), (1, 3), (2, 3), (3, 4), (5, 2), (64, 3), (1000, 4)] {
        let run = run(&parameters(processes, trees), 1);
        assert_eq!(run.violation, None, "{processes} {trees}");
        assert_eq!((run.switches, run.generations), (0, 1));
        for one in &run.broadcasts {
            assert_eq!(one.messages, 2 * (u64::from(processes) - 1));
            assert!(one.completion >= Some(one.colouring_time));
        }
        if processes == 1000 {
            assert!(
                run.heights.iter().all(|&height| height <= 14),
                "{:?}",
                run.heights
            );
            assert!(run.children_max <= 60, "{}", run.children_max);
        }
    }
}

/// Failures before the start, then up to K - 1 at any moment: while the trees grow and
/// while they are used. Every live process gets every broadcast over the trees of one
/// growth. Under failure-proof correction the hurt trees hold everybody too.
#[test]
fn every_live_process_gets_every_broadcast() {
    let (mut died, mut switched) = (0, 0);
    for seed in outlive_base::seeds!(seeds()) {
        let parameters = scenario(seed);
        let failures = parameters.trees - 1;
        let mut parameters = during(parameters, failures);
        if seed % 3 == 0 {
            parameters.repair = Repair::FailureProof(failures);
        }
        let plans = Plans::new(parameters.clone()).unwrap();
        assert!(plans.guaranteed());
        let run = plans.run(seed).unwrap();
        assert_eq!(run.violation, None, "{seed}: {parameters:?}");
        assert_eq!(run.generations, 1, "{seed}: a whole tree must be left");
        died += u64::from(run.dead.len() > parameters.faults.dead.len());
        switched += u64::from(run.switches > 0);
    }
    println!("{died} runs with failures on the way, {switched} took another tree");
    assert!(died > seeds() / 2 && switched > seeds() / 20);
}

/// Those that are dead before the start hurt no tree.
#[test]
fn the_dead_before_hurt_no_tree() {
    for seed in outlive_base::seeds!(seeds() / 4) {
        let parameters = scenario(seed);
        let run = run(&parameters, seed);
        assert_eq!(run.violation, None, "{seed}: {parameters:?}");
        assert_eq!((run.switches, run.generations), (0, 1));
    }
}

/// More failures than trees: they are grown again, and nothing is lost.
#[test]
fn trees_are_grown_again() {
    let mut again = 0;
    for seed in outlive_base::seeds!(seeds() / 2) {
        let mut parameters = during(scenario(seed), 12);
        parameters.trees = 1 + (seed % 3) as u32;
        parameters.broadcasts = 6;
        let run = run(&parameters, seed);
        assert_eq!(run.violation, None, "{seed}: {parameters:?}");
        again += u64::from(run.generations > 1);
    }
    println!("{again} runs grew their trees again");
    assert!(again > seeds() / 20);
}

/// The protocol with a fault planted in what it sends.
#[derive(Clone, Default)]
struct Planted<const WHICH: u8>(SpanningTrees);

/// A dead child with children of its own is nothing to report.
const QUIET: u8 = 0;
/// Nobody says that it joined before it offers the tree.
const UNSEEN: u8 = 1;

impl<const WHICH: u8> AsRef<SpanningTrees> for Planted<WHICH> {
    fn as_ref(&self) -> &SpanningTrees {
        &self.0
    }
}

fn seen_by<'a>(cx: &Cx<'a, impl Machine<Config = Config>>) -> Cx<'a, SpanningTrees> {
    Cx {
        me: cx.me,
        now: cx.now,
        config: cx.config,
        seed: cx.seed,
    }
}

impl<const WHICH: u8> Machine for Planted<WHICH> {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = ();
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, body: Option<Body>) {
        self.0.on_message(&seen_by(cx), from, msg, body);
    }
    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        self.0.on_command(&seen_by(cx), command);
    }
    fn on_timeout(&mut self, cx: &Cx<Self>) {
        self.0.on_timeout(&seen_by(cx));
    }
    fn on_done(&mut self, _: &Cx<Self>, _: Op, _: Result<(), Fault>) {}
    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        loop {
            return Some(match self.0.poll(&seen_by(cx), ready)? {
                Output::Send {
                    msg: Msg::Joined { .. },
                    ..
                } if WHICH == UNSEEN => continue,
                Output::Send { to, mut msg, body } => {
                    if let (QUIET, Msg::Acknowledge { hurt, .. } | Msg::Complete { hurt, .. }) =
                        (WHICH, &mut msg)
                    {
                        *hurt = 0;
                    }
                    Output::Send { to, msg, body }
                }
                Output::Event(event) => Output::Event(event),
                Output::Retain { body } => Output::Retain { body },
                Output::Release { body } => Output::Release { body },
                Output::Persist { op, record } => Output::Persist { op, record },
                Output::Combine {
                    op,
                    acc,
                    arg,
                    acc_left,
                } => Output::Combine {
                    op,
                    acc,
                    arg,
                    acc_left,
                },
            });
        }
    }
    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        self.0.deadline(&seen_by(cx))
    }
    fn recover(_: &Cx<Self>, _: impl Iterator<Item = ()>) -> Self {
        Planted::default()
    }
}

fn caught<M: Grows>(scenario: impl Fn(u64) -> Parameters) -> u64 {
    let broken = |seed: &u64| {
        let plans = Plans::new(scenario(*seed)).unwrap();
        plans.run_any::<M>(*seed).unwrap().violation.is_some()
    };
    outlive_base::seeds!(seeds() / 4).filter(broken).count() as u64
}

#[test]
fn weaker_rules_are_caught() {
    let any = |seed| {
        let parameters = scenario(seed);
        let failures = parameters.trees - 1;
        during(parameters, failures)
    };
    // No fault is planted here: the wrapper itself changes nothing.
    assert_eq!(caught::<Planted<255>>(any), 0);
    let (quiet, unseen) = (
        caught::<Planted<QUIET>>(any),
        caught::<Planted<UNSEEN>>(any),
    );
    println!("caught: silence about the dead in {quiet} runs, joining unseen in {unseen}");
    assert!(quiet > seeds() / 200 && unseen > 0, "{quiet} {unseen}");
}

/// Planted: a side of the ring is left after the first sender, where two may die. The hurt
/// tree does not hold everybody then, which failure-proof correction promises.
#[test]
fn a_weaker_correction_is_caught() {
    let lacking = |repair: Repair| {
        let lacks = |seed: &u64| {
            let mut parameters = beside_a_gap(*seed);
            parameters.repair = repair;
            run(&parameters, *seed).trees_lacking > 0
        };
        outlive_base::seeds!(seeds() / 4).filter(lacks).count()
    };
    let weaker = lacking(Repair::FailureProof(0));
    println!("a correction without allowance was caught in {weaker} runs");
    assert_eq!(lacking(Repair::FailureProof(2)), 0);
    assert!(weaker > 0);
}

/// No gossip to speak of and a long gap of the dead, at both ends of which two die after a
/// few offers.
fn beside_a_gap(seed: u64) -> Parameters {
    let mut random = Sequence::new(seed, 0x6761_7073);
    let mut parameters = parameters(60 + random.below(20) as u32, 3);
    parameters.gossip_time = Some(10 + random.below(25));
    parameters.model.logp.latency = random.below(3);
    parameters.model.logp.gap = 1 + random.below(3);
    let first = 10 + random.below(20) as u32;
    let gap = 10 + random.below(10) as u32;
    let middle = first + gap / 2 + random.below(3) as u32;
    parameters.faults.dead = (first..first + gap).filter(|&who| who != middle).collect();
    let die = |who: u32, sends: u64| (who, Death::AfterSends(sends as u32));
    let (left, right) = (1 + random.below(3) as u32, random.below(3) as u32);
    parameters.faults.named = vec![
        die(first - left, 2 + random.below(12)),
        die(first + gap + right, 2 + random.below(12)),
    ];
    parameters
}

#[test]
fn bad_parameters_are_refused() {
    type Change = fn(&mut Parameters);
    let changes: [Change; 11] = [
        |p| p.ring.processes = 0,
        |p| p.ring.root = 8,
        |p| p.trees = 0,
        |p| p.trees = TREES_MAX + 1,
        |p| p.broadcasts = 0,
        |p| p.bytes = 0,
        |p| p.timeout = Some(0),
        |p| p.gossip_time = Some(u64::MAX),
        |p| p.model.logp.gap = 0,
        |p| p.faults.dead = vec![0],
        |p| p.faults.random = Quantity::Number(8),
    ];
    for change in changes {
        let mut bad = parameters(8, 2);
        change(&mut bad);
        let error = Plans::new(bad.clone()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{bad:?}");
    }
}

/// A time-out that is too short drops live processes: nothing is promised, but the run
/// ends, within the bound on how often trees are grown.
#[test]
fn a_short_timeout_ends() {
    for seed in outlive_base::seeds!(50) {
        let mut parameters = during(scenario(seed), 1);
        parameters.timeout = Some(1 + seed % 9);
        let plans = Plans::new(parameters).unwrap();
        let run = plans.run(seed).unwrap();
        assert!(run.generations <= Config::GENERATIONS);
    }
}

/// The same seed gives the same run whatever the number of threads (P8).
#[test]
fn threads_change_nothing() {
    let plans = Plans::new(during(parameters(100, 3), 2)).unwrap();
    let seed = outlive_base::seed!();
    assert_eq!(
        plans.sweep(seed, 30, 1).unwrap(),
        plans.sweep(seed, 30, 3).unwrap()
    );
}
