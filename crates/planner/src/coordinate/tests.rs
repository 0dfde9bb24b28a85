use outlive_base::rng::Sequence;

use super::*;
use crate::methods::herault::{self, JobClass};

fn size(nodes: f64, mtbf: f64, write: f64) -> Size {
    Size {
        nodes,
        mtbf,
        write,
        share: 1.0,
        background: false,
    }
}

fn slot(job: JobId, target: f64, length: f64, weight: f64) -> Planned {
    Planned {
        job,
        target,
        length,
        share: 1.0,
        weight,
        first: false,
    }
}

/// Where storage is no constraint the intervals are the best of each job alone; where it is,
/// they are those of Herault et al. (who do not count the write itself as part of the cycle:
/// the loads are compared).
#[test]
fn intervals_are_what_the_storage_can_serve() {
    let calm = [size(100.0, 1e5, 10.0), size(50.0, 2e5, 5.0)];
    let (found, lambda) = periods(&calm);
    assert_eq!(lambda, 0.0);
    assert_eq!(found[0], Costs::new(10.0, 0.0, 1e5).expect("good").best());
    let (nodes, mtbf) = (17_784.0, 2.0 * 3600.0 * 17_784.0);
    let rows = [
        (8, 1024.0, 1310.72),
        (11, 256.0, 378.88),
        (2, 2048.0, 5734.4),
        (1, 1875.0, 1275.0),
    ];
    let each = rows
        .iter()
        .flat_map(|&(jobs, nodes, write)| (0..jobs).map(move |_| size(nodes, mtbf / nodes, write)));
    let jobs: Vec<Size> = each.collect();
    let (found, lambda) = periods(&jobs);
    let load: f64 = jobs
        .iter()
        .zip(&found)
        .map(|(job, period)| job.write / (period + job.write))
        .sum();
    assert!(lambda > 0.0 && (load - LOAD_MAX).abs() < 0.01, "{load}");
    let classes: Vec<JobClass> = rows
        .iter()
        .map(|&(jobs, nodes, cost)| JobClass {
            jobs: f64::from(jobs),
            nodes,
            cost,
            restart: cost,
        })
        .collect();
    let theirs = herault::best(&classes, nodes, mtbf);
    for (ours, theirs) in [(found[0], theirs.periods[0]), (found[8], theirs.periods[1])] {
        assert!(
            (0.75..1.25).contains(&(ours / theirs)),
            "{ours}, theirs {theirs}"
        );
    }
}

/// Against exhaustive search on a grid of starts.
#[test]
fn writes_are_placed_at_least_cost() {
    let seed = outlive_base::seed!();
    let mut random = Sequence::new(seed, 0);
    for _ in 0..40 {
        let slots: Vec<Planned> = (0..3)
            .map(|job| {
                let target = random.below(40) as f64;
                slot(
                    job,
                    target,
                    1.0 + random.below(12) as f64,
                    1.0 + random.below(5) as f64,
                )
            })
            .collect();
        let free = random.below(20) as f64;
        let (cost, starts) = placed(&slots, free);
        for pair in 0..2 {
            assert!(starts[pair] + slots[pair].length <= starts[pair + 1] + 1e-9);
        }
        assert!(starts[0] >= free);
        let mut least = f64::INFINITY;
        let grid = |from: f64| (0..160).map(move |step| from + 0.5 * f64::from(step));
        for a in grid(free) {
            for b in grid(a + slots[0].length).take(100) {
                // The last one: as near to its target as it may be.
                let c = slots[2].target.max(b + slots[1].length);
                let each = slots.iter().zip([a, b, c]);
                let sum: f64 = each
                    .map(|(slot, at)| 0.5 * slot.weight * (at - slot.target).powi(2))
                    .sum();
                least = least.min(sum);
            }
        }
        assert!(
            cost <= least + 1e-9,
            "seed {seed}: {cost} over {least}: {slots:?} {free}"
        );
        assert!(
            cost >= least - 0.3 * (least + 6.0),
            "seed {seed}: {cost} under {least}"
        );
    }
}

/// Two jobs that want to write at once: the one that has more to lose keeps its time, the other
/// makes room, before or after it.
#[test]
fn writes_do_not_overlap_and_the_dearer_keeps_its_time() {
    let mut turns = Coordinator::default();
    turns.join(0.0, 1, size(10.0, 1e5, 100.0)).expect("good");
    turns.join(0.0, 2, size(1_000.0, 1e5, 100.0)).expect("good");
    let alone = Costs::new(100.0, 0.0, 1e5).expect("good").best();
    turns.refresh();
    for (job, start) in turns.planned(0.0, 0.0) {
        let off = (start - alone).abs();
        match job {
            2 => assert!(off < 2.0, "{off}"),
            _ => assert!((off - 100.0).abs() < 2.0, "{off}"),
        }
    }
    let (first, at) = turns.next(0.0).expect("one");
    let other = 3 - first;
    assert!(matches!(
        turns.offer(at - 500.0, first),
        Answer::Later { .. }
    ));
    assert_eq!(turns.offer(at, first), Answer::Accept);
    turns.began(at, first);
    assert_eq!(turns.next(at), None);
    let Answer::Later { at: turn } = turns.offer(at + 1.0, other) else {
        panic!("two at a time");
    };
    assert!((turn - (at + 100.0)).abs() < 10.0, "{turn}");
    turns.ended(at + 100.0, first);
    assert_eq!(turns.offer(at + 110.0, other), Answer::Accept);
}

/// Jobs that use half of the bandwidth write two at a time.
#[test]
fn half_a_storage_is_enough_for_half() {
    let half = Size {
        share: 0.5,
        ..size(100.0, 1e5, 100.0)
    };
    let mut turns = Coordinator::default();
    for job in 0..3 {
        turns.join(0.0, job, half).expect("good");
    }
    let (first, at) = turns.next(0.0).expect("one");
    let at = at + 200.0;
    turns.began(at, first);
    let (second, soon) = turns.next(at).expect("another");
    assert!(second != first && soon <= at + 100.0);
    turns.began(soon, second);
    assert_eq!(turns.next(soon), None);
}

/// A job with little to lose among many with much, that keep the storage busy: it waits no
/// longer than its bound and the writes of a round.
/// Three that use 0.3 each have room side by side: each keeps its time. With a fourth there is none
/// for all, and the four are ordered.
#[test]
fn what_has_room_side_by_side_is_not_moved_apart() {
    let starts = |jobs: u64| {
        let mut turns = Coordinator::default();
        for job in 1..=jobs {
            let size = Size {
                share: 0.3,
                ..size(10.0, 1e5, 50.0)
            };
            turns.join(0.0, job, size).expect("room");
            turns.resumed(job as f64, job);
        }
        turns.refresh();
        let period = turns.table.jobs[&1].period;
        let starts = turns.planned(jobs as f64, jobs as f64).into_iter();
        starts
            .map(|(job, at)| at - period - job as f64)
            .collect::<Vec<f64>>()
    };
    let moved = |starts: &[f64]| starts.iter().map(|by| by.abs()).fold(0.0, f64::max);
    assert!(moved(&starts(3)) < 1e-6, "{:?}", starts(3));
    assert!(moved(&starts(4)) > 10.0, "{:?}", starts(4));
}

/// Not beside large jobs, nor beside such as say that they are the largest there can be.
#[test]
fn none_starves() {
    for nodes in [2_000.0, f64::from(u32::MAX)] {
        assert_none_starves_beside(nodes);
    }
}

fn assert_none_starves_beside(nodes: f64) {
    let mut turns = Coordinator::default();
    let small = size(1.0, 1e5, 100.0);
    turns.join(0.0, 0, small).expect("good");
    for job in 1..=12 {
        turns.join(0.0, job, size(nodes, 4e3, 30.0)).expect("good");
    }
    let mut sizes = vec![size(nodes, 4e3, 30.0); 12];
    sizes.push(small);
    let period = periods(&sizes).0[12];
    let (mut now, mut last, mut served) = (0.0, 0.0, 0);
    while now < 60.0 * period {
        let (job, at) = turns.next(now).expect("one");
        now = at;
        turns.began(now, job);
        now += if job == 0 { 100.0 } else { 30.0 };
        turns.ended(now, job);
        if job == 0 {
            let waited = now - last;
            assert!(
                waited < (1.0 + PATIENCE) * period + 600.0,
                "{waited} of {period}"
            );
            (last, served) = (now, served + 1);
        }
    }
    assert!(served >= 28, "{served}");
}

/// While a job that has failed reads, no write is begun beside it: until it computes again, at most
/// for so long as it is supposed to read, and none waits for a job that was lost or if it is late.
#[test]
fn writes_wait_for_those_who_read() {
    let of = size(100.0, 1e5, 100.0);
    let period = periods(&[of, of]).0[0];
    let made = || {
        let mut turns = Coordinator::default();
        turns.join(0.0, 1, of).expect("good");
        turns.join(0.0, 2, of).expect("good");
        turns
    };
    let due = period + 300.0;
    let mut turns = made();
    turns.paused(due - 50.0, 2);
    let until = due - 50.0 + READING * 100.0;
    let Answer::Later { at } = turns.offer(due, 1) else {
        panic!("beside one who reads");
    };
    assert!((at - until).abs() < 1e-6, "{at}, not {until}");
    assert_eq!(turns.next(due), Some((1, at)));
    assert_eq!(turns.offer(at, 1), Answer::Accept);
    // It computes before that: nothing is to be waited for.
    turns.resumed(due + 10.0, 2);
    assert_eq!(turns.offer(due + 10.0, 1), Answer::Accept);
    let mut turns = made();
    turns.paused(due - 50.0, 2);
    turns.lost(2);
    assert_eq!(turns.offer(due, 1), Answer::Accept);
    // It has waited a whole interval, and the other fails again and again.
    let mut turns = made();
    let late = (1.0 + PATIENCE) * period + 1.0;
    turns.paused(late - 1.0, 2);
    assert_eq!(turns.offer(late, 1), Answer::Accept);
    assert_eq!(turns.next(late), Some((1, late)));
    // A writer that takes longer than it should leaves no room, whatever is said of it.
    let mut turns = made();
    turns.began(period, 2);
    turns.paused(period + 400.0, 1);
    turns.resumed(period + 410.0, 1);
    let later = 2.0 * period + 500.0;
    assert_eq!(turns.next(later), None);
    assert_eq!(turns.offer(later, 1), Answer::Later { at: later });
}

/// A job whose writes are brief, beside two whose writes last longer than its interval: it writes
/// when it is due, beside them, and does not put them off by one brief write after the other.
#[test]
fn a_brief_write_does_not_wait_for_a_long_one_nor_puts_it_off() {
    let jobs = [
        size(2_318.0, 15_910.0, 5.0),
        size(674.0, 54_719.0, 2_493.0),
        size(674.0, 54_719.0, 1_616.0),
    ];
    let (periods, _) = periods(&jobs);
    assert!(periods[0] < 0.2 * jobs[1].write, "{periods:?}");
    let mut turns = Coordinator::default();
    for (job, &size) in jobs.iter().enumerate() {
        turns.join(0.0, job as u64, size).expect("good");
    }
    // When what each writes ends, when it ended, and how often it wrote.
    let (mut ends, mut ended, mut writes) = ([f64::INFINITY; 3], [0.0; 3], [0_u32; 3]);
    let (mut now, mut beside, last) = (0.0, 0, 50.0 * periods[1]);
    while now < last {
        let (over, end) = (0..3)
            .map(|job| (job, ends[job]))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .expect("three");
        match turns.next(now).filter(|next| next.1 < end) {
            Some((job, at)) => {
                let one = job as usize;
                now = at;
                assert_eq!(turns.offer(now, job), Answer::Accept);
                // To wait costs no more than to write beside the largest of the others.
                let Size {
                    nodes, mtbf, write, ..
                } = jobs[one];
                let dear = (2.0 * mtbf * write * (nodes + 2_318.0) / nodes).sqrt();
                let waited = now - ended[one];
                assert!(
                    waited > 0.5 * periods[one] && waited < periods[one] + dear,
                    "{one}: {waited}"
                );
                beside += u32::from(ends.iter().any(|end| end.is_finite()));
                assert!(
                    one == 0 || ends[1].min(ends[2]).is_infinite(),
                    "two long ones"
                );
                turns.began(now, job);
                ends[one] = now + jobs[one].write;
            }
            None => {
                now = end;
                turns.ended(now, over as u64);
                (ends[over], ended[over]) = (f64::INFINITY, now);
                writes[over] += 1;
            }
        }
    }
    for (writes, (period, job)) in writes.iter().zip(periods.iter().zip(&jobs)) {
        let most = last / (period + job.write);
        let share = f64::from(*writes) / most;
        assert!((0.85..1.15).contains(&share), "{writes} of {most}");
    }
    assert!(beside > 10, "{beside}");
}

#[test]
fn a_job_that_lies_is_corrected_or_refused() {
    let mut turns = Coordinator::default();
    for bad in [
        size(0.0, 1e5, 10.0),
        size(10.0, f64::NAN, 10.0),
        size(10.0, 1e5, -1.0),
        Size {
            share: 1.5,
            ..size(10.0, 1e5, 10.0)
        },
    ] {
        assert_eq!(turns.join(0.0, 7, bad), Err(Refused::Impossible));
    }
    assert_eq!(turns.offer(0.0, 7), Answer::Deny(Refused::Unknown));
    // It says 10 s and takes 1000: its interval follows what it takes.
    turns.join(0.0, 1, size(10.0, 1e6, 10.0)).expect("good");
    let (_, said) = turns.next(0.0).expect("one");
    let mut now = 0.0;
    for _ in 0..3 {
        now = turns.next(now).expect("one").1;
        turns.began(now, 1);
        now += 1_000.0;
        turns.ended(now, 1);
    }
    let (_, next) = turns.next(now).expect("one");
    assert!(next - now > 6.0 * said, "{} after {said}", next - now);
    for job in 2..=JOBS_MAX as u64 {
        turns.join(0.0, job, size(1.0, 1e9, 1.0)).expect("room");
    }
    assert_eq!(
        turns.join(0.0, 1 << 40, size(1.0, 1e9, 1.0)),
        Err(Refused::TooMany)
    );
}

/// A job that announces itself again, as each does when its connection is back, is not believed
/// anew what its writes have shown to be otherwise.
#[test]
fn what_was_measured_outlasts_another_announcement() {
    let mut turns = Coordinator::default();
    let cost = |turns: &Coordinator, job| turns.table.jobs[&job].cost;
    turns.join(0.0, 1, size(4.0, 1_000.0, 2.0)).expect("sound");
    let mut at = 0.0;
    for _ in 0..6 {
        at += 100.0;
        turns.began(at, 1);
        at += 9.0;
        turns.ended(at, 1);
    }
    let known = cost(&turns, 1);
    assert!((8.0..9.5).contains(&known.mean()), "{known:?}");
    let period = |turns: &mut Coordinator| {
        turns.refresh();
        turns.table.jobs[&1].period
    };
    let before = period(&mut turns);
    // The same words, then words that are a little other: it is what it was.
    for write in [2.0, 2.05] {
        turns.lost(1);
        turns.join(at, 1, size(4.0, 1_000.0, write)).expect("sound");
        assert_eq!(cost(&turns, 1), known);
    }
    assert!((period(&mut turns) / before - 1.0).abs() < 1e-9);
    // Another size, for example because its memory has grown: that counts beside it.
    turns.join(at, 1, size(4.0, 1_000.0, 6.0)).expect("sound");
    let told = cost(&turns, 1);
    assert!((6.0..known.mean()).contains(&told.mean()), "{told:?}");
    assert_eq!(told.seen(), known.seen());
    // The more, the more it may have written meanwhile.
    let mut later = turns.clone();
    turns.join(at, 1, size(4.0, 1_000.0, 3.0)).expect("sound");
    let later_at = at + 100.0 * before;
    later
        .join(later_at, 1, size(4.0, 1_000.0, 3.0))
        .expect("sound");
    assert!(cost(&later, 1).mean() < cost(&turns, 1).mean());
    // One that has left is another when it comes back.
    turns.leave(1);
    turns.join(at, 1, size(4.0, 1_000.0, 2.0)).expect("sound");
    assert!((cost(&turns, 1).mean() - 2.0).abs() < 1e-9 && cost(&turns, 1).seen() == 0);
}

/// A job that computes while it is written counts its interval from one capture to the next: what
/// is written is a part of it.
#[test]
fn a_write_in_the_background_is_part_of_the_interval() {
    let of = |background| {
        let mut turns = Coordinator::default();
        let one = Size {
            background,
            ..size(4.0, 100.0, 2.0)
        };
        turns.join(0.0, 1, one).expect("sound");
        let (_, first) = turns.next(0.0).expect("one");
        assert_eq!(turns.offer(first, 1), Answer::Accept);
        turns.began(first, 1);
        turns.ended(first + 2.0, 1);
        let (_, next) = turns.next(first + 2.0).expect("one");
        (first, next - first)
    };
    let (first, between) = of(true);
    // Young's, exactly.
    assert!((first - 20.0).abs() < 1e-9, "{first}");
    assert!((between - 20.0).abs() < 1e-9, "{between}");
    let (first, between) = of(false);
    assert!((between - first - 2.0).abs() < 1e-9, "{between}");
    // One of which it is not known when it began changes nothing.
    let mut turns = Coordinator::default();
    let one = Size {
        background: true,
        ..size(4.0, 100.0, 2.0)
    };
    turns.join(0.0, 1, one).expect("sound");
    let before = turns.next(0.0);
    turns.ended(3.0, 1);
    assert_eq!(turns.next(3.0), before);
}

/// Where the storage cannot serve all at their own intervals, they take exactly its time.
#[test]
fn what_is_written_in_the_background_fills_the_storage_and_no_more() {
    let seed = outlive_base::seed!();
    let mut random = Sequence::new(seed, 0);
    for _ in 0..50 {
        let jobs: Vec<Size> = (0..2 + random.below(4))
            .map(|_| Size {
                background: true,
                ..size(
                    1.0 + random.below(8) as f64,
                    20.0 + random.below(2_000) as f64,
                    1.0 + random.below(9) as f64,
                )
            })
            .collect();
        let load = |periods: &[f64]| -> f64 {
            let each = jobs.iter().zip(periods);
            each.map(|(job, period)| (job.write / period).min(1.0))
                .sum()
        };
        let own: Vec<f64> = jobs.iter().map(|job| job.best(1.0)).collect();
        let (found, lambda) = periods(&jobs);
        match load(&own) <= LOAD_MAX {
            true => assert_eq!((&found, lambda), (&own, 0.0)),
            false => {
                assert!(
                    (load(&found) - LOAD_MAX).abs() < 1e-3,
                    "seed {seed}: {found:?}"
                );
                assert!(found.iter().zip(&own).all(|(found, own)| found > own));
            }
        }
    }
}
