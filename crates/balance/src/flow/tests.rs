use super::*;
use outlive_base::rng::Sequence;

fn count(links: &Links, loads: &[f64], scheme: Scheme) -> u32 {
    let options = FlowOptions {
        scheme,
        tolerance: 0.01,
        pair_threshold: 0.0,
        check_every: 1,
        check_lag: 0,
        iterations_max: 20_000,
        degree_max: 4,
    };
    let flow = diffuse(links, loads, &vec![1.0; loads.len()], &options);
    assert!(flow.converged);
    let (before, after): (f64, f64) = (loads.iter().sum(), flow.loads.iter().sum());
    assert!((before - after).abs() < 1e-9 * before);
    flow.iterations
}

/// First order, 1.5, 1.8, 1.9, best, adaptive.
fn row(links: &Links, loads: &[f64]) -> [u32; 6] {
    let gamma = gamma(links, 6000);
    let fixed = |beta| count(links, loads, Scheme::Second { beta });
    [
        count(links, loads, Scheme::First),
        fixed(1.5),
        fixed(1.8),
        fixed(1.9),
        count(links, loads, Scheme::Best { gamma }),
        count(links, loads, Scheme::Adaptive { gamma }),
    ]
}

fn hot_corner() -> Vec<f64> {
    let mut loads = vec![1.0; 32 * 32];
    loads[0] = 257.0;
    loads
}

fn slab() -> Vec<f64> {
    (0..64 * 64)
        .map(|i| if i < 8 * 64 { 3.0 } else { 1.0 })
        .collect()
}

/// The table's random case, +-50%: multiples of a large number (Knuth's multiplicative
/// hash) modulo 1000. They are spread more evenly than independent draws.
fn scattered() -> Vec<f64> {
    let multiple = |i: u64| (i * 2_654_435_761 % 1000) as f64 / 1000.0;
    (0..64 * 64).map(multiple).map(|x| 0.5 + x).collect()
}

fn rough(seed: u64) -> Vec<f64> {
    let mut random = Sequence::new(seed, 0);
    let unit = move |_| random.below(1 << 20) as f64 / f64::from(1 << 20);
    (0..64 * 64).map(unit).map(|x| 0.5 + x).collect()
}

/// The published table (Lieber, Goessner, Nagel 2016, as measured for this
/// project): iterations until max/mean - 1 <= 1%.
#[test]
fn iteration_counts_of_the_table() {
    let small = Links::mesh(32, 32);
    let hot = row(&small, &hot_corner());
    assert_eq!(hot[..5], [2232, 740, 232, 134, 115], "{hot:?}");
    let large = Links::mesh(64, 64);
    let slab = row(&large, &slab());
    assert_eq!(slab[..5], [7549, 2513, 827, 370, 176], "{slab:?}");
    assert_eq!((hot[5], slab[5]), (103, 169), "the adaptive schedule");
    let random = row(&large, &scattered());
    assert_eq!(random[..5], [62, 21, 38, 81, 135], "{random:?}");
    assert_eq!(random[5], 34, "the adaptive schedule");
    println!("corner {hot:?}\nslab {slab:?}\nscattered {random:?}");
}

/// Independent draws have a smooth part, which the table's scattered numbers lack, and
/// the first order is slow on it: in 1,500 draws it takes 202 to 2499 iterations instead
/// of 62, and b = 1.9 takes 79 to 134, the more of a smooth part there is. What
/// holds for every draw is the far end (the best b for the smooth mode is
/// the wrong one here: 131 to 144), and that the adaptive schedule, which does not
/// know what kind of imbalance it meets, beats it: at most 0.67 of it.
#[test]
fn random_imbalance_wants_little_momentum_and_the_adaptive_schedule_sees_it() {
    let large = Links::mesh(64, 64);
    for seed in outlive_base::seeds!(6) {
        let counts = row(&large, &rough(seed));
        println!("random, draw {seed}: {counts:?}");
        assert!((115..=165).contains(&counts[4]), "{counts:?}");
        assert!(counts[5] * 10 < counts[4] * 8, "{counts:?}");
    }
}

/// Smooth and rough together: below every fixed b.
#[test]
fn adaptive_beats_every_fixed_beta_on_mixed_imbalance() {
    let large = Links::mesh(64, 64);
    for seed in outlive_base::seeds!(3) {
        let mixed: Vec<f64> = rough(seed).iter().zip(slab()).map(|(a, b)| a * b).collect();
        let counts = row(&large, &mixed);
        assert!(counts[..5].iter().all(|&c| counts[5] < c), "{counts:?}");
    }
}

#[test]
fn speeds_draw_load_in_proportion_and_pairs_stop_alone() {
    let links = Links::mesh(12, 9);
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    let speeds: Vec<f64> = (0..108).map(|_| 1.0 + random.below(4) as f64).collect();
    let loads: Vec<f64> = (0..108).map(|_| random.below(100) as f64).collect();
    let options = FlowOptions::default();
    let flow = diffuse(&links, &loads, &speeds, &options);
    let ideal = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>();
    for (w, c) in flow.loads.iter().zip(&speeds) {
        assert!(w / c <= ideal * 1.006, "{} {ideal}", w / c);
    }
    for i in 0..108u32 {
        let out: f64 = links.of(i).map(|link| flow.amounts[link]).sum();
        assert!((loads[i as usize] - out - flow.loads[i as usize]).abs() < 1e-9);
        for link in links.of(i) {
            assert_eq!(flow.amounts[link], -flow.amounts[links.reverse(link)]);
        }
    }
    let calm = diffuse(&links, &speeds, &speeds, &options);
    assert!(calm.iterations <= 8 && calm.amounts.iter().all(|y| *y == 0.0));
}

#[test]
fn integers_end_with_neighbours_at_most_a_unit_apart_and_none_lost() {
    let links = Links::mesh(10, 10);
    let speeds = vec![1.0; 100];
    for seed in outlive_base::seeds!(20) {
        let mut random = Sequence::new(seed, 1);
        let loads: Vec<i64> = (0..100).map(|_| random.below(1000) as i64).collect();
        let real: Vec<f64> = loads.iter().map(|&w| w as f64).collect();
        let flow = diffuse(&links, &real, &speeds, &FlowOptions::default());
        let (amounts, after) = integer_finish(&links, &loads, &speeds, &flow.amounts);
        assert_eq!(after.iter().sum::<i64>(), loads.iter().sum::<i64>());
        for i in 0..100u32 {
            let out: i64 = links.of(i).map(|link| amounts[link]).sum();
            assert_eq!(loads[i as usize] - out, after[i as usize]);
            for &j in links.neighbours(i) {
                assert!((after[i as usize] - after[j as usize]).abs() <= 1);
            }
        }
    }
}

#[test]
fn a_lone_or_separate_process_ends_the_iteration_at_once() {
    let none = Links::from_pairs(3, []);
    let flow = diffuse(&none, &[5.0, 1.0, 0.0], &[1.0; 3], &FlowOptions::default());
    assert!(!flow.converged && flow.iterations <= 64 && flow.loads == [5.0, 1.0, 0.0]);
    let nothing = diffuse(
        &Links::mesh(2, 1),
        &[0.0; 2],
        &[1.0; 2],
        &FlowOptions::default(),
    );
    assert!(nothing.converged);
}
