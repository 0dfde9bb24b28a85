use super::*;
use crate::machine;

const TWELVE: &str = r#"
[nodes]
count = 12
mtbf = "1000 s"
light-mtbf = "500 s"
[[groups]]
name = "rack"
size = 4
mtbf = "8000 s"
[[groups]]
name = "power"
size = 3
stride = 4
mtbf = "9000 s"
[[servers]]
name = "buffer"
count = 3
mtbf = "6000 s"
[[servers]]
name = "files"
count = 1
mtbf = "50000 s"
stops-jobs = true
[[levels]]
kind = "local"
cost = "1 s"
restart = "1 s"
[[levels]]
kind = "partner"
distance = 4
cost = "2 s"
restart = "2 s"
[[levels]]
kind = "xor"
group = 4
cost = "2 s"
restart = "2 s"
[[levels]]
kind = "shared"
servers = "buffer"
cost = "3 s"
restart = "3 s"
[[levels]]
kind = "shared"
servers = "files"
cost = "9 s"
restart = "9 s"
"#;

fn twelve() -> (Machine, Job, Vec<Level>) {
    let machine = machine::machine(TWELVE, "m").expect("good");
    let text = "nodes = 12\nwork = \"1 h\"\ncheckpoint = \"1 GB\"";
    let job = machine::job(text, "j", &machine).expect("good");
    let levels = machine::priced(&machine, &job);
    (machine, job, levels)
}

/// By hand: racks hold whole XOR sets, power supplies hold a node and its partner.
#[test]
fn rates_of_a_small_machine() {
    let (machine, job, levels) = twelve();
    let found = classes(&machine, &job, &levels, 0);
    let sum = |survive: Mask| {
        let of = found.stops.iter().filter(|(o, _)| o.survive == survive);
        of.map(|(_, rate)| rate.rate).sum::<f64>()
    };
    // Light faults: all levels. A node: all but local. A rack: partner and shared. A power
    // supply: XOR and shared. The file system's loss: all but itself.
    assert!((sum(0b11111) - 12.0 / 500.0).abs() < 1e-15);
    assert!((sum(0b11110) - 12.0 / 1000.0).abs() < 1e-15);
    assert!((sum(0b11010) - 3.0 / 8000.0).abs() < 1e-15);
    assert!((sum(0b11100) - 4.0 / 9000.0).abs() < 1e-15);
    assert!((sum(0b01111) - 1.0 / 50_000.0).abs() < 1e-15);
    assert_eq!(found.losses, [0.0, 0.0, 0.0, 3.0 / 6000.0, 0.0]);
    let total = 12.0 / 500.0 + 12.0 / 1000.0 + 3.0 / 8000.0 + 4.0 / 9000.0 + 1.0 / 50_000.0;
    assert!((found.total() - total).abs() < 1e-15);
    // What is left for shared after local, partner and XOR is none of these sources.
    let rates = found.severities(&[0, 1, 3]);
    assert!((rates[1] - (12.0 / 1000.0 + 3.0 / 8000.0)).abs() < 1e-15);
    assert!((rates[2] - 4.0 / 9000.0).abs() < 1e-15);
    assert_eq!(rates[3], 0.0);
    assert!((found.of(&[1, 4]).severities(&[0])[1] - 4.0 / 9000.0).abs() < 1e-15);
}

/// The additional losses after a replacement, against a count over all nodes.
#[test]
fn what_a_replaced_node_adds() {
    let (machine, job, levels) = twelve();
    let found = classes(&machine, &job, &levels, 0);
    let world = World {
        levels: &levels,
        count: 12,
    };
    let mut want: BTreeMap<(Mask, Mask), f64> = BTreeMap::new();
    let mut event = |lost: &[u32], rate: f64| {
        let survive = world.survive(lost);
        for replaced in 0..12 {
            let mut both = lost.to_vec();
            both.push(replaced);
            both.sort_unstable();
            both.dedup();
            let redundant = 0b00110;
            let also = survive & !world.survive(&both) & redundant;
            *want.entry((survive, also)).or_default() += rate / 12.0;
        }
    };
    (0..12).for_each(|node| event(&[node], 1e-3));
    for group in &machine.groups {
        for set in 0..group.sets(12) {
            event(&group.set(set, 12), 1.0 / group.life.mtbf);
        }
    }
    for ((survive, also), rate) in want {
        let key = Outcome {
            survive,
            also,
            replaces: true,
            away: 0,
        };
        let got = found.stops.get(&key).map_or(0.0, |rate| rate.rate);
        assert!((got - rate).abs() < 1e-15, "{key:?}: {got}, not {rate}");
    }
}

/// A rack that falls in part: what XOR survives is binomial.
#[test]
fn a_group_that_falls_in_part() {
    let (mut machine, job, levels) = twelve();
    machine.groups.truncate(1);
    machine.groups[0].hits = 0.25;
    let found = classes(&machine, &job, &levels, 0);
    // Of four nodes: none 81/256 (stops nothing), one 108/256 (XOR survives), more 67/256.
    let rack = 3.0 / 8000.0;
    assert!((found.fails(2).rate - rack * 67.0 / 256.0).abs() < 1e-15);
    let fatal = 12.0 / 1000.0;
    assert!((found.fails(0).rate - fatal - rack * 175.0 / 256.0).abs() < 1e-15);
    assert_eq!(found.fails(0).error, 0.0);
}

/// A burst over a large machine is drawn, and its error is told.
#[test]
fn a_large_burst_is_estimated_within_its_error() {
    let text = r#"
        [nodes]
        count = 1000
        [[groups]]
        name = "burst"
        size = 1000
        hits = 0.005
        mtbf = "1000 s"
        [[levels]]
        kind = "xor"
        group = 100
        cost = "1 s"
        restart = "1 s"
    "#;
    let seed = outlive_base::seed!();
    let machine = machine::machine(text, "m").expect("good");
    let job = machine::job(
        "nodes = 1000\nwork = \"1 h\"\ncheckpoint = \"1 GB\"",
        "j",
        &machine,
    )
    .expect("good");
    let levels = machine::priced(&machine, &job);
    let found = classes(&machine, &job, &levels, seed).fails(0);
    // P(no set of 100 loses two), sets being independent.
    let one = libm::pow(0.995, 100.0) + 100.0 * 0.005 * libm::pow(0.995, 99.0);
    let want = (1.0 - libm::pow(one, 10.0)) / 1000.0;
    assert!(found.error > 0.0 && found.error < want / 20.0);
    assert!(
        (found.rate - want).abs() < 6.0 * found.error,
        "seed {seed}: {found:?}, not {want}"
    );
}

/// Servers in repair: by the M/G/infinity queue any is away for 1 - e^(-rate r) of the time, whether
/// their loss stops the job or not.
#[test]
fn servers_are_away_until_they_are_repaired() {
    let text = r#"
        [nodes]
        count = 4
        mtbf = "1000 h"
        [[servers]]
        name = "buffer"
        count = 5
        mtbf = "100 h"
        STOPS
        repair = { median = "4 h", sigma = 1.2 }
        [[levels]]
        kind = "local"
        cost = "1 s"
        restart = "1 s"
        [[levels]]
        kind = "shared"
        servers = "buffer"
        cost = "1 s"
        restart = "1 s"
    "#;
    for stops in ["", "stops-jobs = true"] {
        let machine = machine::machine(&text.replace("STOPS", stops), "m").expect("good");
        let job = "nodes = 4\nwork = \"1 h\"\ncheckpoint = \"1 GB\"";
        let job = machine::job(job, "j", &machine).expect("good");
        let levels = machine::priced(&machine, &job);
        let found = classes(&machine, &job, &levels, 0);
        let mean = 4.0 * libm::exp(0.72) * 5.0 / 100.0;
        let want = 1.0 - libm::exp(-mean);
        assert!((found.away(1) - want).abs() < 1e-12, "{}", found.away(1));
        assert!((found.of(&[1]).away(0) - want).abs() < 1e-12);
        assert_eq!(found.away(0), 0.0);
        assert_eq!(found.losses[1] > 0.0, stops.is_empty());
        assert_eq!(
            found.of(&[0]).stops.keys().filter(|o| o.away != 0).count(),
            0
        );
    }
}
