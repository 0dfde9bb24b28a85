//! The same scenarios on the simulator and on every rail, by both families: the outcome
//! must be the same.
//!
//! An outcome is what each live process got: the sum of the contributors' values, and
//! the list of the absent. Deaths before the call are dropped rails (threads), closed
//! sockets (TCP), closed workers (UCX, with that feature), sessions that are given up, or
//! processes dead from the start (simulation); a death during it comes after the process gave
//! its contribution away and while the call waits for a late one, so that all worlds must count
//! it. Over sessions it may also come back without its memory, which is as bad.
//!
//! Where the corrected family keeps trees, the call that matters begins when they are grown,
//! and that they carried it is checked.
//!
//! The outcomes lie in `conformance.jsonl` (OUTLIVE_WRITE_CONFORMANCE=1 writes it anew):
//! `tests/mpi/test_conformance.py` runs the same scenarios as MPI jobs against it, on the
//! rail over MPI's own messages, over TCP and over UCX, with ranks that kill themselves.

#[cfg(feature = "ucx")]
mod doors;
mod families;
mod rails;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use families::Family;
use outlive_base::Time;
use outlive_collectives::Operator;
use outlive_collectives::engine::{Bounds, Engine, Start};
use outlive_network::rail::sessions::Sessions;
use outlive_network::rail::{Content, Key, News, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::collective::{Call, CollectiveKind, Command, Event};
use outlive_protocols::corrected;
use outlive_protocols::ftco;
use outlive_simulator::ftco::{Scenario as Simulated, run_any};
use outlive_simulator::logp::{Death, Model};
use rails::Job;
use watched::Watched;

const MODEL: LogP = LogP {
    latency: 2,
    overhead: 1,
    gap: 1,
};

#[derive(Clone, Debug)]
struct Scenario {
    name: &'static str,
    processes: u32,
    kind: CollectiveKind,
    root: u32,
    calls: u32,
    /// Dead before the first call.
    dead: Vec<u32>,
    /// Enters the call `at` when the others have waited for it.
    late: Option<u32>,
    /// Dies in the call `at`, once it has given its operand away.
    dies: Option<u32>,
    /// Dies when the call `at` has ended, before the next.
    leaves: Option<u32>,
    at: u32,
    /// Trees that the corrected family keeps.
    trees: u32,
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
        leaves: None,
        at: 0,
        trees: 0,
    };
    let mut all = Vec::new();
    for kind in [
        CollectiveKind::Bcast,
        CollectiveKind::Reduce,
        CollectiveKind::Allreduce,
        CollectiveKind::Barrier,
    ] {
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
            dies: Some(if kind == CollectiveKind::Bcast { 4 } else { 7 }),
            ..plain("one dies during the call", 8, kind, 0)
        });
    }
    all
}

/// Those with trees: dead before any are grown, while they are used, and in between.
fn with_trees() -> Vec<Scenario> {
    let mut all = Vec::new();
    for kind in [
        CollectiveKind::Bcast,
        CollectiveKind::Reduce,
        CollectiveKind::Allreduce,
        CollectiveKind::Barrier,
    ] {
        let plain = |name, processes| Scenario {
            name,
            processes,
            kind,
            root: 0,
            calls: 6,
            dead: Vec::new(),
            late: None,
            dies: None,
            leaves: None,
            at: 4,
            trees: 3,
        };
        all.push(plain("trees kept, fault-free", 7));
        all.push(Scenario {
            dead: vec![2],
            ..plain("trees kept, one dead before", 8)
        });
        all.push(Scenario {
            leaves: Some(1),
            ..plain("trees kept, one dies between calls", 8)
        });
        all.push(Scenario {
            late: Some(5),
            dies: Some(4),
            ..plain("trees kept, one dies during a call", 8)
        });
        all.push(Scenario {
            dead: vec![3],
            late: Some(5),
            dies: Some(1),
            trees: 2,
            ..plain("trees kept, one dead before, one dies during a call", 8)
        });
    }
    all
}

/// What a process got of one call: the sum, and who is missing from it.
type Got = Option<(u64, Vec<u32>)>;
type Outcome = Vec<(u32, Vec<Got>)>;

/// What the processes of a run know of each other without messages.
#[derive(Default)]
struct Board {
    /// How many are in the call for which one is late, or died in it.
    entered: AtomicUsize,
    done: AtomicUsize,
    /// The root's trees are grown.
    grown: AtomicBool,
    /// Frames down trees.
    branches: AtomicUsize,
}

fn call(scenario: &Scenario) -> Call {
    let root = match scenario.kind {
        CollectiveKind::Bcast | CollectiveKind::Reduce => scenario.root,
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

fn one_call<M: Family, R: Rail>(
    rail: &mut Watched<'_, R>,
    engine: &mut Engine<M>,
    key: Key,
    number: u32,
    scenario: &Scenario,
    board: &Board,
) -> Option<Got> {
    let entered = &board.entered;
    let call = call(scenario);
    let given = rail.given;
    let dying = number == scenario.at && scenario.dies == Some(rail.me());
    let giving = call.kind != CollectiveKind::Bcast || call.root == rail.me();
    let value = match call.kind {
        CollectiveKind::Barrier => Vec::new(),
        _ => u64::from(rail.me() + 1).to_le_bytes().to_vec(),
    };
    let content = giving.then(|| (number, Content::new(value)));
    engine.command(&*rail, key, content, |value| {
        Command::Start(Call { value, ..call })
    });
    let mut sum = Sum { call: number };
    let end = rail.now() + Time::from_secs(60);
    let mut entering = number == scenario.at && scenario.late.is_some_and(|late| late != rail.me());
    loop {
        while let Some((from, frame)) = rail.receive() {
            engine.deliver(&*rail, from, frame);
        }
        hear(rail, engine);
        engine.pump(rail, key, Some(&mut sum));
        if dying && rail.given > given && rail.flushed() {
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

fn hear<M: Family>(rail: &mut impl Rail, engine: &mut Engine<M>) {
    while let Some(news) = rail.news() {
        if let News::Dead(dead) = news {
            engine.death(&*rail, dead);
        }
    }
}

fn serve<M: Family>(rail: &mut impl Rail, engine: &mut Engine<M>, key: Key) {
    while let Some((from, frame)) = rail.receive() {
        engine.deliver(&*rail, from, frame);
    }
    hear(rail, engine);
    engine.pump(rail, key, None);
    rail.wait(rail.now() + Time::from_ms(5));
}

/// A live process; it goes on serving until all are done. Nothing of one that dies.
fn live<M: Family>(
    rail: &mut impl Rail,
    scenario: &Scenario,
    board: &Board,
    alive: usize,
) -> Option<Vec<Got>> {
    let mut rail = Watched {
        rail,
        given: 0,
        branches: 0,
        deaths: 0,
        branch: |frame| M::decode(&frame.msg).is_some_and(|msg| M::branches(&msg)),
    };
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
        config: Arc::new(M::config(scenario, Time(1_000_000))),
        seed: 1,
    };
    engine.start(&rail, start);
    // Trees that are hurt by a death while they grow wait for a later broadcast, and here
    // none comes before they are to be there.
    let end = rail.now() + Time::from_secs(60);
    while scenario.trees > 0 && rail.deaths < scenario.dead.len() {
        assert!(rail.now() < end, "{}: a death is not told", scenario.name);
        serve(&mut rail, &mut engine, key);
    }
    let mut got = Vec::new();
    for number in 0..scenario.calls {
        if number == scenario.at {
            prepare(&mut rail, &mut engine, key, scenario, board);
        }
        let call = one_call(&mut rail, &mut engine, key, number, scenario, board)?;
        got.push(call);
        if number == scenario.at && scenario.leaves == Some(rail.me()) {
            return None;
        }
    }
    board
        .branches
        .fetch_add(rail.branches as usize, Ordering::AcqRel);
    assert_eq!(engine.counts().refused, 0);
    // Goes on serving: others may still want to be heard.
    let done = &board.done;
    done.fetch_add(1, Ordering::AcqRel);
    let end = rail.now() + Time::from_secs(60);
    while done.load(Ordering::Acquire) < alive {
        assert!(rail.now() < end, "{}: the others hang", scenario.name);
        serve(&mut rail, &mut engine, key);
    }
    Some(got)
}

/// Before the call that matters: the root's trees are grown; the late one waits until the
/// others are in the call, and the one that dies there is dead. The rail is served
/// meanwhile: others may have to connect to it.
fn prepare<M: Family>(
    rail: &mut impl Rail,
    engine: &mut Engine<M>,
    key: Key,
    scenario: &Scenario,
    board: &Board,
) {
    let name = scenario.name;
    let end = rail.now() + Time::from_secs(60);
    // Only a root that broadcasts has trees.
    let keeps = scenario.trees > 0 && scenario.kind.down();
    while keeps && !board.grown.load(Ordering::Acquire) {
        assert!(rail.now() < end, "{name}: no trees");
        serve(rail, engine, key);
        let root = call(scenario).root;
        if rail.me() == root && engine.machine(key).is_some_and(|one| one.grown(root)) {
            board.grown.store(true, Ordering::Release);
        }
    }
    let others = scenario.processes as usize - scenario.dead.len() - 1;
    let late = scenario.late == Some(rail.me());
    while late && board.entered.load(Ordering::Acquire) < others {
        assert!(rail.now() < end, "{name}: the others do not enter");
        serve(rail, engine, key);
    }
}

fn on_rails<M: Family, R: Rail + Send>(
    scenario: &Scenario,
    rails: Vec<Option<R>>,
    buried: Buried<R>,
) -> Outcome {
    let alive = rails.iter().flatten().count();
    let board = Board::default();
    let ended = [scenario.dies, scenario.leaves];
    let alive = alive - ended.iter().flatten().count();
    let outcome = thread::scope(|scope| {
        let board = &board;
        let spawned: Vec<_> = rails
            .into_iter()
            .enumerate()
            .filter_map(|(me, rail)| rail.map(|rail| (me, rail)))
            .map(|(me, rail)| {
                (
                    me,
                    scope.spawn(move || {
                        let mut rail = rail;
                        let got = live::<M>(&mut rail, scenario, board, alive);
                        if got.is_none() {
                            let through = || board.done.load(Ordering::Acquire) >= alive;
                            buried(me as u32, rail, &through);
                        }
                        got
                    }),
                )
            })
            .collect();
        let joined = spawned
            .into_iter()
            .map(|(me, thread)| (me as u32, thread.join().expect("no panic")));
        joined.filter_map(|(me, got)| Some((me, got?))).collect()
    });
    let carried = board.branches.into_inner();
    let keeps = scenario.trees > 0 && scenario.kind.down();
    assert_eq!(carried > 0, keeps, "{scenario:?}: {carried} frames");
    outcome
}

/// What becomes of a process that died: its rail, and whether all others are through.
type Buried<'a, R> = &'a (dyn Fn(u32, R, &dyn Fn() -> bool) + Sync);

/// Nothing is left of it.
fn dies<R>(_: u32, rail: R, _: &dyn Fn() -> bool) {
    drop(rail);
}

/// Over sessions. Whoever dies is given up in time, or comes back without its memory.
fn over_sessions<M: Family>(scenario: &Scenario, forgets: bool) -> Outcome {
    let job = Job::new(scenario.processes);
    let comes_back = |me, rail, through: &dyn Fn() -> bool| {
        drop(rail);
        let mut again = job.process(me);
        // Those who knew it tell it that it forgot, and it ends as a program would. Who had not
        // met it before takes it for the first one, until then.
        let mut end = Time::NEVER;
        while !through() && again.now() < end && again.receive().is_none() {
            if again.news().is_some() {
                end = end.min(again.now() + Time::from_ms(300));
            }
            again.wait(again.now() + Time::from_ms(5));
        }
    };
    let buried: Buried<Sessions> = if forgets { &comes_back } else { &dies };
    on_rails::<M, _>(scenario, job.sessions(&scenario.dead), buried)
}

/// Between two calls in the simulator, where the call that matters is not the first.
const INTERVAL: u64 = 10_000;

/// A death so long after the call that matters began, or after the first message.
fn died(scenario: &Scenario, after: u64) -> Death {
    match scenario.at {
        0 => Death::AfterSends(1),
        at => Death::At(Time(u64::from(at) * INTERVAL + after)),
    }
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
    let mut run = Simulated::new(M::silent(scenario), model, call(scenario));
    run.calls = vec![call(scenario); scenario.calls as usize];
    run.exact = true;
    run.deaths = scenario
        .dead
        .iter()
        .map(|dead| (*dead, Death::At(Time(0))))
        .chain(scenario.dies.map(|dies| (dies, died(scenario, 150))))
        .chain(
            scenario
                .leaves
                .map(|leaves| (leaves, died(scenario, 5_000))),
        )
        .collect();
    if scenario.at > 0 {
        run.interval = Time(INTERVAL);
    }
    if let Some(late) = scenario.late {
        run.enters = vec![Time(0); scenario.processes as usize];
        run.enters[late as usize] = Time(300);
    }
    let report = run_any::<M>(&run, 3).expect("a simulation");
    assert_eq!(report.violations, Vec::<String>::new(), "{}", scenario.name);
    let ended = [scenario.dies, scenario.leaves];
    let gone = |who: &u32| scenario.dead.contains(who) || ended.contains(&Some(*who));
    let live = (0..scenario.processes).filter(|who| !gone(who));
    live.map(|me| {
        let mut got: Vec<(u32, Got)> = report
            .results()
            .filter(|(who, ..)| *who == me)
            .map(|(_, _, seq, value)| {
                let value = value.map(|value| {
                    let ranks = value.ranks.iter().map(|rank| u64::from(rank + 1)).sum();
                    let sum = if scenario.kind == CollectiveKind::Barrier {
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
        leaves,
        at,
        trees,
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
    let kept = match trees {
        0 => String::new(),
        _ => format!(
            "\"leaves\": {}, \"at\": {at}, \"trees\": {trees}, ",
            rank(leaves)
        ),
    };
    format!(
        "{{\"family\": \"{}\", \"name\": \"{name}\", \"kind\": \"{kind:?}\", \
         \"processes\": {processes}, \"root\": {root}, \"calls\": {calls}, \"dead\": {dead:?}, \
         \"late\": {}, \"dies\": {}, {kept}\"outcome\": {{{}}}}}\n",
        M::NAME,
        rank(late),
        rank(dies),
        outcome.join(", ")
    )
}

fn conforms<M: Family>(scenarios: Vec<Scenario>, lines: &mut String)
where
    M::Config: Clone,
{
    for scenario in scenarios {
        let want = simulated::<M>(&scenario);
        assert_eq!(
            want.len() as u32,
            live_at_the_end(&scenario),
            "{scenario:?}"
        );
        assert_eq!(
            on_rails::<M, _>(
                &scenario,
                rails::threads(scenario.processes, &scenario.dead),
                &dies
            ),
            want,
            "threads, {}: {scenario:?}",
            M::NAME
        );
        assert_eq!(
            on_rails::<M, _>(
                &scenario,
                rails::tcp(scenario.processes, &scenario.dead),
                &dies
            ),
            want,
            "TCP, {}: {scenario:?}",
            M::NAME
        );
        #[cfg(feature = "ucx")]
        assert_eq!(
            on_rails::<M, _>(
                &scenario,
                doors::rails(scenario.processes, &scenario.dead, rails::secret()),
                &dies
            ),
            want,
            "UCX, {}: {scenario:?}",
            M::NAME
        );
        lines.push_str(&line::<M>(&scenario, &want));
    }
}

fn live_at_the_end(scenario: &Scenario) -> u32 {
    let ended = [scenario.dies, scenario.leaves];
    scenario.processes - scenario.dead.len() as u32 - ended.iter().flatten().count() as u32
}

#[test]
fn every_driver_comes_to_the_simulated_outcome() {
    let mut lines = String::new();
    conforms::<ftco::Machine>(scenarios(), &mut lines);
    conforms::<corrected::Machine>(scenarios(), &mut lines);
    conforms::<corrected::Machine>(with_trees(), &mut lines);
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

/// A death is known after seconds here, so scenarios run side by side.
fn sessions_conform<M: Family>(scenarios: Vec<Scenario>)
where
    M::Config: Clone,
{
    for some in scenarios.chunks(24) {
        thread::scope(|scope| {
            for scenario in some {
                scope.spawn(move || {
                    let want = simulated::<M>(scenario);
                    for forgets in [false, true] {
                        // Twice only where somebody dies who was there.
                        if forgets && scenario.dies.or(scenario.leaves).is_none() {
                            continue;
                        }
                        let got = over_sessions::<M>(scenario, forgets);
                        assert_eq!(got, want, "{}, forgets {forgets}: {scenario:?}", M::NAME);
                    }
                });
            }
        });
    }
}

#[test]
fn sessions_come_to_the_simulated_outcome() {
    sessions_conform::<ftco::Machine>(scenarios());
    sessions_conform::<corrected::Machine>(scenarios());
    sessions_conform::<corrected::Machine>(with_trees());
}
