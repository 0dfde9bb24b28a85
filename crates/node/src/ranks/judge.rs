//! From the quanta of all ranks to what they say of the job.
//!
//! Invariants: the parts of the job's time add up to it, and each step has exactly one slowest
//! rank.

use std::collections::BTreeMap;

use outlive_base::{Code, Entity, Error, Result, count};

use super::record::Record;
use super::{Daemon, Job, Mode, RANKS, Rank, Ranks};
use crate::extrapolate::extrapolate;
use crate::stats::{self, Summary, over_percent};

/// What was run.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When ranks wait for each other.
    pub mode: Mode,
    /// The quantum, ns.
    pub quantum_ns: u64,
    /// Quanta of each rank.
    pub steps: u64,
    /// What disturbs on purpose.
    pub daemon: Option<Daemon>,
    /// The seed of replayed steps.
    pub seed: u64,
}

/// Memory that a step of a rank takes while it is judged, bytes: its reading, its times, what
/// is sorted of them with ranks, and two copies of all quanta.
pub const BYTES_A_STEP: u64 = 80;

/// Judges the records of all ranks, in any order.
///
/// # Errors
/// [`Code::RankLost`] for a rank without a record, [`Code::RankCount`] where ranks saw other
/// numbers of ranks than there are, [`Code::Corrupt`] where they did other work.
pub fn judge(asked: &Asked, mut records: Vec<Record>) -> Result<Ranks> {
    records.sort_by_key(|record| record.rank);
    same_job(&records)?;
    let quanta: Vec<&[f64]> = records.iter().map(|record| &record.quanta[..]).collect();
    let slowest = slowest(&quanta);
    let first = records.first().ok_or_else(|| Error::internal("no rank"))?;
    let (counter, mpi) = (first.counter.to_owned(), first.library.clone());
    let crowded = crowded(&records);
    let job = job(asked, &records, &slowest, !crowded.is_empty())?;
    let mut wins = vec![0; records.len()];
    slowest.iter().for_each(|of| wins[of.rank] += 1);
    let ranks = records.iter().zip(&wins);
    let ranks = ranks
        .map(|(record, &wins)| rank(asked, record, wins))
        .collect::<Result<_>>()?;
    Ok(Ranks {
        schema: RANKS.to_owned(),
        mode: asked.mode,
        quantum_ns: asked.quantum_ns,
        steps: asked.steps,
        counter,
        mpi,
        seed: asked.seed,
        daemon: asked.daemon,
        notes: notes(asked, &records, crowded),
        job,
        ranks,
    })
}

/// Ranks 0 to n - 1 are there once each, know it, and did the same work.
fn same_job(records: &[Record]) -> Result<()> {
    let remedy = "run it again; if it repeats, look at what the launcher and the ranks said";
    let all = records.len() as u32;
    let largest = records.iter().map(|record| record.size).max().unwrap_or(0);
    let other = records.iter().find(|record| record.size != largest);
    let extra = records.iter().find(|record| record.rank >= largest);
    if let Some(record) = other.or(extra) {
        let reason = format!(
            "it is one of {}, others are of {largest}",
            count(u64::from(record.size), "rank")
        );
        let entity = Entity::Rank(record.rank);
        return Err(Error::new(Code::RankCount, entity, reason, remedy));
    }
    let missing =
        (0..largest).find(|&rank| records.get(rank as usize).map(|r| r.rank) != Some(rank));
    if let Some(rank) = missing {
        let reason = format!("left no result; {all} of {largest} did");
        return Err(Error::new(
            Code::RankLost,
            Entity::Rank(rank),
            reason,
            remedy,
        ));
    }
    let work = records.first().map_or(0, |record| record.work);
    match records.iter().find(|record| record.work != work) {
        Some(record) => Err(Error::new(
            Code::Corrupt,
            Entity::Rank(record.rank),
            "its quanta were other work than those of rank 0",
            remedy,
        )),
        None => Ok(()),
    }
}

/// The slowest quantum of a step.
struct Slowest {
    rank: usize,
    ns: f64,
    /// Of all ranks.
    mean_ns: f64,
}

/// The slowest quantum at each place; the first of equals.
fn slowest(quanta: &[&[f64]]) -> Vec<Slowest> {
    let steps = quanta.iter().map(|of| of.len()).min().unwrap_or(0);
    let at = |step: usize| {
        let (mut rank, mut ns, mut sum) = (0, f64::MIN, 0.0);
        for (of, times) in quanta.iter().enumerate() {
            sum += times[step];
            if times[step] > ns {
                (rank, ns) = (of, times[step]);
            }
        }
        let mean_ns = sum / quanta.len() as f64;
        Slowest { rank, ns, mean_ns }
    };
    (0..steps).map(at).collect()
}

/// The expected largest of one draw from each of these series, all independent: the integral
/// of 1 minus the product of their distribution functions.
pub fn expected_slowest(series: &[&[f64]]) -> f64 {
    let tagged = |(rank, of): (usize, &&[f64])| {
        let of: Vec<(f64, u32)> = of.iter().map(|&ns| (ns, rank as u32)).collect();
        of
    };
    let mut all: Vec<(f64, u32)> = series.iter().enumerate().flat_map(tagged).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut below = vec![0u64; series.len()];
    // Ranks that have nothing below yet make the product 0; logarithms keep it in range.
    let (mut empty, mut logarithm, mut gaps) = (series.len(), 0.0, 0.0);
    for (at, &(ns, rank)) in all.iter().enumerate() {
        let rank = rank as usize;
        let length = series[rank].len() as f64;
        if below[rank] == 0 {
            empty -= 1;
        } else {
            logarithm -= (below[rank] as f64 / length).ln();
        }
        below[rank] += 1;
        logarithm += (below[rank] as f64 / length).ln();
        if let Some(next) = all.get(at + 1)
            && empty == 0
        {
            gaps += (next.0 - ns) * logarithm.exp();
        }
    }
    all.last().map_or(0.0, |last| last.0) - gaps
}

fn needed(samples: &[f64]) -> Result<Summary> {
    stats::summary(samples).ok_or_else(|| Error::internal("no quanta"))
}

fn job(
    asked: &Asked,
    records: &[Record],
    slowest: &[Slowest],
    oversubscribed: bool,
) -> Result<Job> {
    let step = asked.mode == Mode::Step;
    let ranks = records.len() as f64;
    let all: Vec<f64> = records
        .iter()
        .flat_map(|r| r.quanta.iter().copied())
        .collect();
    let quanta = needed(&all)?;
    let sums: Vec<f64> = records.iter().map(|r| r.quanta.iter().sum()).collect();
    let mean = sums.iter().sum::<f64>() / ranks;
    let ideal_ns = quanta.min * asked.steps as f64;
    let total_ns = records.iter().map(total).fold(0.0, f64::max);
    let worst = match step {
        true => slowest.iter().map(|of| of.ns).sum(),
        false => sums.iter().copied().fold(0.0, f64::max),
    };
    let series: Vec<f64> = slowest.iter().map(|of| of.ns).collect();
    let in_steps = |of: &dyn Fn(usize) -> f64| {
        let times = || (0..slowest.len()).map(of).collect::<Vec<f64>>();
        step.then(|| needed(&times())).transpose()
    };
    let waited = |at: usize| records.iter().map(|r| r.steps[at]).sum::<f64>() / ranks;
    let hosts: std::collections::BTreeSet<&str> = records.iter().map(|r| &*r.host).collect();
    let means: Vec<f64> = sums.iter().map(|sum| sum / asked.steps as f64).collect();
    let each: Vec<&[f64]> = records.iter().map(|record| &record.quanta[..]).collect();
    Ok(Job {
        ranks: records.len() as u64,
        hosts: hosts.len() as u64,
        oversubscribed,
        total_ns,
        ideal_ns,
        own_ns: mean - ideal_ns,
        slowest_ns: worst - mean,
        barrier_ns: step.then_some(total_ns - worst),
        slowdown_percent: over_percent(total_ns, ideal_ns),
        over_ranks: needed(&means)?,
        steps: in_steps(&waited)?,
        slowest: in_steps(&|at| slowest[at].ns)?,
        lost: in_steps(&|at| slowest[at].ns - slowest[at].mean_ns)?,
        independent_ns: expected_slowest(&each),
        histogram: stats::histogram(&all),
        series: stats::envelope(&series),
        extrapolation: extrapolate(&all, quanta.min, &crate::extrapolate::RANKS, asked.seed),
        quanta,
    })
}

/// From the first barrier to a rank's end.
fn total(record: &Record) -> f64 {
    match record.mode {
        Mode::Start => record.quanta.iter().sum(),
        Mode::Step => record.steps.iter().sum(),
    }
}

fn rank(asked: &Asked, record: &Record, slowest_steps: u64) -> Result<Rank> {
    let step = asked.mode == Mode::Step;
    let total_ns = total(record);
    Ok(Rank {
        rank: record.rank,
        host: record.host.clone(),
        cores: ranges(&record.allowed),
        core_first: record.cores.0,
        core_last: record.cores.1,
        cycles_per_second: record.scale.frequency_hz(),
        memory_locked: record.locked,
        quanta: needed(&record.quanta)?,
        steps: step.then(|| needed(&record.steps)).transpose()?,
        total_ns,
        waited_ns: step.then(|| total_ns - record.quanta.iter().sum::<f64>()),
        slowest_steps: step.then_some(slowest_steps),
        daemon_bursts: asked.daemon.map(|_| record.bursts),
        daemon_phase_ns: asked.daemon.map(|_| record.phase_ns),
    })
}

/// Cores as in 0-2,5.
fn ranges(cores: &[u32]) -> String {
    let runs = cores.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [only] => only.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Hosts, with ranks and cores, on which not every rank can have a core of its own.
fn crowded(records: &[Record]) -> Vec<(String, usize, usize)> {
    let mut hosts: BTreeMap<&str, Vec<&[u32]>> = BTreeMap::new();
    for record in records {
        hosts.entry(&record.host).or_default().push(&record.allowed);
    }
    let of = |(host, allowed): (&&str, &Vec<&[u32]>)| {
        let placed = placed(allowed);
        (placed < allowed.len()).then(|| ((*host).to_owned(), allowed.len(), placed))
    };
    hosts.iter().filter_map(of).collect()
}

/// How many ranks can have a core of their own at once: a largest matching, by augmenting
/// paths (Kuhn, 1955).
fn placed(allowed: &[&[u32]]) -> usize {
    let mut owner: BTreeMap<u32, usize> = BTreeMap::new();
    let mut placed = 0;
    for rank in 0..allowed.len() {
        // By which rank each core was reached.
        let (mut reached, mut open) = (BTreeMap::new(), vec![rank]);
        let mut free = None;
        while let Some(at) = open.pop() {
            for &core in allowed[at] {
                if reached.contains_key(&core) {
                    continue;
                }
                reached.insert(core, at);
                match owner.get(&core) {
                    Some(&next) => open.push(next),
                    None => free = free.or(Some(core)),
                }
            }
            if free.is_some() {
                break;
            }
        }
        // Each rank of the path takes the core by which it was left.
        while let Some(core) = free {
            let taker = reached[&core];
            free = (taker != rank)
                .then(|| {
                    owner
                        .iter()
                        .find(|(_, of)| **of == taker)
                        .map(|(core, _)| *core)
                })
                .flatten();
            owner.insert(core, taker);
            if let Some(old) = free {
                owner.remove(&old);
            }
        }
        placed = owner.len();
    }
    placed
}

fn notes(asked: &Asked, records: &[Record], crowded: Vec<(String, usize, usize)>) -> Vec<String> {
    let many = |which: &dyn Fn(&Record) -> bool| {
        let number = records.iter().filter(|record| which(record)).count();
        (number > 0).then(|| count(number as u64, "rank"))
    };
    let mut notes: Vec<String> = crowded
        .into_iter()
        .map(|(host, ranks, cores)| {
            format!(
                "oversubscribed: {host} has {ranks} ranks and cores for {cores} of them; ranks \
                 wait for each other's core, which is no noise of the system"
            )
        })
        .collect();
    if let Some(ranks) = many(&|record| record.allowed.len() > 1) {
        let daemon = match asked.daemon {
            Some(_) => ", where daemons stay on the core that the rank began on",
            None => "",
        };
        notes.push(format!(
            "{ranks} not bound to one core{daemon}: --cores binds"
        ));
    }
    if let Some(ranks) = many(&|record| record.cores.0 != record.cores.1) {
        notes.push(format!("{ranks} changed the core meanwhile"));
    }
    if let Some(ranks) = many(&|record| !record.locked) {
        notes.push(format!(
            "memory of {ranks} could not be locked: page faults are possible; raise the limit \
             (ulimit -l) or take fewer steps"
        ));
    }
    if let Some(ranks) = many(&|record| asked.daemon.is_some() && record.bursts == 0) {
        notes.push(format!(
            "daemons of {ranks} never ran: the quanta took less than a period; take more steps"
        ));
    }
    if records.len() == 1 {
        notes.push("one rank waits for nobody: start more".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::record::{parse, tests::bytes};
    use super::*;
    use outlive_base::rng::Sequence;

    fn asked(mode: Mode, steps: u64) -> Asked {
        Asked {
            mode,
            quantum_ns: 10,
            steps,
            daemon: None,
            seed: 1, // fixed seed: replayed steps are not looked at
        }
    }

    /// A job in which all leave a barrier at once, `barrier` ns after the last has come.
    fn in_steps(quanta: &[Vec<u64>], barrier: u64) -> Vec<Record> {
        let steps = quanta[0].len();
        let marks = |of: &Vec<u64>| {
            let (mut now, mut marks) = (1_000, vec![1_000]);
            for (step, own) in of.iter().enumerate() {
                let most = quanta.iter().map(|of| of[step]).max().unwrap();
                marks.push(now + own);
                now += most + barrier;
                marks.push(now);
            }
            marks
        };
        let record = |(rank, of): (usize, &Vec<u64>)| {
            let (size, steps) = (quanta.len() as u64, steps as u64);
            let bytes = bytes(rank as u64, size, Mode::Step, steps, &marks(of));
            parse("x", &bytes, Mode::Step, steps).unwrap()
        };
        quanta.iter().enumerate().map(record).collect()
    }

    /// The same quanta, alone.
    fn alone(quanta: &[Vec<u64>]) -> Vec<Record> {
        let record = |(rank, of): (usize, &Vec<u64>)| {
            let mut marks = vec![1_000];
            of.iter()
                .for_each(|ns| marks.push(marks[marks.len() - 1] + ns));
            let (size, steps) = (quanta.len() as u64, of.len() as u64);
            let bytes = bytes(rank as u64, size, Mode::Start, steps, &marks);
            parse("x", &bytes, Mode::Start, steps).unwrap()
        };
        quanta.iter().enumerate().map(record).collect()
    }

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{a} {b}");
    }

    #[test]
    fn a_rank_that_is_hit_holds_up_all_in_steps_and_only_itself_alone() {
        // Each rank is hit once, in a step of its own.
        let quanta = [vec![20, 10, 10, 10], vec![10, 10, 30, 10]];
        let found = judge(&asked(Mode::Step, 4), in_steps(&quanta, 3)).unwrap();
        let job = &found.job;
        near(job.total_ns, 20.0 + 10.0 + 30.0 + 10.0 + 4.0 * 3.0);
        near(job.ideal_ns, 40.0);
        near(job.own_ns, 15.0);
        near(job.slowest_ns, 15.0);
        near(job.barrier_ns.unwrap(), 12.0);
        near(job.slowdown_percent, 105.0);
        near(job.lost.as_ref().unwrap().mean, 15.0 / 4.0);
        near(job.steps.as_ref().unwrap().max, 33.0);
        near(job.slowest.as_ref().unwrap().mean, 17.5);
        let waited: Vec<f64> = found.ranks.iter().map(|r| r.waited_ns.unwrap()).collect();
        near(waited[0], 82.0 - 50.0);
        near(waited[1], 82.0 - 60.0);
        let wins: Vec<_> = found
            .ranks
            .iter()
            .map(|r| r.slowest_steps.unwrap())
            .collect();
        assert_eq!(wins, [3, 1], "the first of equals counts");
        let found = judge(&asked(Mode::Start, 4), alone(&quanta)).unwrap();
        let job = &found.job;
        near(job.total_ns, 60.0);
        near(job.own_ns, 15.0);
        near(job.slowest_ns, 5.0);
        assert_eq!(
            (job.barrier_ns, &job.steps, &job.lost),
            (None, &None, &None)
        );
        assert_eq!((job.ranks, job.hosts, job.oversubscribed), (2, 1, false));
    }

    #[test]
    fn parts_add_up_and_coordinated_noise_costs_less_than_independent() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let (ranks, steps) = (8, 400u64);
        // Every 20th step a delay as long as a quantum: of all at once, or of each by itself.
        let judged = |phases: &[u64]| {
            let delay = |at: u64, phase: u64| 1_000 + 1_000 * u64::from(at % 20 == phase);
            let of = |&phase: &u64| (0..steps).map(|at| delay(at, phase)).collect();
            let quanta: Vec<Vec<u64>> = phases.iter().map(of).collect();
            let found = judge(&asked(Mode::Step, steps), in_steps(&quanta, 5));
            found.unwrap().job
        };
        let phases: Vec<u64> = (0..ranks).map(|_| random.below(20)).collect();
        let (same, other) = (judged(&[7; 8]), judged(&phases));
        for of in [&same, &other] {
            let parts = of.ideal_ns + of.own_ns + of.slowest_ns + of.barrier_ns.unwrap();
            near(parts, of.total_ns);
            near(of.own_ns, 50.0 * steps as f64);
            // One step in twenty of each rank: the chance that any of eight is hit.
            near(of.independent_ns, 1_000.0 * (2.0 - 0.95f64.powi(8)));
        }
        near(same.slowest_ns, 0.0);
        near(same.slowest.unwrap().mean, 1_050.0);
        // With a phase each, one step in twenty is hit for each phase that there is.
        let hit = phases
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len();
        near(other.slowest.unwrap().mean, 1_000.0 + 50.0 * hit as f64);
    }

    #[test]
    fn the_expected_slowest_is_that_of_all_pairs_of_draws() {
        let mut random = Sequence::new(outlive_base::seed!(), 1);
        for _ in 0..20 {
            let mut draw = |most| -> Vec<f64> {
                let length = 1 + random.below(most);
                (0..length).map(|_| random.below(9) as f64).collect()
            };
            let (a, b, c) = (draw(6), draw(9), draw(4));
            let mut sum = 0.0;
            for x in &a {
                for y in &b {
                    sum += c.iter().map(|z| x.max(*y).max(*z)).sum::<f64>();
                }
            }
            let mean = sum / (a.len() * b.len() * c.len()) as f64;
            near(expected_slowest(&[&a, &b, &c]), mean);
        }
        assert_eq!(expected_slowest(&[]), 0.0);
        // Alike ranks: the closed form of the extrapolation.
        let series: Vec<f64> = (0..50).map(f64::from).collect();
        let alike = crate::extrapolate::expected_largest(&series, 3);
        near(expected_slowest(&[&series, &series, &series]), alike);
    }

    #[test]
    fn ranks_that_are_not_one_job_are_refused() {
        let quanta = vec![vec![10, 20]; 3];
        let code = |records: Vec<Record>| judge(&asked(Mode::Step, 2), records).unwrap_err();
        let mut lost = in_steps(&quanta, 1);
        lost.remove(1);
        let error = code(lost);
        assert_eq!(
            (error.code(), error.entity()),
            (Code::RankLost, &Entity::Rank(1))
        );
        let mut counts = in_steps(&quanta, 1);
        counts[2].size = 2;
        assert_eq!(code(counts).code(), Code::RankCount);
        let mut twice = in_steps(&quanta, 1);
        twice[2].rank = 1;
        assert_eq!(code(twice).code(), Code::RankLost);
        let mut beyond = in_steps(&quanta, 1);
        beyond[2].rank = 3;
        assert_eq!(code(beyond).code(), Code::RankCount);
        let mut other = in_steps(&quanta, 1);
        other[1].work += 1;
        assert_eq!(code(other).code(), Code::Corrupt);
        assert_eq!(code(Vec::new()).code(), Code::Internal);
    }

    #[test]
    fn ranks_are_crowded_where_no_way_gives_each_a_core() {
        assert_eq!(placed(&[&[0, 1], &[0, 1]]), 2);
        assert_eq!(placed(&[&[0, 1], &[0, 1], &[0, 1]]), 2);
        // The second has only what the first took.
        assert_eq!(placed(&[&[0, 1], &[0]]), 2);
        assert_eq!(placed(&[&[0, 1], &[0, 2], &[0]]), 3);
        assert_eq!(placed(&[&[3], &[3]]), 1);
        assert_eq!(
            placed(&[&[0, 1, 2], &[0, 1], &[0, 1], &[2, 3], &[2]]),
            5 - 1
        );
        let quanta = vec![vec![10, 20]; 2];
        let mut records = in_steps(&quanta, 1);
        records[1].allowed = records[0].allowed.clone();
        let found = judge(&asked(Mode::Step, 2), records).unwrap();
        assert!(found.job.oversubscribed);
        assert!(
            found.notes[0].starts_with("oversubscribed: node has 2 ranks"),
            "{:?}",
            found.notes
        );
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }

    /// Against every assignment of small numbers of ranks and cores.
    #[test]
    fn a_matching_is_a_largest_one() {
        fn best(allowed: &[Vec<u32>], used: u32) -> usize {
            let Some((first, rest)) = allowed.split_first() else {
                return 0;
            };
            let without = best(rest, used);
            let with = first.iter().filter(|&&core| used >> core & 1 == 0);
            let with = with.map(|core| 1 + best(rest, used | 1 << core)).max();
            without.max(with.unwrap_or(0))
        }
        let mut random = Sequence::new(outlive_base::seed!(), 2);
        for _ in 0..300 {
            let ranks = random.below(6) as usize;
            let mut draw = || {
                (0..6)
                    .filter(|_| random.below(3) == 0)
                    .collect::<Vec<u32>>()
            };
            let allowed: Vec<Vec<u32>> = (0..ranks).map(|_| draw()).collect();
            let slices: Vec<&[u32]> = allowed.iter().map(|of| &of[..]).collect();
            assert_eq!(placed(&slices), best(&allowed, 0), "{allowed:?}");
        }
    }
}
