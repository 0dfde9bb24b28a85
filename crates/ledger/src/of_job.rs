//! What records say of the job that has left them, where nothing else does.

use outlive_base::{Incarnation, Version};

use crate::Record;

/// A job, as its records know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OfJob {
    /// Nodes of its newest incarnation, if that is recorded.
    pub nodes: Option<u32>,
    /// Its ranks.
    pub ranks: Option<u32>,
    /// The number that opened last, or tried to.
    pub incarnation: u32,
    /// The newest version that was committed.
    pub newest: Option<(Incarnation, Version)>,
}

impl OfJob {
    /// Of records in the order in which they were written at each place, and of what is marked to
    /// have been committed. `None` if nothing says that the job was run.
    pub fn of<'a>(
        records: impl IntoIterator<Item = &'a Record>,
        marks: impl IntoIterator<Item = (Incarnation, Version)>,
    ) -> Option<OfJob> {
        let mut job = OfJob::default();
        let mut started = Incarnation(0);
        for record in records {
            match record {
                Record::Incarnation {
                    number,
                    members,
                    ranks,
                    ..
                } if *number > started => {
                    started = *number;
                    job.nodes = Some(members.len() as u32);
                    job.ranks = Some(*ranks).filter(|ranks| *ranks != 0).or(job.ranks);
                }
                Record::Promise { ballot } => {
                    job.incarnation = job.incarnation.max((ballot >> 32) as u32);
                }
                Record::Commit {
                    incarnation,
                    version,
                    ranks,
                    ..
                } => {
                    job.newest = job.newest.max(Some((*incarnation, *version)));
                    job.ranks = Some(*ranks);
                }
                _ => {}
            }
        }
        job.newest = marks.into_iter().map(Some).fold(job.newest, Option::max);
        if started.0 == 0 && job.newest.is_none() {
            return None;
        }
        let captured = job.newest.map_or(0, |(incarnation, _)| incarnation.0);
        job.incarnation = job.incarnation.max(started.0).max(captured);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::NodeId;

    fn opening(number: u32, nodes: u32, ranks: u32) -> Record {
        Record::Incarnation {
            number: Incarnation(number),
            restored: None,
            members: (0..nodes).map(NodeId).collect(),
            ranks,
        }
    }

    #[test]
    fn the_newest_opening_says_how_large_it_is() {
        let records = [opening(2, 3, 6), opening(1, 4, 8), opening(3, 2, 0)];
        let job = OfJob::of(&records, []).expect("it was run");
        // Of ranks an opening knows nothing where it began anew.
        assert_eq!((job.nodes, job.ranks), (Some(2), Some(6)));
        assert_eq!((job.incarnation, job.newest), (3, None));
    }

    #[test]
    fn a_number_that_was_tried_is_taken_and_a_mark_is_a_version() {
        let promise = Record::Promise {
            ballot: 7 << 32 | 5,
        };
        assert_eq!(OfJob::of([&promise], []), None, "nothing opened");
        let mark = (Incarnation(4), Version(9));
        let job = OfJob::of([&promise], [mark]).expect("it was run");
        assert_eq!((job.incarnation, job.newest), (7, Some(mark)));
        let later = (Incarnation(8), Version(2));
        let job = OfJob::of([&promise], [later, mark]).expect("it was run");
        assert_eq!((job.incarnation, job.newest), (8, Some(later)));
    }
}
