//! The same scenarios on the simulator and on every rail, by both families: the outcome
//! must be the same.
//!
//! An outcome is what each live process got: the sum of the contributors' values, and
//! the list of the absent. Deaths before the call are dropped rails (threads), closed
//! sockets (TCP), closed workers (UCX, with that feature) or processes dead from the start (simulation); a death during it comes
//! after the process gave its contribution away and while the call waits for a late one,
//! so that all worlds must count it.
//!
//! The outcomes lie in `conformance.jsonl` (OUTLIVE_WRITE_CONFORMANCE=1 writes it anew):
//! `tests/mpi/test_conformance.py` runs the same scenarios as MPI jobs against it, on the
//! rail over MPI's own messages, over TCP and over UCX, with ranks that kill themselves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use outlive_base::Time;
use outlive_collectives::engine::{Bounds, Engine, Start, Wired};
use outlive_collectives::tcp::{Listener, Options, Tcp};
use outlive_collectives::threads::Threads;
#[cfg(feature = "ucx")]
use outlive_collectives::ucx::{self, Door, Ucx};
use outlive_collectives::{Content, Key, Operator, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::corrected::{self, Spread};
use outlive_protocols::ftco::{self, Call, Command, Event, Kind, Plan};
use outlive_simulator::ftco::{Scenario as Simulated, Subject, run_any};
use outlive_simulator::logp::{Death, Model};

const MODEL: LogP = LogP {
    latency: 2,
    overhead: 1,
    gap: 1,
};

#[derive(Clone, Debug)]
struct Scenario {
    name: &'static str,
    processes: u32,
    kind: Kind,
    root: u32,
    calls: u32,
    /// Dead before the first call.
    dead: Vec<u32>,
    /// Enters the first call when the others have waited for it.
    late: Option<u32>,
    /// Dies in the first call, once it has sent a message.
    dies: Option<u32>,
}

fn scenarios() -> Vec<Scenario> {
    let plain = |name, processes, kind, root| Scenario {
        name,
        processes,
        kind,
        root,
        calls: 1,
        dead: Vec::new(),
        late: None,
        dies: None,
    };
    let mut all = Vec::new();
    for kind in [Kind::Bcast, Kind::Reduce, Kind::Allreduce, Kind::Barrier] {
        for processes in [2, 3, 7] {
            all.push(plain("fault-free", processes, kind, processes / 2));
        }
        all.push(Scenario {
            dead: vec![1],
            ..plain("a leaf dead", 6, kind, 0)
        });
        all.push(Scenario {
            dead: vec![4],
            ..plain("an inner process dead", 8, kind, 0)
        });
        all.push(Scenario {
            dead: vec![4, 6],
            ..plain("two in one line dead", 8, kind, 0)
        });
        all.push(Scenario {
            calls: 4,
            dead: vec![2],
            ..plain("four calls, one dead", 5, kind, 0)
        });
        all.push(Scenario {
            late: Some(3),
            ..plain("a latecomer", 5, kind, 0)
        });
        all.push(Scenario {
            late: Some(3),
            dies: Some(if kind == Kind::Bcast { 4 } else { 7 }),
            ..plain("one dies during the call", 8, kind, 0)
        });
    }
    all
}

/// What a process got of one call: the sum, and who is missing from it.
type Got = Option<(u64, Vec<u32>)>;
type Outcome = Vec<(u32, Vec<Got>)>;

/// One of the machines that carry out collectives.
trait Family: Subject + Wired {
    const NAME: &'static str;
    /// Times in units of `unit`; death is told, so nothing is decided by the clock.
    fn config(processes: u32, unit: Time) -> Self::Config;
    /// As `config`, for a world in which nobody tells of a death: silence does.
    fn silent(processes: u32) -> Self::Config;
}

impl Family for ftco::Machine {
    const NAME: &'static str = "ftco";
    fn config(processes: u32, unit: Time) -> ftco::Config {
        let plan = Plan::new(Shape::Binomial, Order::InOrder, processes, &MODEL).expect("a plan");
        ftco::Config {
            timeout: Time(unit.0 * 1_000_000),
            timeout_per_level: Time(0),
            patience: Time(unit.0 * 2_000_000),
            late: Time(unit.0 * 4_000_000),
            bound: Time(unit.0 * 8_000_000),
            ..ftco::Config::new(plan)
        }
    }
    fn silent(processes: u32) -> ftco::Config {
        ftco::Config {
            timeout: Time(1_000),
            patience: Time(2_000),
            ..ftco::Machine::config(processes, Time(1))
        }
    }
}

impl Family for corrected::Machine {
    const NAME: &'static str = "corrected-tree";
    fn config(processes: u32, unit: Time) -> corrected::Config {
        let tree = Spread::Tree(Shape::Binomial);
        corrected::Config {
            pace: Time(unit.0 / 20),
            timeout: Time(unit.0 * 1_000_000),
            patience: Time(unit.0 * 2_000_000),
            ask: Time(unit.0 * 1_000),
            late: Time(unit.0 * 4_000_000),
            bound: Time(unit.0 * 8_000_000),
            ..corrected::Config::new(processes, tree, 1).expect("valid")
        }
    }
    fn silent(processes: u32) -> corrected::Config {
        corrected::Config {
            timeout: Time(1_000),
            patience: Time(2_000),
            ..corrected::Machine::config(processes, Time(1))
        }
    }
}

fn call(scenario: &Scenario) -> Call {
    let root = match scenario.kind {
        Kind::Bcast | Kind::Reduce => scenario.root,
        _ => 0,
    };
    Call {
        kind: scenario.kind,
        root,
        value: None,
        ordered: false,
    }
}

struct Sum {
    call: u32,
}

impl Operator for Sum {
    fn combine(&mut self, call: u32, acc: &mut Vec<u8>, arg: &[u8], _: bool) -> bool {
        if acc.is_empty() && arg.is_empty() {
            return true; // a barrier
        }
        let (Ok(a), Ok(b)) = (acc[..].try_into(), arg.try_into()) else {
            return false;
        };
        *acc = (u64::from_le_bytes(a) + u64::from_le_bytes(b))
            .to_le_bytes()
            .to_vec();
        call == self.call
    }
}

fn one_call<M: Family>(
    rail: &mut impl Rail,
    engine: &mut Engine<M>,
    key: Key,
    number: u32,
    scenario: &Scenario,
    entered: &AtomicUsize,
) -> Option<Got> {
    let call = call(scenario);
    let dying = number == 0 && scenario.dies == Some(rail.me());
    let giving = call.kind != Kind::Bcast || call.root == rail.me();
    let value = match call.kind {
        Kind::Barrier => Vec::new(),
        _ => u64::from(rail.me() + 1).to_le_bytes().to_vec(),
    };
    let content = giving.then(|| (number, Content::new(value)));
    engine.command(&*rail, key, content, |value| {
        Command::Start(Call { value, ..call })
    });
    let mut sum = Sum { call: number };
    let end = rail.now() + Time::from_secs(60);
    let mut entering = number == 0 && scenario.late.is_some_and(|late| late != rail.me());
    loop {
        while let Some((from, frame)) = rail.receive() {
            engine.deliver(&*rail, from, frame);
        }
        while let Some(dead) = rail.death() {
            engine.death(&*rail, dead);
        }
        engine.pump(rail, key, Some(&mut sum));
        if dying && engine.counts().sent > 0 && rail.flushed() {
            entered.fetch_add(1, Ordering::AcqRel);
            return None;
        }
        if !dying && std::mem::take(&mut entering) {
            entered.fetch_add(1, Ordering::AcqRel);
        }
        while let Some((event, content)) = engine.event(key) {
            match event {
                Event::Done { seq, .. } if seq == number => {
                    // What was sent leaves before this process goes its own way.
                    while !rail.flushed() {
                        assert!(rail.now() < end, "{}: unsent", scenario.name);
                        serve(rail, engine, key);
                    }
                    if dying {
                        // Its result came before all that it had sent was gone.
                        entered.fetch_add(1, Ordering::AcqRel);
                        return None;
                    }
                    return Some(content.map(|content| {
                        let number = content.bytes[..].try_into().map_or(0, u64::from_le_bytes);
                        (number, content.absent.to_vec())
                    }));
                }
                Event::Failed { why, .. } => panic!("{}: {why:?}", scenario.name),
                _ => {}
            }
        }
        assert!(rail.now() < end, "{} hangs", scenario.name);
        rail.wait(rail.now() + Time::from_ms(5));
    }
}

fn serve<M: Family>(rail: &mut impl Rail, engine: &mut Engine<M>, key: Key) {
    while let Some((from, frame)) = rail.receive() {
        engine.deliver(&*rail, from, frame);
    }
    while let Some(dead) = rail.death() {
        engine.death(&*rail, dead);
    }
    engine.pump(rail, key, None);
    rail.wait(rail.now() + Time::from_ms(5));
}

/// A live process; it goes on serving until all are done. Nothing of one that dies.
fn live<M: Family>(
    mut rail: impl Rail,
    scenario: &Scenario,
    entered: &AtomicUsize,
    done: &AtomicUsize,
    alive: usize,
) -> Option<Vec<Got>> {
    let key = Key {
        comm: 7,
        sequence: 0,
        incarnation: 0,
        protocol: 1,
    };
    let mut engine = Engine::<M>::new(0, Bounds::default());
    let start = Start {
        key,
        members: (0..scenario.processes).collect(),
        me: rail.me(),
        machine: M::fresh(),
        config: Arc::new(M::config(scenario.processes, Time(1_000_000))),
        seed: 1,
    };
    engine.start(&rail, start);
    if scenario.late == Some(rail.me()) {
        // Until the others are in the call, and the one that dies there is dead. The rail
        // is served meanwhile: they may have to connect to it.
        let others = scenario.processes as usize - scenario.dead.len() - 1;
        let end = rail.now() + Time::from_secs(60);
        while entered.load(Ordering::Acquire) < others {
            assert!(
                rail.now() < end,
                "{}: the others do not enter",
                scenario.name
            );
            serve(&mut rail, &mut engine, key);
        }
    }
    let calls = 0..scenario.calls;
    let got = calls
        .map(|number| one_call(&mut rail, &mut engine, key, number, scenario, entered))
        .collect::<Option<Vec<Got>>>()?;
    assert_eq!(engine.counts().refused, 0);
    // Goes on serving: others may still want to be heard.
    done.fetch_add(1, Ordering::AcqRel);
    let end = rail.now() + Time::from_secs(60);
    while done.load(Ordering::Acquire) < alive {
        assert!(rail.now() < end, "{}: the others hang", scenario.name);
        serve(&mut rail, &mut engine, key);
    }
    Some(got)
}

fn on_rails<M: Family, R: Rail + Send>(scenario: &Scenario, rails: Vec<Option<R>>) -> Outcome {
    let alive = rails.iter().flatten().count();
    let (entered, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let alive = alive - usize::from(scenario.dies.is_some());
    thread::scope(|scope| {
        let (entered, done) = (&entered, &done);
        let spawned: Vec<_> = rails
            .into_iter()
            .enumerate()
            .filter_map(|(me, rail)| rail.map(|rail| (me, rail)))
            .map(|(me, rail)| {
                (
                    me,
                    scope.spawn(move || live::<M>(rail, scenario, entered, done, alive)),
                )
            })
            .collect();
        let joined = spawned
            .into_iter()
            .map(|(me, thread)| (me as u32, thread.join().expect("no panic")));
        joined.filter_map(|(me, got)| Some((me, got?))).collect()
    })
}

fn over_threads<M: Family>(scenario: &Scenario) -> Outcome {
    let rails = Threads::all(scenario.processes).into_iter().enumerate();
    let rails = rails.map(|(me, rail)| {
        if scenario.dead.contains(&(me as u32)) {
            rail.kill();
            return None;
        }
        Some(rail)
    });
    on_rails::<M, _>(scenario, rails.collect())
}

fn over_tcp<M: Family>(scenario: &Scenario) -> Outcome {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listeners: Vec<_> = (0..scenario.processes)
        .map(|_| Listener::bind(any).expect("listens"))
        .collect();
    let addresses: Vec<_> = listeners
        .iter()
        .map(|one| one.address().expect("has one"))
        .collect();
    let rails = listeners.into_iter().enumerate().map(|(me, listener)| {
        // The listener of a dead process goes with it.
        if scenario.dead.contains(&(me as u32)) {
            return None;
        }
        let options = Options {
            silence: Duration::from_secs(20),
            incarnation: 0,
        };
        let mut rail =
            Tcp::new(listener, me as u32, addresses.clone(), [9; 32], options).expect("a rail");
        rail.call_all();
        Some(rail)
    });
    let rails = rails.collect();
    on_rails::<M, _>(scenario, rails)
}

#[cfg(feature = "ucx")]
fn over_ucx<M: Family>(scenario: &Scenario) -> Outcome {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ucx::Options {
        control: Options {
            silence: Duration::from_secs(20),
            incarnation: 0,
        },
        library: None,
    };
    let doors: Vec<_> = (0..scenario.processes)
        .map(|_| {
            let listener = Listener::bind(any).expect("listens");
            Door::open(listener, options.clone()).expect("UCX")
        })
        .collect();
    let cards: Vec<_> = doors.iter().map(Door::card).collect();
    let rails = doors.into_iter().enumerate().map(|(me, door)| {
        // Worker and listener of a dead process go with it.
        if scenario.dead.contains(&(me as u32)) {
            return None;
        }
        let mut rail = Ucx::new(door, me as u32, &cards, [9; 32]).expect("a rail");
        rail.call_all();
        Some(rail)
    });
    let rails: Vec<_> = rails.collect();
    on_rails::<M, _>(scenario, rails)
}

fn simulated<M: Family>(scenario: &Scenario) -> Outcome
where
    M::Config: Clone,
{
    let model = Model {
        logp: MODEL,
        byte_gap: 0,
        half_duplex: false,
    };
    let mut run = Simulated::new(M::silent(scenario.processes), model, call(scenario));
    run.calls = vec![call(scenario); scenario.calls as usize];
    run.exact = true;
    run.deaths = scenario
        .dead
        .iter()
        .map(|dead| (*dead, Death::At(Time(0))))
        .chain(scenario.dies.map(|dies| (dies, Death::AfterSends(1))))
        .collect();
    if let Some(late) = scenario.late {
        run.enters = vec![Time(0); scenario.processes as usize];
        run.enters[late as usize] = Time(300);
    }
    let report = run_any::<M>(&run, 3).expect("a simulation");
    assert_eq!(report.violations, Vec::<String>::new(), "{}", scenario.name);
    let gone = |who: &u32| scenario.dead.contains(who) || scenario.dies == Some(*who);
    let live = (0..scenario.processes).filter(|who| !gone(who));
    live.map(|me| {
        let mut got: Vec<(u32, Got)> = report
            .results()
            .filter(|(who, ..)| *who == me)
            .map(|(_, _, seq, value)| {
                let value = value.map(|value| {
                    let ranks = value.ranks.iter().map(|rank| u64::from(rank + 1)).sum();
                    let sum = if scenario.kind == Kind::Barrier {
                        0
                    } else {
                        ranks
                    };
                    (sum, value.absent.as_slice().to_vec())
                });
                (seq, value)
            })
            .collect();
        got.sort_by_key(|(seq, _)| *seq);
        (me, got.into_iter().map(|(_, value)| value).collect())
    })
    .collect()
}

/// One line of JSON: the scenario, and what its live processes got.
fn line<M: Family>(scenario: &Scenario, outcome: &Outcome) -> String {
    let Scenario {
        name,
        processes,
        kind,
        root,
        calls,
        dead,
        late,
        dies,
    } = scenario;
    let rank = |rank: &Option<u32>| rank.map_or("null".to_owned(), |rank| rank.to_string());
    let got = |got: &Got| match got {
        None => "null".to_owned(),
        Some((sum, absent)) => format!("[{sum}, {absent:?}]"),
    };
    let of = |(rank, calls): &(u32, Vec<Got>)| {
        let calls: Vec<String> = calls.iter().map(got).collect();
        format!("\"{rank}\": [{}]", calls.join(", "))
    };
    let outcome: Vec<String> = outcome.iter().map(of).collect();
    format!(
        "{{\"family\": \"{}\", \"name\": \"{name}\", \"kind\": \"{kind:?}\", \
         \"processes\": {processes}, \"root\": {root}, \"calls\": {calls}, \"dead\": {dead:?}, \
         \"late\": {}, \"dies\": {}, \"outcome\": {{{}}}}}\n",
        M::NAME,
        rank(late),
        rank(dies),
        outcome.join(", ")
    )
}

fn conforms<M: Family>(lines: &mut String)
where
    M::Config: Clone,
{
    for scenario in scenarios() {
        let want = simulated::<M>(&scenario);
        assert_eq!(
            want.len() as u32,
            live_at_the_end(&scenario),
            "{scenario:?}"
        );
        assert_eq!(
            over_threads::<M>(&scenario),
            want,
            "threads, {}: {scenario:?}",
            M::NAME
        );
        assert_eq!(
            over_tcp::<M>(&scenario),
            want,
            "TCP, {}: {scenario:?}",
            M::NAME
        );
        #[cfg(feature = "ucx")]
        assert_eq!(
            over_ucx::<M>(&scenario),
            want,
            "UCX, {}: {scenario:?}",
            M::NAME
        );
        lines.push_str(&line::<M>(&scenario, &want));
    }
}

fn live_at_the_end(scenario: &Scenario) -> u32 {
    scenario.processes - scenario.dead.len() as u32 - u32::from(scenario.dies.is_some())
}

#[test]
fn every_driver_comes_to_the_simulated_outcome() {
    let mut lines = String::new();
    conforms::<ftco::Machine>(&mut lines);
    conforms::<corrected::Machine>(&mut lines);
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance.jsonl");
    if std::env::var_os("OUTLIVE_WRITE_CONFORMANCE").is_some() {
        std::fs::write(kept, &lines).expect("writes");
    }
    let kept = std::fs::read_to_string(kept).expect("is kept");
    assert_eq!(
        lines, kept,
        "conformance.jsonl is not what the simulator says"
    );
}
