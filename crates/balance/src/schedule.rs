//! An order in which all pairs of neighbours work two by two without anyone
//! directing them.
//!
//! Every pair has a rank, a hash of its two processes, so ranks are a total order
//! known to both ends. A process works through its pairs by rising rank; a pair
//! works when it comes first at both ends. Because the order is total, nobody
//! waits in a circle, and the outcome equals that of all pairs one after the
//! other by rank. `depth` is the longest chain of pairs that wait for each other.

use outlive_base::rng;

/// The rank of a pair of processes.
pub fn rank(seed: u64, (a, b): (u32, u32)) -> (u64, u32, u32) {
    let (a, b) = (a.min(b), a.max(b));
    (rng::draw(seed, u64::from(a), u64::from(b)), a, b)
}

/// `pairs` of `count` processes by rank, and the depth.
pub fn order(count: usize, mut pairs: Vec<(u32, u32)>, seed: u64) -> (Vec<(u32, u32)>, u64) {
    pairs.sort_by_cached_key(|&pair| rank(seed, pair));
    let mut turn = vec![0u64; count];
    for &(a, b) in &pairs {
        let next = turn[a as usize].max(turn[b as usize]) + 1;
        turn[a as usize] = next;
        turn[b as usize] = next;
    }
    (pairs, turn.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Links;

    #[test]
    fn every_pair_comes_once_and_chains_are_short() {
        let links = Links::mesh(40, 40);
        let (pairs, depth) = order(links.count(), links.pairs().collect(), 5);
        let mut sorted = pairs.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, links.pairs().collect::<Vec<_>>());
        assert!((4..40).contains(&depth), "{depth}");
    }
}
