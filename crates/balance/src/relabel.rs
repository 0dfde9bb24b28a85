//! New names for the parts of a partition, so that as many tasks as possible stay where they
//! were: a maximal assignment on the similarity matrix (Oliker and Biswas, "PLUM", 1998).
//!
//! Up to [`EXACT_MAX`] parts the assignment is optimal (shortest augmenting paths with
//! potentials, Kuhn 1955, Jonker and Volgenant 1987); above, the largest entry is taken first,
//! which keeps at least half of the optimum (Oliker and Biswas, theorem 1).
//!
//! Invariants: the names are a permutation; parts of different shares never change names.

/// Parts up to which the assignment is optimal: it takes their number squared in memory and at
/// most cubed in time.
pub const EXACT_MAX: usize = 1024;

/// The new name of each part. `kept` lists (part, name, tasks that stay if the part gets the
/// name), in any order and with repetition; parts whose `shares` differ by more than
/// `tolerance` do not change names.
pub fn names(mut kept: Vec<(u32, u32, f64)>, shares: &[f64], tolerance: f64) -> Vec<u32> {
    let classes = classes(shares, tolerance);
    kept.retain(|&(part, name, _)| classes[part as usize] == classes[name as usize]);
    kept.sort_by_key(|&(part, name, _)| (part, name));
    kept.dedup_by(|next, sum| {
        let same = (next.0, next.1) == (sum.0, sum.1);
        sum.2 += if same { next.2 } else { 0.0 };
        same
    });
    let mut members: Vec<Vec<u32>> = Vec::new();
    let mut slots = vec![0; shares.len()];
    for (part, &class) in classes.iter().enumerate() {
        members.resize(members.len().max(class + 1), Vec::new());
        slots[part] = members[class].len();
        members[class].push(part as u32);
    }
    let mut entries: Vec<Vec<(usize, usize, f64)>> = vec![Vec::new(); members.len()];
    for (part, name, stays) in kept {
        let (row, column) = (slots[part as usize], slots[name as usize]);
        entries[classes[part as usize]].push((row, column, stays));
    }
    let mut names = vec![0; shares.len()];
    for (own, entries) in members.iter().zip(entries) {
        let chosen = match own.len() <= EXACT_MAX {
            true => optimal(own.len(), &entries),
            false => largest_first(own.len(), entries),
        };
        for (row, column) in chosen.into_iter().enumerate() {
            names[own[row] as usize] = own[column];
        }
    }
    names
}

/// A class for each part, numbered from 0: shares of one differ by no more than the tolerance.
fn classes(shares: &[f64], tolerance: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| shares[a].total_cmp(&shares[b]).then(a.cmp(&b)));
    let mut classes = vec![0; shares.len()];
    let (mut class, mut least) = (0, order.first().map_or(0.0, |&part| shares[part]));
    for part in order {
        if shares[part] > least * (1.0 + tolerance / 2.0) {
            class += 1;
            least = shares[part];
        }
        classes[part] = class;
    }
    classes
}

/// The column of each row, so that the sum of the chosen entries is the largest.
fn optimal(count: usize, entries: &[(usize, usize, f64)]) -> Vec<usize> {
    let mut gain = vec![0.0; count * count];
    for &(row, column, value) in entries {
        gain[row * count + column] = value;
    }
    // Row 0 and column 0 stand for none.
    let (mut rows, mut columns) = (vec![0.0; count + 1], vec![0.0; count + 1]);
    let mut owner = vec![0; count + 1];
    for start in 1..=count {
        owner[0] = start;
        let mut least = vec![f64::INFINITY; count + 1];
        let (mut way, mut done) = (vec![0; count + 1], vec![false; count + 1]);
        let mut at = 0;
        // The cheapest way from this row to a column that nobody has.
        while owner[at] != 0 {
            done[at] = true;
            let row = owner[at];
            let (mut delta, mut next) = (f64::INFINITY, 0);
            for column in 1..=count {
                if done[column] {
                    continue;
                }
                let cost = -gain[(row - 1) * count + column - 1] - rows[row] - columns[column];
                if cost < least[column] {
                    (least[column], way[column]) = (cost, at);
                }
                if least[column] < delta {
                    (delta, next) = (least[column], column);
                }
            }
            for column in 0..=count {
                if done[column] {
                    rows[owner[column]] += delta;
                    columns[column] -= delta;
                } else {
                    least[column] -= delta;
                }
            }
            at = next;
        }
        while at != 0 {
            owner[at] = owner[way[at]];
            at = way[at];
        }
    }
    let mut chosen = vec![0; count];
    for column in 1..=count {
        chosen[owner[column] - 1] = column - 1;
    }
    chosen
}

/// The column of each row, the largest entries first.
fn largest_first(count: usize, mut entries: Vec<(usize, usize, f64)>) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    entries.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    let (mut chosen, mut taken) = (vec![NONE; count], vec![false; count]);
    for (row, column, _) in entries {
        if chosen[row] == NONE && !taken[column] {
            chosen[row] = column;
            taken[column] = true;
        }
    }
    let mut free = (0..count).filter(|&column| !taken[column]);
    for column in chosen.iter_mut().filter(|column| **column == NONE) {
        *column = free.next().unwrap_or(NONE);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    fn kept(entries: &[(usize, usize, f64)], chosen: &[usize]) -> f64 {
        let taken = entries
            .iter()
            .filter(|(row, column, _)| chosen[*row] == *column);
        taken.map(|entry| entry.2).sum()
    }

    fn best_of_all(entries: &[(usize, usize, f64)], chosen: &mut Vec<usize>, count: usize) -> f64 {
        if chosen.len() == count {
            return kept(entries, chosen);
        }
        let mut best = 0.0f64;
        for column in 0..count {
            if !chosen.contains(&column) {
                chosen.push(column);
                best = best.max(best_of_all(entries, chosen, count));
                chosen.pop();
            }
        }
        best
    }

    #[test]
    fn the_optimal_assignment_is_the_best_of_all_and_the_other_at_least_half() {
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 0);
        for _ in 0..200 {
            let count = 1 + random.below(6) as usize;
            let mut entries = Vec::new();
            for row in 0..count {
                for column in 0..count {
                    if random.chance(600_000) {
                        entries.push((row, column, random.below(20) as f64));
                    }
                }
            }
            let best = best_of_all(&entries, &mut Vec::new(), count);
            let exact = optimal(count, &entries);
            assert_eq!(kept(&entries, &exact), best, "seed {seed}: {entries:?}");
            let quick = largest_first(count, entries.clone());
            assert!(
                2.0 * kept(&entries, &quick) >= best,
                "seed {seed}: {entries:?}"
            );
            for mut chosen in [exact, quick] {
                chosen.sort_unstable();
                assert!(chosen.into_iter().eq(0..count), "seed {seed}");
            }
        }
    }

    #[test]
    fn parts_of_other_shares_keep_their_names() {
        let stays = vec![
            (0, 2, 9.0),
            (2, 0, 9.0),
            (0, 1, 5.0),
            (1, 0, 2.0),
            (1, 0, 3.0),
        ];
        assert_eq!(names(stays.clone(), &[1.0, 1.0, 2.0], 0.02), [1, 0, 2]);
        assert_eq!(names(stays.clone(), &[1.0, 1.001, 1.0], 0.02), [2, 1, 0]);
        assert_eq!(names(stays, &[1.0, 2.0, 3.0], 0.02), [0, 1, 2]);
        assert_eq!(names(Vec::new(), &[1.0; 3], 0.02), [0, 1, 2]);
    }
}
