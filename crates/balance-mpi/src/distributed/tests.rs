use super::*;
use crate::tasks::Task;
use crate::transport::over::Over;
use outlive_balance::metrics::measure;
use outlive_balance::outline::RAGGED;
use outlive_balance::{Graph, Processes, geometric};
use outlive_network::rail::threads::Threads;

/// The tasks of one process.
fn tasks_of(graph: &Graph, parts: &[u32], me: u32) -> Local {
    let mut local = Local::default();
    for task in (0..graph.tasks() as u32).filter(|&t| parts[t as usize] == me) {
        let described = Task {
            weight: graph.weight(task),
            home: me,
            at: graph.coordinates().map(|all| all[task as usize]),
            edges: graph
                .adjacent(task)
                .map(|(to, w)| (u64::from(to), w))
                .collect(),
        };
        local.own.insert(u64::from(task), described);
    }
    local
}

/// Runs all processes as threads; returns the parts after and the outcomes.
fn run(graph: &Graph, parts: &[u32], size: u32, options: &Options) -> (Vec<u32>, Vec<Outcome>) {
    run_as(graph, parts, &vec![(1.0, 0.0); size as usize], options)
}

/// The same with the speed and background of each.
fn run_as(
    graph: &Graph,
    parts: &[u32],
    own: &[(f64, f64)],
    options: &Options,
) -> (Vec<u32>, Vec<Outcome>) {
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let run = |mut net: Over<Threads>| {
            let local = tasks_of(graph, parts, net.rank());
            let own = own[net.rank() as usize];
            let outcome = balance(&mut net, local, own, options).unwrap();
            net.all_gather(0.0).unwrap();
            assert_eq!(net.left_over(), []);
            outcome
        };
        let all: Vec<_> = Over::threads(own.len() as u32)
            .into_iter()
            .map(|net| scope.spawn(move || run(net)))
            .collect();
        all.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut after = parts.to_vec();
    for (me, outcome) in outcomes.iter().enumerate() {
        for &(task, from) in &outcome.imports {
            assert_eq!(parts[task as usize], from);
            after[task as usize] = me as u32;
            assert!(outcomes[from as usize].exports.contains(&(task, me as u32)));
        }
    }
    let moved: usize = outcomes.iter().map(|o| o.exports.len()).sum();
    assert_eq!(
        moved,
        outcomes.iter().map(|o| o.imports.len()).sum::<usize>()
    );
    (after, outcomes)
}

#[test]
fn processes_balance_as_the_reference_does() {
    let mut graph = Graph::mesh(24, 12, 4);
    let all = Processes::uniform(12).unwrap();
    let mut parts = geometric::bisection(&graph, &all).unwrap();
    let options = Options::default();
    for step in 0..6u32 {
        let heavy = |t: usize| {
            if (t % 24) as u32 / 4 == step {
                4.0
            } else {
                1.0
            }
        };
        graph
            .set_weights(&(0..graph.tasks()).map(heavy).collect::<Vec<_>>())
            .unwrap();
        let reference =
            outlive_balance::diffusion::balance(&graph, &all, &parts, &options).unwrap();
        let theirs = measure(&graph, &all, &parts, &reference.parts);
        let (after, outcomes) = run(&graph, &parts, 12, &options);
        let ours = measure(&graph, &all, &parts, &after);
        assert!(
            ours.imbalance <= theirs.imbalance.max(0.02) + 0.02,
            "{ours:?} {theirs:?}"
        );
        assert!((ours.imbalance - outcomes[0].imbalance.1).abs() < 1e-9);
        assert!(
            ours.migration <= 1.5 * theirs.migration + 0.1,
            "{ours:?} {theirs:?}"
        );
        assert!(
            ours.edge_cut_total <= 1.15 * theirs.edge_cut_total,
            "{ours:?} {theirs:?}"
        );
        parts = after;
    }
}

/// Two processes hold every other task of a board and cut far more than the rest.
#[test]
fn ragged_processes_are_smoothed_as_in_the_reference() {
    let mut graph = Graph::mesh(24, 12, 1);
    let weight = |t: usize| 1.0 + (t % 3) as f64 / 10.0;
    graph
        .set_weights(&(0..graph.tasks()).map(weight).collect::<Vec<_>>())
        .unwrap();
    let part = |t: u32| match (t % 24, t / 24) {
        (x, y) if x < 8 => (x + y) % 2,
        (x, _) => x / 4,
    };
    let parts: Vec<u32> = (0..graph.tasks() as u32).map(part).collect();
    let all = Processes::uniform(6).unwrap();
    let options = Options {
        tolerance: 0.01,
        // A chequered border is not gone after one pass.
        passes: 2,
        ..Options::default()
    };
    let before = measure(&graph, &all, &parts, &parts);
    assert!(before.imbalance > options.tolerance);
    let most = before.edge_cut_max * graph.edge_weight_total() / 6.0;
    assert!(most > RAGGED * before.edge_cut_total * 2.0 / 6.0);
    let reference = outlive_balance::diffusion::balance(&graph, &all, &parts, &options).unwrap();
    let theirs = measure(&graph, &all, &parts, &reference.parts);
    let (after, _) = run(&graph, &parts, 6, &options);
    let ours = measure(&graph, &all, &parts, &after);
    assert!(
        ours.edge_cut_max <= 0.85 * before.edge_cut_max,
        "{before:?} {ours:?}"
    );
    assert!(
        ours.edge_cut_max <= 1.15 * theirs.edge_cut_max,
        "{ours:?} {theirs:?}"
    );
}

/// Rows of a board to one process each know of one axis, and an empty process of none.
#[test]
fn all_know_the_space_that_the_reference_knows() {
    let placeless = Graph::from_edges(4, &[(0, 1, 2.0), (1, 2, 1.0)], vec![1.0; 4]).unwrap();
    for graph in [
        Graph::mesh(40, 4, 1),
        Graph::mesh(9, 2, 4),
        Graph::mesh(8, 1, 1),
        placeless,
    ] {
        let size = 5;
        let part = |task: usize| (task * 4 / graph.tasks()) as u32;
        let parts: Vec<u32> = (0..graph.tasks()).map(part).collect();
        let expected = Ground::of(&graph, size as usize);
        std::thread::scope(|scope| {
            for mut net in Over::threads(size) {
                let local = tasks_of(&graph, &parts, net.rank());
                scope.spawn(move || assert_eq!(ground(&mut net, &local).unwrap(), expected));
            }
        });
    }
}

#[test]
fn no_message_is_left_over_whatever_the_loads() {
    for seed in outlive_base::seeds!(60) {
        let size = 2 + (seed % 9) as u32;
        let mut graph = Graph::mesh(20, 10, 1);
        let weight =
            |t: u64| 1.0 + outlive_base::rng::below(outlive_base::rng::draw(seed, t, 0), 30) as f64;
        graph
            .set_weights(&(0..200).map(weight).collect::<Vec<_>>())
            .unwrap();
        let parts: Vec<u32> = (0..200).map(|t| t * size / 200).collect();
        run(&graph, &parts, size, &Options::default());
    }
}

#[test]
fn an_empty_process_joins_and_the_same_input_gives_the_same_result() {
    let graph = Graph::mesh(12, 12, 1);
    let parts: Vec<u32> = (0..144).map(|t| u32::from(t % 12 >= 6)).collect();
    let (after, _) = run(&graph, &parts, 3, &Options::default());
    let all = Processes::uniform(3).unwrap();
    assert!(measure(&graph, &all, &parts, &after).imbalance <= 0.05);
    assert_eq!(run(&graph, &parts, 3, &Options::default()).0, after);
}

/// One, two neighbours, the first, the last, all but one; the others take it all, also
/// what is tied to nobody who stays, and are balanced by their speeds.
#[test]
fn who_leaves_ends_empty_and_the_others_are_balanced() {
    let mut graph = Graph::mesh(24, 12, 1);
    let weight = |t: usize| 1.0 + (t % 5) as f64 / 4.0;
    graph
        .set_weights(&(0..graph.tasks()).map(weight).collect::<Vec<_>>())
        .unwrap();
    let size = 6usize;
    let parts: Vec<u32> = (0..graph.tasks() as u32).map(|t| t % 24 / 4).collect();
    let options = Options::default();
    for leaving in [&[2][..], &[2, 3], &[0], &[5], &[0, 1, 2, 4, 5], &[1, 3, 5]] {
        let speed = |p: usize| match leaving.contains(&p) {
            true => 0.0,
            false => 1.0 + p as f64 / 4.0,
        };
        // What a process that leaves has besides does not count.
        let own: Vec<_> = (0..size).map(|p| (speed(p), 3.0)).collect();
        let (after, outcomes) = run_as(&graph, &parts, &own, &options);
        let who = |p: &u32| leaving.contains(&(*p as usize));
        assert!(!after.iter().any(&who), "{leaving:?}");
        let background = own.iter().map(|o| if o.0 > 0.0 { o.1 } else { 0.0 });
        let speeds = own.iter().map(|own| own.0).collect();
        let all = Processes::new(speeds, background.collect()).unwrap();
        let reference = outlive_balance::diffusion::balance(&graph, &all, &parts, &options);
        let (ours, theirs) = (outcomes[0].imbalance.1, reference.unwrap().imbalance);
        assert!(
            ours <= theirs.max(0.02) + 0.03,
            "{leaving:?} {ours} {theirs}"
        );
        for outcome in &outcomes {
            assert_eq!(outcome.imbalance, outcomes[0].imbalance);
        }
        // Who stays away stays empty, and nothing moves for it.
        let (again, _) = run_as(&graph, &after, &own, &options);
        assert!(!again.iter().any(&who), "{leaving:?}");
    }
}

#[test]
fn somebody_must_stay() {
    let given = [(); 2].map(|()| (Ok(Local::default()), ((0.0, 0.0), Options::default())));
    for result in two_given(given) {
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("leave"), "{error}");
    }
}

#[test]
fn an_edge_to_nowhere_is_refused_by_all_that_see_it() {
    let mut net = Over::threads(1).remove(0);
    let mut local = Local::default();
    let task = Task {
        weight: 1.0,
        home: 0,
        at: None,
        edges: vec![(9, 1.0)],
    };
    local.own.insert(1, task);
    let error = balance(&mut net, local, (1.0, 0.0), &Options::default()).unwrap_err();
    assert_eq!(error.code(), outlive_base::Code::InvalidArgument);
}

/// Two processes, each with one task; returns both results.
fn two(tasks: [(u64, Task); 2]) -> Vec<outlive_base::Result<Outcome>> {
    let usual = ((1.0, 0.0), Options::default());
    let of = |(name, task)| {
        let mut local = Local::default();
        local.own.insert(name, task);
        (Ok(local), usual.clone())
    };
    two_given(tasks.map(of))
}

type Given = (outlive_base::Result<Local>, ((f64, f64), Options));

/// Two processes with what they give, speed, background and options.
fn two_given(given: [Given; 2]) -> Vec<outlive_base::Result<Outcome>> {
    std::thread::scope(|scope| {
        let run = |(mut net, (local, (own, options))): (Over<Threads>, Given)| {
            balance_given(&mut net, local, own, &options)
        };
        let all: Vec<_> = Over::threads(2)
            .into_iter()
            .zip(given)
            .map(|both| scope.spawn(move || run(both)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn task(home: u32, weight: f64, edges: &[(u64, f64)]) -> Task {
    Task {
        weight,
        home,
        at: None,
        edges: edges.to_vec(),
    }
}

/// Whatever is bad at one process is an error at both, and none of them waits for the
/// other.
#[test]
fn bad_input_at_one_process_is_an_error_at_all() {
    const FAR: u64 = u64::MAX - 1;
    let good = task(1, f64::MAX, &[(0, 1.0)]);
    let bad = [
        ("zero", task(0, 0.0, &[(FAR, 1.0)])),
        ("negative", task(0, -1.0, &[(FAR, 1.0)])),
        ("not a number", task(0, f64::NAN, &[(FAR, 1.0)])),
        ("edge of zero", task(0, 1.0, &[(FAR, 0.0)])),
        ("another weight there", task(0, 1.0, &[(FAR, 2.0)])),
        ("one end only", task(0, 1.0, &[])),
        ("own neighbour", task(0, 1.0, &[(0, 1.0), (FAR, 1.0)])),
        ("listed twice", task(0, 1.0, &[(FAR, 1.0), (FAR, 1.0)])),
        ("infinite together", task(0, f64::MAX, &[(FAR, 1.0)])),
        ("to nowhere", task(0, 1.0, &[(5, 1.0), (FAR, 1.0)])),
    ];
    for (what, one) in bad {
        for result in two([(0, one), (FAR, good.clone())]) {
            let error = result.unwrap_err();
            assert_eq!(error.code(), outlive_base::Code::InvalidArgument, "{what}");
            assert!(!error.remedy().is_empty(), "{what}");
        }
    }
    // And global numbers of 64 bits are as good as small ones.
    let good = task(1, 1.0, &[(0, 1.0)]);
    for result in two([(0, task(0, 1.0, &[(FAR, 1.0)])), (FAR, good)]) {
        assert_eq!(result.unwrap().imbalance, (0.0, 0.0));
    }
}

/// A task on two processes would be in the balance twice, and one of it lost.
#[test]
fn a_task_that_two_processes_have_is_refused_by_both() {
    let same = || (7, task(0, 1.0, &[]));
    for result in two([same(), same()]) {
        let error = result.unwrap_err();
        assert_eq!(error.code(), outlive_base::Code::InvalidArgument);
    }
}

#[test]
fn who_cannot_gather_its_tasks_or_has_other_options_is_not_waited_for() {
    let usual = || ((1.0, 0.0), Options::default());
    let with = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        ((1.0, 0.0), options)
    };
    let cases = [
        with(|o| o.tolerance = 0.1),
        with(|o| o.seed = 2),
        with(|o| o.migration_price = f64::NAN),
        with(|o| o.tolerance = -1.0),
        ((-1.0, 0.0), Options::default()),
        ((f64::NAN, 0.0), Options::default()),
        ((1.0, f64::INFINITY), Options::default()),
    ];
    for case in cases {
        let text = format!("{case:?}");
        for result in two_given([
            (Ok(Local::default()), usual()),
            (Ok(Local::default()), case),
        ]) {
            let error = result.expect_err(&text);
            assert_eq!(error.code(), outlive_base::Code::InvalidArgument, "{text}");
            assert_eq!(error.entity(), &Entity::Rank(1), "{text}");
        }
    }
    let (code, entity) = (Code::NoSpace, Entity::Rank(1));
    let own = Error::new(code, entity.clone(), "no room for the tasks", "make some");
    let given = [(Ok(Local::default()), usual()), (Err(own), usual())];
    let mut found = two_given(given).into_iter().map(Result::unwrap_err);
    assert_eq!(found.next().unwrap().entity(), &entity);
    assert_eq!(found.next().unwrap().code(), code);
}

#[test]
fn a_lost_a_doubled_and_a_changed_task_change_the_digest() {
    let of = |names: &[u64]| {
        let mut local = Local::default();
        for &name in names {
            local.own.insert(name, task(0, 1.0, &[]));
        }
        local
    };
    let sum = |a: &[u64], b: &[u64]| (of(a).digest() + of(b).digest()) & DIGEST_MASK;
    let whole = sum(&[1, 2, 3], &[4]);
    assert_eq!(sum(&[4, 2], &[3, 1]), whole);
    assert_ne!(sum(&[1, 2], &[4]), whole);
    assert_ne!(sum(&[1, 2, 3], &[4, 3]), whole);
    let mut heavier = of(&[4]);
    heavier.own.insert(4, task(0, 2.0, &[]));
    let changed = of(&[1, 2, 3]).digest() + heavier.digest();
    assert_ne!(changed & DIGEST_MASK, whole);
}

/// Three rows of tasks without edges between them, each at processes of its own; all
/// the weight is in the last one.
#[test]
fn load_passes_between_pieces_that_no_edge_joins() {
    let row = |r: u32| (1..40).map(move |t| (40 * r + t - 1, 40 * r + t, 1.0));
    let edges: Vec<(u32, u32, f64)> = (0..3).flat_map(row).collect();
    let weights = (0..120).map(|t| if t < 80 { 1.0 } else { 4.0 }).collect();
    let graph = Graph::from_edges(120, &edges, weights).unwrap();
    let parts: Vec<u32> = (0..120).map(|t| t / 20).collect();
    let (after, outcomes) = run(&graph, &parts, 6, &Options::default());
    let all = Processes::uniform(6).unwrap();
    let reference =
        outlive_balance::diffusion::balance(&graph, &all, &parts, &Options::default()).unwrap();
    let ours = measure(&graph, &all, &parts, &after).imbalance;
    assert!(outcomes[0].imbalance.0 > 0.9);
    assert!(
        ours <= reference.imbalance.max(0.1) + 0.05,
        "{ours} {}",
        reference.imbalance
    );
}

/// A tenth of a board that is so heavy that a process there has three times the average.
fn surge() -> (Graph, Vec<u32>) {
    let mut graph = Graph::mesh(48, 48, 1);
    let all = Processes::uniform(12).unwrap();
    let parts = geometric::bisection(&graph, &all).unwrap();
    let weight = |t: usize| if t % 48 < 15 && t / 48 < 15 { 3.9 } else { 1.0 };
    graph
        .set_weights(&(0..graph.tasks()).map(weight).collect::<Vec<_>>())
        .unwrap();
    (graph, parts)
}

#[test]
fn one_process_computes_for_all_what_the_reference_computes() {
    let (graph, parts) = surge();
    // The last one leaves, and another carries something anyway.
    let mut own = vec![(1.0, 0.0); 12];
    (own[11], own[3]) = ((0.0, 0.0), (1.0, 20.0));
    let processes = own.iter().copied().unzip();
    let (speeds, background): (Vec<f64>, Vec<f64>) = processes;
    let processes = Processes::new(speeds, background).unwrap();
    for approach in [Approach::Scratch, Approach::Auto] {
        let options = Options {
            approach,
            ..Options::default()
        };
        let theirs = match approach {
            Approach::Scratch => {
                outlive_balance::scratch::balance(&graph, &processes, &parts, &options).unwrap()
            }
            _ => {
                let done = outlive_balance::scratch::choose(&graph, &processes, &parts, &options);
                done.unwrap().parts
            }
        };
        let (after, outcomes) = run_as(&graph, &parts, &own, &options);
        assert_eq!(after, theirs);
        assert!(!after.contains(&11));
        let reached = measure(&graph, &processes, &parts, &after).imbalance;
        for outcome in &outcomes {
            assert!(outcome.is_fresh, "{approach:?}");
            assert!((outcome.imbalance.1 - reached).abs() < 1e-9);
            assert!(outcome.imbalance.0 > 0.5 && outcome.imbalance.1 <= 0.021);
        }
        // Nothing is left to do.
        let own = vec![(1.0, 0.0); 12];
        let level = outlive_balance::diffusion::balance(
            &graph,
            &Processes::uniform(12).unwrap(),
            &parts,
            &Options::default(),
        );
        let level = level.unwrap().parts;
        let (after, outcomes) = run_as(&graph, &level, &own, &options);
        assert_eq!(after, level);
        assert!(outcomes.iter().all(|outcome| outcome.rounds == 0));
    }
}
