//! What the regions of this node hold, looked at from version to version: regions that do not change
//! any more (`freshness.rs`), and numbers that are none.
//!
//! Invariants: a version tells nothing if a later one has been looked at; of regions of a name that hold
//! NaN or infinity it is said once, and again only after a version in which none of them did.

use std::collections::BTreeSet;

use outlive_base::{Code, Entity, Error, Incarnation, Time, Version};

use super::core::{Core, News};
use super::freshness::Freshness;
use super::prints::Print;
use super::service::{Service, Silent};
use super::shell::{Done, Shell};
use crate::refused::Refused;

/// What is known of it.
pub struct Contents {
    last: Option<(Incarnation, Version)>,
    freshness: Freshness,
    /// Names of regions with NaN or infinity in the last version, of any rank.
    not_finite: BTreeSet<String>,
}

impl Service for Contents {
    type Word = Silent;

    fn new(_: Time) -> Contents {
        Contents {
            last: None,
            freshness: Freshness::default(),
            not_finite: BTreeSet::new(),
        }
    }

    fn on_news<S: Shell>(&mut self, _: &mut Core<S>, news: &News) {
        if matches!(news, News::Opening) {
            // The regions hold what was restored, and change anew.
            self.freshness = Freshness::default();
        }
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        let Done::Printed {
            source,
            version,
            prints,
        } = done
        else {
            return Some(done);
        };
        let refused = core.refused();
        for error in self.see((source, version), &prints, refused) {
            core.warn(error);
        }
        None
    }
}

impl Contents {
    /// Versions may be written in another order than that in which they were captured. What is refused
    /// is told of by who refuses it.
    fn see(
        &mut self,
        at: (Incarnation, Version),
        prints: &[Print],
        refused: Refused,
    ) -> Vec<Error> {
        if self.last >= Some(at) {
            return Vec::new();
        }
        self.last = Some(at);
        let mut said = self.freshness.see(at.1, prints);
        let mut not_finite = BTreeSet::new();
        let counts =
            |it: &&Print| it.nan > 0 && !refused.nan || it.infinite > 0 && !refused.infinite;
        for print in prints.iter().filter(counts) {
            // Once for all ranks: it spreads.
            let is_new = not_finite.insert(print.region.clone());
            if is_new && !self.not_finite.contains(&print.region) {
                said.push(is_not_finite(print, at.1));
            }
        }
        self.not_finite = not_finite;
        said
    }
}

/// That a region holds such numbers.
fn is_not_finite(print: &Print, version: Version) -> Error {
    not_finite(
        print,
        format!("in version {}", version.0),
        "look for the step that made the first of them; --refuse nan,inf keeps no version with such \
         numbers, so that a restart goes on from the last one without",
    )
}

/// That this version is given up for them (`--refuse`).
pub fn is_refused(print: &Print, version: Version) -> Error {
    not_finite(
        print,
        format!("in version {}, which is given up", version.0),
        "look for the step that made the first of them; --refuse off keeps such versions",
    )
}

fn not_finite(print: &Print, place: String, remedy: &str) -> Error {
    let counted = [(print.nan, "NaN"), (print.infinite, "infinite")];
    let counted = counted.iter().filter(|(count, _)| *count > 0);
    let counted: Vec<String> = counted
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    Error::new(
        Code::RegionNotFinite,
        Entity::Region(print.region.clone()),
        format!(
            "of rank {}: numbers that are none {place}: {}",
            print.rank.0,
            counted.join(", ")
        ),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use outlive_base::Rank;

    use super::*;

    fn print(digest: u128, nan: u64, infinite: u64) -> [Print; 1] {
        [Print {
            rank: Rank(0),
            region: "field".into(),
            bytes: 8,
            digest,
            nan,
            infinite,
        }]
    }

    fn seen(contents: &mut Contents, at: (Incarnation, Version), prints: &[Print]) -> Vec<Error> {
        contents.see(at, prints, Refused::default())
    }

    fn at(version: u64) -> (Incarnation, Version) {
        (Incarnation(1), Version(version))
    }

    #[test]
    fn what_comes_late_tells_nothing() {
        let mut contents = Contents::new(Time::ZERO);
        for version in 0..7 {
            let said = seen(&mut contents, at(version), &print(version.into(), 0, 0));
            assert!(said.is_empty());
        }
        // One that comes late is no change, and no news.
        assert!(seen(&mut contents, at(3), &print(99, 1, 0)).is_empty());
        for version in 7..9 {
            assert!(seen(&mut contents, at(version), &print(6, 0, 0)).is_empty());
        }
        let said = seen(&mut contents, at(9), &print(6, 0, 0));
        assert_eq!(said[0].code(), Code::RegionUnchanged);
        assert!(said[0].reason().contains("versions 6 to 9"), "{}", said[0]);
    }

    #[test]
    fn numbers_that_are_none_are_told_once_until_they_are_gone() {
        let mut contents = Contents::new(Time::ZERO);
        assert!(seen(&mut contents, at(1), &print(1, 0, 0)).is_empty());
        let said = seen(&mut contents, at(2), &print(2, 3, 1));
        assert_eq!((said.len(), said[0].code()), (1, Code::RegionNotFinite));
        let reason = "of rank 0: numbers that are none in version 2: 3 NaN, 1 infinite";
        assert_eq!(said[0].reason(), reason);
        assert!(seen(&mut contents, at(3), &print(3, 9, 0)).is_empty());
        assert!(seen(&mut contents, at(4), &print(4, 0, 0)).is_empty());
        let said = seen(&mut contents, at(5), &print(5, 0, 2));
        assert!(said[0].reason().ends_with("version 5: 2 infinite"));
    }

    #[test]
    fn what_is_refused_is_told_of_by_who_refuses_it() {
        let mut contents = Contents::new(Time::ZERO);
        let refused = Refused {
            nan: true,
            infinite: false,
        };
        assert!(contents.see(at(1), &print(1, 1, 0), refused).is_empty());
        assert_eq!(contents.see(at(2), &print(2, 0, 1), refused).len(), 1);
    }
}
