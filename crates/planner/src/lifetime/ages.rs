//! Ages of old versions, on a grid.
//!
//! What the age of a version costs is the way back to it, should a failure need it. That is
//! linear in the age: from there on everything is as it was one or more patterns later. So a
//! state whose version is old may be replaced by two whose versions are a bit younger and a bit
//! older, if the mean age stays what it is: the expected time is the same, and few ages stand
//! for all. (An age that was rounded to the nearest, or to that of a more likely state, would be
//! too low on average, and so would the expected time be.)
//!
//! Invariants: the mean age of each level; which version is newer than which; the place of each
//! version in the pattern.

/// No version.
pub(super) const NONE: u32 = u32::MAX;

/// Which ages there are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Grid {
    /// Below so many patterns all.
    pub exact: u32,
    /// Beyond, so many in each doubling.
    pub parts: u32,
}

impl Grid {
    /// The ages on the grid below and above one, for a pattern of `length` intervals, and how
    /// near it is to the one above, from 0 to 1. None if it is on the grid.
    fn around(self, age: u32, length: u32) -> Option<(u32, u32, f64)> {
        let patterns = age / length;
        if patterns < self.exact.max(1) {
            return None;
        }
        let step = ((1 << patterns.ilog2()) / self.parts.max(1)).max(1);
        let off = patterns % step;
        let up = age.checked_add((step - off).checked_mul(length)?)?;
        (off > 0 && up < NONE).then(|| {
            let share = f64::from(off) / f64::from(step);
            (age - off * length, up, share)
        })
    }

    /// Ages of versions on the grid, each set with its share; `others` are ages of versions
    /// that stay as they are. What would change which is newer is not moved.
    pub fn spread<const N: usize>(
        self,
        ages: [u32; N],
        others: &[u32],
        length: u32,
    ) -> Vec<([u32; N], f64)> {
        let mut found = vec![(ages, 1.0)];
        let mut versions: Vec<u32> = ages.into_iter().filter(|&age| age != NONE).collect();
        versions.sort_unstable();
        versions.dedup();
        for age in versions.into_iter().rev() {
            let Some((down, up, share)) = self.around(age, length) else {
                continue;
            };
            let between = |other: u32| (down..=up).contains(&other);
            for at in 0..found.len() {
                let (ages, whole) = found[at];
                let mut stay = ages.iter().filter(|&&other| other != age).chain(others);
                if stay.any(|&other| between(other)) {
                    continue;
                }
                let moved = |to| ages.map(|one| if one == age { to } else { one });
                found[at] = (moved(down), whole * (1.0 - share));
                found.push((moved(up), whole * share));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COARSE: Grid = Grid { exact: 2, parts: 2 };

    /// Means, order and places in the pattern stay, whatever the ages; and few ages are left.
    #[test]
    fn means_order_and_places_stay() {
        let seed = outlive_base::seed!();
        let mut random = outlive_base::rng::Sequence::new(seed, 0);
        let mut left = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            let length = 1 + random.below(9) as u32;
            let mut age = || {
                let bits = 1 + random.below(11);
                match random.below(8) {
                    0 => NONE,
                    1 => 0,
                    _ => random.below(1 << bits) as u32,
                }
            };
            let (ages, others) = ([age(), age(), age()], [age()]);
            let spread = COARSE.spread(ages, &others, length);
            let all: f64 = spread.iter().map(|(_, share)| share).sum();
            assert!((all - 1.0).abs() < 1e-12, "seed {seed}: {all}");
            for level in 0..3 {
                let of = |&(ages, share): &([u32; 3], f64)| share * f64::from(ages[level]);
                let mean: f64 = spread.iter().map(of).sum();
                let want = f64::from(ages[level]);
                let same = (mean - want).abs() < 1e-9 * (1.0 + want);
                assert!(same, "seed {seed}: {ages:?} {spread:?}");
            }
            for (moved, share) in &spread {
                assert!(*share > 0.0, "seed {seed}: {spread:?}");
                for level in 0..3 {
                    let off = moved[level].abs_diff(ages[level]);
                    assert_eq!(off % length, 0, "seed {seed}: {ages:?} {spread:?}");
                    let order = |of: &[u32; 3], other: u32| of[level].cmp(&other);
                    assert_eq!(order(moved, others[0]), order(&ages, others[0]));
                    for other in 0..3 {
                        assert_eq!(order(moved, moved[other]), order(&ages, ages[other]));
                    }
                }
            }
            if let [(_, _)] = spread[..] {
                continue;
            }
            left.extend(spread.iter().map(|(ages, _)| ages[0] / length));
        }
        assert!(left.len() > 8, "{left:?}");
    }

    #[test]
    fn few_ages_stand_for_all() {
        let mut left = std::collections::BTreeSet::new();
        for age in 0..100_000 {
            left.extend(
                COARSE
                    .spread([age], &[], 5)
                    .iter()
                    .map(|(ages, _)| ages[0] / 5),
            );
        }
        // 0, 1, and two in each doubling from 2 to 32,768.
        assert_eq!(left.len(), 2 + 2 * 14, "{left:?}");
    }
}
