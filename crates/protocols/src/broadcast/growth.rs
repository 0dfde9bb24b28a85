//! Growing trees: every process that has the message sends it on every `gap`, and a
//! new one begins `delay` after the send to it began.
//!
//! With n(t) processes that begin at t and S(t) = n(t) + S(t - gap) sends that begin
//! at t, n(t) = S(t - delay). So gap 1 and delay k is the Lamé tree of order k (k = 1
//! the binomial tree), and gap g and delay L + 2o the greedy tree that Karp, Sahay,
//! Santos and Schauser prove optimal (Optimal broadcast and summation in the LogP
//! model, SPAA 1993, section 2).
//!
//! Interleaved ranks are given by (begin, parent). Where the last of them are fewer than
//! could begin then, either the lowest of their possible parents serve them (as Lamé's
//! formula has it) or the highest (as the optimal tree of the simulator of Küttler et
//! al.); every choice is as fast. All that begin at one time are a
//! [`Group`]; there are about as many groups as steps of time, so the table is shared
//! by all processes and small unless the tree is nearly a star.

use std::collections::BTreeMap;

/// Those that begin at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    begin: u64,
    /// The lowest rank.
    first: u32,
    count: u32,
    /// How many that began `gap`, 2 `gap`, ... earlier send at the same times.
    before: u32,
}

/// A growing tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Growth {
    processes: u32,
    delay: u64,
    gap: u64,
    groups: Vec<Group>,
    /// So many of the lowest that could serve the last group do not.
    skipped: u32,
}

/// Who serves the last group, if not all that could are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Last {
    /// The lowest ranks.
    Lowest,
    /// The highest ranks.
    Highest,
}

/// The consecutive ranks that a process serves in the tree in order.
#[derive(Clone, Copy)]
struct Range {
    parent: u32,
    head: u32,
    size: u32,
    /// What is left from its begin to the end of the whole.
    horizon: u64,
}

impl Growth {
    /// The first `processes` of the tree; `gap` is at least 1.
    pub(super) fn new(processes: u32, delay: u64, gap: u64, last: Last) -> Growth {
        let most = u64::from(processes);
        let mut skipped = 0;
        let mut groups = Vec::new();
        // Time: (begin then, sends of those that began a gap or more before).
        let mut open = BTreeMap::from([(0u64, (1u64, 0u64))]);
        let mut total = 0u64;
        while total < most {
            let Some((begin, (count, before))) = open.pop_first() else {
                break;
            };
            if count > 0 {
                let fits = count.min(most - total);
                if last == Last::Highest {
                    skipped = count - fits; // Not 0 for the last group only.
                }
                let count = fits;
                groups.push(Group {
                    begin,
                    first: total as u32,
                    count: count as u32,
                    before: before.min(most) as u32,
                });
                total += count;
            }
            let sends = (count + before).min(most);
            // The root alone has served everybody by then: no later send matters.
            if begin / gap < most {
                open.entry(begin + gap).or_default().1 += sends;
            }
            open.entry(begin + delay).or_default().0 += sends;
        }
        Growth {
            processes,
            delay,
            gap,
            groups,
            skipped: skipped as u32,
        }
    }

    /// How many of those that could serve the group do not before the first that does.
    fn skipped(&self, group: &Group) -> u32 {
        let last = group.first + group.count == self.processes;
        if last { self.skipped } else { 0 }
    }

    fn group(&self, rank: u32) -> &Group {
        let after = self.groups.partition_point(|g| g.first <= rank);
        &self.groups[after.max(1) - 1]
    }

    fn at(&self, begin: u64) -> Option<&Group> {
        let found = self.groups.binary_search_by_key(&begin, |g| g.begin);
        found.ok().map(|at| &self.groups[at])
    }

    pub(super) fn child(&self, rank: u32, i: u32) -> Option<u32> {
        let own = self.group(rank);
        let begin = own.begin + self.delay + u64::from(i) * self.gap;
        let place = own.before + (rank - own.first);
        let group = self.at(begin)?;
        let place = place.checked_sub(self.skipped(group))?;
        (place < group.count).then(|| group.first + place)
    }

    pub(super) fn parent(&self, rank: u32) -> u32 {
        let own = self.group(rank);
        let place = rank - own.first + self.skipped(own);
        let Some(latest) = own.begin.checked_sub(self.delay) else {
            return 0;
        };
        let holds = |g: &Group| (g.before..g.before + g.count).contains(&place);
        if self.delay.is_multiple_of(self.gap) {
            // All begins are multiples of the gap, so `before` rises with them.
            let at = self.groups.partition_point(|g| g.before + g.count <= place);
            let group = &self.groups[at.min(self.groups.len() - 1)];
            return group.first + (place - group.before);
        }
        let fits = |g: &&Group| g.begin <= latest && (latest - g.begin).is_multiple_of(self.gap);
        let found = self.groups.iter().filter(fits).find(|g| holds(g));
        found.map_or(0, |g| g.first + (place - g.before))
    }

    /// How many a tree holds whose last begins at `time` or before.
    fn holds(&self, time: u64) -> u32 {
        let after = self.groups.partition_point(|g| g.begin <= time);
        self.groups[..after].last().map_or(0, |g| g.first + g.count)
    }

    fn whole(&self) -> Range {
        Range {
            parent: 0,
            head: 0,
            size: self.processes,
            horizon: self.groups.last().map_or(0, |g| g.begin),
        }
    }

    /// The ranges of the children of a range: as full as the time left allows.
    fn ranges(&self, of: Range) -> impl Iterator<Item = Range> + '_ {
        let (mut next, end) = (of.head + 1, of.head + of.size);
        let mut horizon = of.horizon.checked_sub(self.delay);
        std::iter::from_fn(move || {
            let left = horizon.filter(|_| next < end)?;
            let size = self.holds(left).min(end - next);
            let head = next;
            next += size;
            horizon = left.checked_sub(self.gap);
            (size > 0).then_some(Range {
                parent: of.head,
                head,
                size,
                horizon: left,
            })
        })
    }

    fn range(&self, rank: u32) -> Range {
        let mut range = self.whole();
        while range.head != rank {
            let inside = |r: &Range| (r.head..r.head + r.size).contains(&rank);
            let Some(below) = self.ranges(range).find(inside) else {
                break;
            };
            range = below;
        }
        range
    }

    pub(super) fn child_in_order(&self, rank: u32, i: u32) -> Option<u32> {
        let found = self.ranges(self.range(rank)).nth(i as usize);
        found.map(|r| r.head)
    }

    pub(super) fn parent_in_order(&self, rank: u32) -> u32 {
        self.range(rank).parent
    }
}
