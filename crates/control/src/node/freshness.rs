//! Regions that used to change from version to version, and do not any more: a buffer that the
//! program has replaced while its old memory is still protected looks like that. Such versions are
//! sound and worth nothing.
//!
//! Invariants: nothing is said of a region that has not changed in each of [`CHANGES`] versions in a
//! row; of one that does not change for less than [`PAUSE`] versions; once more before it has
//! changed as often again; or of a rank of which nothing changes any more, for such a program has
//! come to rest (one that has a single region may have replaced it).

use std::collections::BTreeMap;

use outlive_base::{Code, Entity, Error, Rank, Version};

use super::prints::Print;

/// As often as this in a row a region must have changed.
const CHANGES: u32 = 5;
/// So many versions in a row it has not.
const PAUSE: u32 = 3;

/// A region of a rank, over the versions of an incarnation.
struct Watched {
    bytes: u64,
    digest: u128,
    /// The version in which it had this content first.
    since: Version,
    /// In how many versions in a row before that it had changed.
    changes: u32,
    /// In how many versions in a row since then it has not.
    same: u32,
}

impl Watched {
    /// True if that is news: it has changed all the time, and has not now.
    fn next(&mut self, version: Version, print: &Print) -> bool {
        if (self.bytes, self.digest) == (print.bytes, print.digest) {
            self.same = self.same.saturating_add(1);
            return self.same == PAUSE && self.changes >= CHANGES;
        }
        self.changes = match self.same {
            0 => self.changes.saturating_add(1),
            // One that rests now and then is none that changes all the time.
            _ => 0,
        };
        (self.bytes, self.digest) = (print.bytes, print.digest);
        (self.since, self.same) = (version, 0);
        false
    }
}

/// What is watched.
#[derive(Default)]
pub struct Freshness {
    watched: BTreeMap<(Rank, String), Watched>,
}

impl Freshness {
    /// The regions of a version that is newer than those before it, and what is to be said of them:
    /// once for all ranks whose region of a name is concerned.
    pub fn see(&mut self, version: Version, prints: &[Print]) -> Vec<Error> {
        let mut stale: BTreeMap<&str, Stale> = BTreeMap::new();
        let mut watched = BTreeMap::new();
        for of_rank in prints.chunk_by(|one, next| one.rank == next.rank) {
            let mut stopped = Vec::new();
            let mut goes_on = of_rank.len() == 1;
            for print in of_rank {
                let key = (print.rank, print.region.clone());
                let mut seen = self.watched.remove(&key).unwrap_or(Watched {
                    bytes: print.bytes,
                    digest: print.digest,
                    since: version,
                    changes: 0,
                    same: 0,
                });
                if seen.since != version && seen.next(version, print) {
                    stopped.push((print, seen.since));
                }
                goes_on |= seen.since == version;
                watched.insert(key, seen);
            }
            // Where nothing changes any more, the program has come to rest.
            for (print, since) in stopped.into_iter().filter(|_| goes_on) {
                let of_name = stale.entry(&print.region).or_insert(Stale {
                    first: print.rank,
                    since,
                    more: 0,
                });
                of_name.more += u32::from(of_name.first != print.rank);
            }
        }
        // A region that is gone is watched no more.
        self.watched = watched;
        let stale = stale.into_iter();
        stale
            .map(|(region, of)| unchanged(region, &of, version))
            .collect()
    }
}

/// Ranks whose region of a name does not change any more.
struct Stale {
    first: Rank,
    since: Version,
    more: u32,
}

fn unchanged(region: &str, of: &Stale, now: Version) -> Error {
    let more = match of.more {
        0 => String::new(),
        more => format!(" and {more} more of the node"),
    };
    Error::new(
        Code::RegionUnchanged,
        Entity::Region(region.to_owned()),
        format!(
            "of rank {}{more}: the same bytes in versions {} to {}, after it had changed in at least {CHANGES} in a row",
            of.first.0, of.since.0, now.0
        ),
        "look whether the program still works on the memory that it has protected: a buffer that \
         was replaced must be protected again; if it has only come to rest, nothing is wrong",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(bytes: u64, digest: u128) -> [Print; 1] {
        [Print {
            rank: Rank(3),
            region: "field".into(),
            bytes,
            digest,
            nan: 0,
            infinite: 0,
        }]
    }

    fn told(contents: &[u128]) -> Vec<usize> {
        let mut freshness = Freshness::default();
        let versions = contents.iter().enumerate();
        let told = versions.filter(|(nth, digest)| {
            let version = Version(*nth as u64 * 10);
            !freshness.see(version, &print(8, **digest)).is_empty()
        });
        told.map(|(nth, _)| nth).collect()
    }

    #[test]
    fn what_changed_all_the_time_and_does_not_any_more_is_told_once() {
        assert_eq!(told(&[0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5]), [8]);
        // And again when it has changed as often as before.
        let again = [
            0, 1, 2, 3, 4, 5, 5, 5, 5, 6, 7, 8, 9, 10, 11, 11, 11, 11, 11,
        ];
        assert_eq!(told(&again), [8, 17]);
    }

    #[test]
    fn what_never_changed_or_rests_now_and_then_is_no_news() {
        assert_eq!(told(&[7; 20]), [0; 0]);
        assert_eq!(told(&[0, 1, 2, 3, 4, 4, 4, 4, 4]), [0; 0], "too few");
        assert_eq!(told(&[0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 7]), [0; 0]);
        let every_other: Vec<u128> = (0..40).map(|nth| nth / 2).collect();
        assert_eq!(told(&every_other), [0; 0]);
    }

    /// Two regions of each of these ranks, the last digest of the second one for each version.
    fn of_ranks(ranks: u32, version: u64, fields: u128) -> Vec<Print> {
        let of = |rank| {
            let [mut step] = print(8, version.into());
            let [mut field] = print(8, fields);
            (step.rank, field.rank) = (Rank(rank), Rank(rank));
            step.region = "step".into();
            [step, field]
        };
        (0..ranks).flat_map(of).collect()
    }

    #[test]
    fn the_ranks_of_a_node_are_told_of_together() {
        let mut freshness = Freshness::default();
        for version in 0..9 {
            let field = version.min(6).into();
            let said = freshness.see(Version(version), &of_ranks(3, version, field));
            assert!(said.is_empty());
        }
        let said = freshness.see(Version(9), &of_ranks(3, 9, 6));
        assert_eq!(said.len(), 1);
        let begins = "of rank 0 and 2 more of the node: the same bytes in versions 6 to 9";
        assert!(said[0].reason().starts_with(begins), "{}", said[0]);
    }

    #[test]
    fn who_has_come_to_rest_has_replaced_nothing() {
        let mut freshness = Freshness::default();
        for version in 0..20 {
            let at = version.min(6);
            let said = freshness.see(Version(version), &of_ranks(2, at, at.into()));
            assert!(said.is_empty(), "{version}");
        }
    }

    #[test]
    fn regions_that_go_and_new_lengths() {
        let mut freshness = Freshness::default();
        for version in 0..7 {
            let seen = freshness.see(Version(version), &print(8, version.into()));
            assert!(seen.is_empty());
        }
        for version in 7..9 {
            assert!(freshness.see(Version(version), &print(8, 6)).is_empty());
        }
        let said = freshness.see(Version(9), &print(8, 6));
        assert_eq!(said[0].code(), Code::RegionUnchanged);
        assert!(said[0].reason().contains("versions 6 to 9"), "{}", said[0]);
        // Another length is a change, whatever the digest; what is gone begins anew.
        assert!(freshness.see(Version(10), &print(16, 6)).is_empty());
        assert!(freshness.see(Version(11), &[]).is_empty());
        assert!(freshness.watched.is_empty());
    }
}
