//! Says before it happens that node storage has no room for the next version: then there is time
//! to do something about it.

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Level, Time};

use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Shell};

/// How often node storage is looked at, at most: its directories are listed for that.
const EVERY: Time = Time::from_secs(30);

/// When it was last looked, and whether it was said.
pub struct Room {
    asked: Option<Time>,
    told: bool,
}

impl Service for Room {
    type Word = Silent;

    fn new(_: Time) -> Room {
        Room {
            asked: None,
            told: false,
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        let News::Stable {
            level,
            newest: true,
            ..
        } = news
        else {
            return;
        };
        let now = core.now();
        let due = self.asked.is_none_or(|asked| now.since(asked) >= EVERY);
        if due && level.store().is_of_nodes() {
            self.asked = Some(now);
            core.begin(Ask::DiskUsage);
        }
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        if let Done::DiskUsage((_, free)) = done {
            self.compare(core, free);
        }
        // Others want to hear of it too.
        Some(done)
    }
}

impl Room {
    fn compare<S: Shell>(&mut self, core: &mut Core<S>, free: u64) {
        let needed = next_version(core);
        let lacks = needed > free;
        if lacks && !self.told {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            core.warn(Error::new(
                Code::NoSpace,
                Entity::Node(core.me().0),
                format!(
                    "node storage has {} MiB free, and a version takes {} MiB there: the next \
                     will find no room",
                    mib(free),
                    mib(needed)
                ),
                "free space there, or name fewer levels that use it (--levels)",
            ));
        }
        self.told = lacks;
    }
}

/// Bytes that the newest version took in node storage here, its copies for others included as
/// far as they are as long as its own. A version is removed after a newer one is stable.
fn next_version<S: Shell>(core: &Core<S>) -> u64 {
    let bytes = |(level, at): (&Level, &(_, _))| {
        let part = core.contents().part(at.0, at.1, *level, core.me())?;
        let kept = part.parity.filter(|_| level.store() == StoreKind::Node);
        let parity = kept.map_or(0, |parity| parity.length);
        Some((level.members().is_some(), part.length, parity))
    };
    let stored = core.stable().iter();
    let stored = stored.filter(|(level, _)| level.store().is_of_nodes());
    let all: Vec<(bool, u64, u64)> = stored.filter_map(bytes).collect();
    // Levels with groups share the container of the level disk.
    let own = all.iter().map(|(_, length, _)| *length).max().unwrap_or(0);
    let copies = core.stable().keys().any(|level| level.has_partner());
    let parities: u64 = all.iter().map(|(_, _, parity)| *parity).sum();
    own.saturating_mul(1 + u64::from(copies))
        .saturating_add(parities)
}

#[cfg(test)]
mod tests {
    use outlive_base::{Incarnation, Version};

    use super::super::Input;
    use super::super::still::{Still, alone, part_of};
    use super::*;
    use crate::node::Node;
    use crate::orders::Notice;

    fn stable(node: &mut Node<Still>, version: u64) {
        let at = (Incarnation(1), Version(version));
        let mut part = part_of(at, 0);
        part.length = 10 << 20;
        node.core.prepare_with(at.1, Level::DISK, part);
        node.core.on_stable(at.1, Level::DISK);
        node.deliver();
    }

    fn usage(node: &mut Node<Still>, free: u64) {
        node.on(
            node.core.now(),
            Input::Done(Done::DiskUsage((1 << 30, free))),
        );
    }

    fn warned(node: &mut Node<Still>) -> usize {
        let told = node.core.shell().told.iter();
        let warnings = told.filter_map(|notice| match notice {
            Notice::Warning(error) if error.code() == Code::NoSpace => Some(error),
            _ => None,
        });
        warnings.count()
    }

    fn asked(node: &mut Node<Still>) -> usize {
        let asked = node.core.shell().asked.iter();
        asked.filter(|ask| matches!(ask, Ask::DiskUsage)).count()
    }

    #[test]
    fn that_the_next_version_finds_no_room_is_said_once_and_again_when_it_comes_back() {
        let mut node = alone(0);
        stable(&mut node, 1);
        assert_eq!(asked(&mut node), 1);
        usage(&mut node, 10 << 20);
        assert_eq!(warned(&mut node), 0, "just enough");
        usage(&mut node, (10 << 20) - 1);
        usage(&mut node, 0);
        assert_eq!(warned(&mut node), 1);
        usage(&mut node, 1 << 30);
        usage(&mut node, 0);
        assert_eq!(warned(&mut node), 2);
    }

    #[test]
    fn directories_are_not_listed_for_each_version() {
        let mut node = alone(0);
        for version in 1..10 {
            stable(&mut node, version);
        }
        assert_eq!(asked(&mut node), 1);
        let now = node.core.now() + EVERY;
        node.on_time(now);
        stable(&mut node, 10);
        assert_eq!(asked(&mut node), 2);
    }

    #[test]
    fn a_node_that_stores_nothing_needs_no_room() {
        let mut node = alone(0);
        usage(&mut node, 0);
        assert_eq!(warned(&mut node), 0);
    }
}
