//! The same scenarios on the simulator and on every rail: the outcome must be the same.
//!
//! An outcome is what each live process got: the sum of the contributors' values, and
//! the list of the absent. Deaths before the call are dropped rails (threads), closed
//! sockets (TCP) or processes dead from the start (simulation); a death during it comes
//! after the process gave its contribution away, so that all worlds must count it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use outlive_base::Time;
use outlive_collectives::engine::{Bounds, Engine, Start};
use outlive_collectives::tcp::{Listener, Options, Tcp};
use outlive_collectives::threads::Threads;
use outlive_collectives::{Content, Key, Operator, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::ftco::{Call, Command, Config, Event, Kind, Machine, Plan};
use outlive_simulator::ftco::Scenario as Simulated;
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
    }
    all
}

/// What a process got of one call: the sum, and who is missing from it.
type Got = Option<(u64, Vec<u32>)>;
type Outcome = Vec<(u32, Vec<Got>)>;

fn config(processes: u32, unit: Time) -> Config {
    let plan = Plan::new(Shape::Binomial, Order::InOrder, processes, &MODEL).expect("a plan");
    let mut config = Config::new(plan);
    // Death is told, so nothing is decided by the clock.
    config.timeout = Time(unit.0 * 1_000_000);
    config.timeout_per_level = Time(0);
    config.patience = Time(unit.0 * 2_000_000);
    config.late = Time(unit.0 * 4_000_000);
    config.bound = Time(unit.0 * 8_000_000);
    config
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

fn one_call(
    rail: &mut impl Rail,
    engine: &mut Engine<Machine>,
    key: Key,
    number: u32,
    scenario: &Scenario,
    turns: &Barrier,
) -> Got {
    let call = call(scenario);
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
    // The late one waits here before it enters, the others once they have entered.
    let mut entering = number == 0 && scenario.late.is_some_and(|late| late != rail.me());
    loop {
        while let Some((from, frame)) = rail.receive() {
            engine.deliver(&*rail, from, frame);
        }
        while let Some(dead) = rail.death() {
            engine.death(&*rail, dead);
        }
        engine.pump(rail, key, Some(&mut sum));
        if std::mem::take(&mut entering) {
            turns.wait();
        }
        while let Some((event, content)) = engine.event(key) {
            match event {
                Event::Done { seq, .. } if seq == number => {
                    // What was sent leaves before this process goes its own way.
                    while !rail.flushed() {
                        assert!(rail.now() < end, "{}: unsent", scenario.name);
                        serve(rail, engine, key);
                    }
                    return content.map(|content| {
                        let number = content.bytes[..].try_into().map_or(0, u64::from_le_bytes);
                        (number, content.absent.to_vec())
                    });
                }
                Event::Failed { why, .. } => panic!("{}: {why:?}", scenario.name),
                _ => {}
            }
        }
        assert!(rail.now() < end, "{} hangs", scenario.name);
        rail.wait(rail.now() + Time::from_ms(5));
    }
}

fn serve(rail: &mut impl Rail, engine: &mut Engine<Machine>, key: Key) {
    while let Some((from, frame)) = rail.receive() {
        engine.deliver(&*rail, from, frame);
    }
    while let Some(dead) = rail.death() {
        engine.death(&*rail, dead);
    }
    engine.pump(rail, key, None);
    rail.wait(rail.now() + Time::from_ms(5));
}

/// A live process; it goes on serving until all are done.
fn live(
    mut rail: impl Rail,
    scenario: &Scenario,
    turns: &Barrier,
    done: &AtomicUsize,
    alive: usize,
) -> Vec<Got> {
    let key = Key {
        comm: 7,
        sequence: 0,
        incarnation: 0,
        protocol: 1,
    };
    let mut engine = Engine::new(0, Bounds::default());
    let start = Start {
        key,
        members: (0..scenario.processes).collect(),
        me: rail.me(),
        machine: Machine::new(),
        config: Arc::new(config(scenario.processes, Time(1_000_000))),
        seed: 1,
    };
    engine.start(&rail, start);
    if scenario.late == Some(rail.me()) {
        // Then the others are in the call: their frames lie here already.
        turns.wait();
    }
    let calls = 0..scenario.calls;
    let got = calls
        .map(|number| one_call(&mut rail, &mut engine, key, number, scenario, turns))
        .collect();
    assert_eq!(engine.counts().refused, 0);
    // Goes on serving: others may still want to be heard.
    done.fetch_add(1, Ordering::AcqRel);
    let end = rail.now() + Time::from_secs(60);
    while done.load(Ordering::Acquire) < alive {
        assert!(rail.now() < end, "{}: the others hang", scenario.name);
        serve(&mut rail, &mut engine, key);
    }
    got
}

fn on_rails<R: Rail + Send>(scenario: &Scenario, rails: Vec<Option<R>>) -> Outcome {
    let alive = rails.iter().flatten().count();
    let (turns, done) = (Barrier::new(alive), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (turns, done) = (&turns, &done);
        let spawned: Vec<_> = rails
            .into_iter()
            .enumerate()
            .filter_map(|(me, rail)| rail.map(|rail| (me, rail)))
            .map(|(me, rail)| {
                (
                    me,
                    scope.spawn(move || live(rail, scenario, turns, done, alive)),
                )
            })
            .collect();
        let joined = spawned
            .into_iter()
            .map(|(me, thread)| (me as u32, thread.join().expect("no panic")));
        joined.collect()
    })
}

fn over_threads(scenario: &Scenario) -> Outcome {
    let rails = Threads::all(scenario.processes).into_iter().enumerate();
    let rails = rails.map(|(me, rail)| {
        if scenario.dead.contains(&(me as u32)) {
            rail.kill();
            return None;
        }
        Some(rail)
    });
    on_rails(scenario, rails.collect())
}

fn over_tcp(scenario: &Scenario) -> Outcome {
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
    on_rails(scenario, rails)
}

fn simulated(scenario: &Scenario) -> Outcome {
    let model = Model {
        logp: MODEL,
        byte_gap: 0,
        half_duplex: false,
    };
    let mut run = Simulated::new(config(scenario.processes, Time(1)), model, call(scenario));
    run.calls = vec![call(scenario); scenario.calls as usize];
    run.exact = true;
    run.deaths = scenario
        .dead
        .iter()
        .map(|dead| (*dead, Death::At(Time(0))))
        .collect();
    // In the simulated world nobody tells of a death: silence does.
    run.config.timeout = Time(1_000);
    run.config.patience = Time(2_000);
    if let Some(late) = scenario.late {
        run.enters = vec![Time(0); scenario.processes as usize];
        run.enters[late as usize] = Time(300);
    }
    let report = outlive_simulator::ftco::run(&run, 3).expect("a simulation");
    assert_eq!(report.violations, Vec::<String>::new(), "{}", scenario.name);
    let live = (0..scenario.processes).filter(|who| !scenario.dead.contains(who));
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

#[test]
fn every_driver_comes_to_the_simulated_outcome() {
    for scenario in scenarios() {
        let want = simulated(&scenario);
        assert_eq!(over_threads(&scenario), want, "threads: {scenario:?}");
        assert_eq!(over_tcp(&scenario), want, "TCP: {scenario:?}");
    }
}
