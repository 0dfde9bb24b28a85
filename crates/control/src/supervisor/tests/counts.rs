//! What the report counts, in whatever order nodes say it.

use super::*;

#[test]
fn a_version_that_is_stable_after_a_newer_one_is_counted_once() {
    let mut world = World::running(settings(1), 1);
    for version in [20, 10, 20, 10, 30] {
        let step = Step::Stable(Level::DISK);
        let version = Version(version);
        world.notice(0, Notice::Checkpoint { version, step });
    }
    let counts = &world.sup.report().checkpoints;
    assert_eq!((counts.stable["disk"], counts.last["disk"]), (3, 30));
}

#[test]
fn a_version_is_taken_once_though_a_node_is_late_to_say_so() {
    let mut world = World::running(settings(2), 2);
    for (node, version) in [(0, 10), (0, 20), (1, 10), (1, 20)] {
        let (bytes, blocked_ns) = (8, 1_000_000);
        let step = Step::Captured { bytes, blocked_ns };
        let version = Version(version);
        world.notice(node, Notice::Checkpoint { version, step });
    }
    let counts = &world.sup.report().checkpoints;
    assert_eq!((counts.taken, counts.bytes), (2, 32));
    assert!((counts.blocked_ms_sum - 2.0).abs() < 1e-9, "{counts:?}");
}
