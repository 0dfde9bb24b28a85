//! On the rail between threads, where a death can be put before any frame.

use super::*;
use crate::tasks::Task;
use crate::transport::over::Over;
use outlive_balance::Graph;
use outlive_network::rail::Can;
use outlive_network::rail::threads::Threads;

/// A rail whose process dies instead of sending its n-th frame.
struct Mortal {
    rail: Option<Threads>,
    size: u32,
    left: u64,
}

impl Rail for Mortal {
    fn me(&self) -> u32 {
        self.rail.as_ref().map_or(u32::MAX, Rail::me)
    }
    fn size(&self) -> u32 {
        self.size
    }
    fn name(&self) -> &'static str {
        "a mortal's"
    }
    fn can(&self) -> Can {
        Can::default()
    }
    fn now(&self) -> Time {
        self.rail.as_ref().map_or(Time::NEVER, Rail::now)
    }
    fn ready(&self) -> bool {
        true
    }
    fn send(&mut self, to: u32, frame: Frame) {
        let Some(rail) = &mut self.rail else { return };
        if self.left == 0 {
            self.rail = None;
            panic!("dies as planned");
        }
        self.left -= 1;
        rail.send(to, frame);
    }
    fn waiting(&self) -> usize {
        self.rail.as_ref().map_or(0, Rail::waiting)
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        self.rail.as_mut().and_then(Rail::receive)
    }
    fn news(&mut self) -> Option<News> {
        self.rail.as_mut().and_then(Rail::news)
    }
    fn leave(&mut self, bound: Duration) {
        if let Some(rail) = &mut self.rail {
            rail.leave(bound);
        }
    }
    fn wait(&mut self, until: Time) {
        if let Some(rail) = &mut self.rail {
            rail.wait(until);
        }
    }
    fn flushed(&mut self) -> bool {
        true
    }
}

fn mortal(rail: Threads, frames: u64) -> Mortal {
    Mortal {
        size: rail.size(),
        rail: Some(rail),
        left: frames,
    }
}

/// What `me` has of a mesh of 12 x 8 tasks, in strips; the first strip is heavy.
fn local(me: u32, size: u32) -> Local {
    let graph = Graph::mesh(12, 8, 1);
    let mut local = Local::default();
    for task in 0..96u32 {
        let strip = task % 12 * size / 12;
        if strip == me {
            let ends = graph.adjacent(task);
            let described = Task {
                weight: if strip == 0 { 4.0 } else { 1.0 },
                home: me,
                at: graph.coordinates().map(|all| all[task as usize]),
                edges: ends.map(|(to, weight)| (u64::from(to), weight)).collect(),
            };
            local.own.insert(u64::from(task), described);
        }
    }
    local
}

/// The tasks of `before` after an outcome.
fn after(before: &Local, outcome: &Outcome) -> Vec<u64> {
    let goes = |name: &u64| outcome.exports.iter().any(|entry| entry.0 == *name);
    let stay = before.own.keys().copied().filter(|name| !goes(name));
    let mut all: Vec<u64> = stay.chain(outcome.imports.iter().map(|e| e.0)).collect();
    all.sort_unstable();
    all
}

/// Runs `calls` balancings on each thread; `None` from a thread that died.
fn run(size: u32, calls: u32, frames: impl Fn(u32) -> u64) -> Vec<Option<Vec<Survived>>> {
    let rails = Threads::all(size).into_iter().enumerate();
    let rails: Vec<Mortal> = rails
        .map(|(me, rail)| mortal(rail, frames(me as u32)))
        .collect();
    std::thread::scope(|scope| {
        let one = |rail: Mortal| {
            let me = rail.me();
            let bound = Duration::from_secs(20);
            let mut rails = Rails::new(rail, Options { bound }).unwrap();
            let options = diffusion::Options::default();
            let mut all = Vec::new();
            for _ in 0..calls {
                all.push(
                    rails
                        .balance(&local(me, size), (1.0, 0.0), &options)
                        .unwrap(),
                );
            }
            rails.leave(Duration::ZERO);
            all
        };
        let all: Vec<_> = rails
            .into_iter()
            .map(|rail| scope.spawn(move || one(rail)))
            .collect();
        all.into_iter().map(|thread| thread.join().ok()).collect()
    })
}

/// Every task of those who took part is at exactly one of them, and the two lists of
/// each move agree.
fn conserved(size: u32, all: &[Option<Vec<Survived>>], call: usize, seed: &str) {
    let lived: Vec<(u32, &Survived)> = (0..size)
        .filter_map(|me| Some((me, all[me as usize].as_ref()?.get(call)?)))
        .collect();
    let failed = &lived[0].1.failed;
    let mut tasks = Vec::new();
    for (me, one) in &lived {
        assert_eq!(&one.failed, failed, "{seed}");
        tasks.extend(after(&local(*me, size), &one.outcome));
        for (task, to) in &one.outcome.exports {
            assert!(!failed.contains(to), "{seed}");
            if let Some((_, other)) = lived.iter().find(|entry| entry.0 == *to) {
                assert!(other.outcome.imports.contains(&(*task, *me)), "{seed}");
            }
        }
        for (_, from) in &one.outcome.imports {
            assert!(!failed.contains(from), "{seed}");
        }
    }
    tasks.sort_unstable();
    let whole = lived.len() + failed.len() == size as usize;
    let had = (0..size).filter(|me| !failed.contains(me));
    let mut before: Vec<u64> = had.flat_map(|me| local(me, size).own.into_keys()).collect();
    before.sort_unstable();
    if whole {
        assert_eq!(tasks, before, "{seed}");
    } else {
        // Someone took part to the end and died with what it had by then.
        let unique = tasks.windows(2).all(|pair| pair[0] != pair[1]);
        let theirs = tasks.iter().all(|task| before.binary_search(task).is_ok());
        assert!(unique && theirs, "{seed}");
    }
}

#[test]
fn rails_balance_as_any_transport_does() {
    let over_rails = run(4, 2, |_| u64::MAX);
    let plain: Vec<Outcome> = std::thread::scope(|scope| {
        let one = |mut net: Over<Threads>| {
            use crate::transport::Transport as _;
            let options = diffusion::Options::default();
            let mine = local(net.rank(), 4);
            distributed::balance(&mut net, mine, (1.0, 0.0), &options).unwrap()
        };
        let all: Vec<_> = Over::threads(4)
            .into_iter()
            .map(|net| scope.spawn(move || one(net)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (me, all) in over_rails.iter().enumerate() {
        for survived in all.as_ref().unwrap() {
            assert_eq!(survived.outcome, plain[me]);
            assert_eq!((survived.failed.len(), survived.attempts), (0, 1));
        }
    }
    assert!(plain[0].imbalance.1 <= 0.1 && !plain[0].exports.is_empty());
}

#[test]
fn a_death_before_any_frame_leaves_the_others_balanced_and_whole() {
    let (mut again, mut late) = (0, 0);
    for victim in 0..4 {
        for frames in (0..900).step_by(19) {
            let seed = format!("{victim} dies before frame {frames}");
            let all = run(4, 2, |me| if me == victim { frames } else { u64::MAX });
            for (me, one) in all.iter().enumerate() {
                assert!(one.is_some() || me as u32 == victim, "{seed}");
            }
            for call in 0..2 {
                conserved(4, &all, call, &seed);
            }
            let witness = all[(victim as usize + 1) % 4].as_ref().unwrap();
            again += u32::from(witness.iter().any(|one| one.attempts > 1));
            late += u32::from(witness[0].failed.is_empty());
            if all[victim as usize].is_none() && witness[1].failed == [victim] {
                assert!(witness[1].outcome.imbalance.1 <= 0.15, "{seed} {witness:?}");
            }
        }
    }
    assert!(again > 20 && late > 20, "{again} {late}");
}

#[test]
fn two_deaths_at_once_and_one_survivor() {
    for frames in (0..120).step_by(11) {
        let seed = format!("before frame {frames}");
        let all = run(5, 1, |me| match me {
            0 => frames,
            3 => frames / 2,
            _ => u64::MAX,
        });
        conserved(5, &all, 0, &seed);
        let all = run(3, 2, |me| if me == 1 { u64::MAX } else { 3 + frames / 9 });
        let last = &all[1].as_ref().unwrap()[1];
        assert_eq!(
            (&last.failed[..], last.outcome.exports.len()),
            (&[0, 2][..], 0)
        );
    }
}

#[test]
fn bad_input_at_one_process_is_an_error_at_all_and_the_rails_go_on() {
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = |rail: Threads| {
            let me = rail.me();
            let mut rails = Rails::new(rail, Options::default()).unwrap();
            let options = diffusion::Options::default();
            let mut bad = local(me, 3);
            if me == 1 {
                bad.own.values_mut().for_each(|task| task.weight = f64::NAN);
            }
            let first = rails.balance(&bad, (1.0, 0.0), &options);
            let own = Error::new(Code::NoSpace, Entity::Rank(me), "no room", "make some");
            let mine = local(me, 3);
            let given = if me == 1 { Err(&own) } else { Ok(&mine) };
            let none = rails.balance_given(given, (1.0, 0.0), &options);
            let error = none.unwrap_err();
            assert_eq!(error.entity(), &Entity::Rank(1));
            assert_eq!(error.code() == Code::NoSpace, me == 1);
            let second = rails.balance(&local(me, 3), (1.0, 0.0), &options);
            rails.leave(Duration::ZERO);
            (first, second)
        };
        let all: Vec<_> = Threads::all(3)
            .into_iter()
            .map(|rail| scope.spawn(move || one(rail)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (first, second) in results {
        let error = first.unwrap_err();
        assert_eq!(
            (error.code(), error.entity()),
            (Code::InvalidArgument, &Entity::Rank(1))
        );
        assert!(second.unwrap().failed.is_empty());
    }
}

#[test]
fn who_leaves_is_not_waited_for_and_who_is_silent_only_for_the_bound() {
    let mut all = Threads::all(3).into_iter();
    let mut rails = || {
        let bound = Duration::from_millis(300);
        Rails::new(all.next().unwrap(), Options { bound }).unwrap()
    };
    let (mut one, two, mut silent) = (rails(), rails(), rails());
    two.leave(Duration::ZERO);
    let options = diffusion::Options::default();
    let late = one.balance(&local(0, 3), (1.0, 0.0), &options).unwrap_err();
    assert_eq!(late.code(), Code::TimedOut);
    let closed = one.balance(&local(0, 3), (1.0, 0.0), &options).unwrap_err();
    assert_eq!(closed.code(), Code::RankLost);
    silent.rail.news();
}
