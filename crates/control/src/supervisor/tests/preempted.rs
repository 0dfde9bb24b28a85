//! Runs that are taken off their machines.

use super::*;

/// The first SIGTERM is the notice, the end comes by itself within it; the next one ends at once.
#[test]
fn a_signal_of_preemption_ends_the_job_in_order_within_its_notice() {
    let announce = |world: &mut World| {
        world.input(Input::Interrupt {
            signal: crate::ended::SIGTERM,
            from_terminal: false,
        });
    };
    let ends = |a: &Action| {
        matches!(
            a,
            Action::EndCommand {
                signal: Some(crate::ended::SIGTERM),
                ..
            }
        )
    };
    let every = 1;
    let mut set = settings(2);
    set.levels = [Level::MEMORY, Level::SHARED]
        .map(|level| LevelSetting { level, every })
        .to_vec();
    set.auto = Some(crate::steering::Wishes {
        notice_ms: Some(40_000),
        preempts: true,
        ..crate::steering::Wishes::default()
    });
    set.preempt_signal = Some(crate::ended::SIGTERM);
    let asked = |a: &Action| matches!(a, Action::Order { node: NodeId(0), order: Order::CheckpointNow { levels } } if levels.len() == 2);
    let kept = |a: &Action| matches!(a, Action::RecordLearned(learned) if learned.preemptions.len() == 1 && learned.failures.is_empty());
    let mut world = World::running(set.clone(), 2);
    announce(&mut world);
    assert_eq!(
        (world.count(asked), world.count(kept), world.count(ends)),
        (1, 1, 0)
    );
    world.pass(30_000);
    assert_eq!((world.count(ends), world.outcome.is_none()), (0, true));
    world.pass(8_000);
    assert_eq!(world.count(ends), 1);
    assert_eq!(
        (world.exit(), world.sup.report().result.as_str()),
        (143, "interrupted")
    );
    assert!(world.sup.report().failures.is_empty());
    let mut world = World::running(set, 2);
    announce(&mut world);
    announce(&mut world);
    assert_eq!((world.count(ends), world.exit()), (1, 143));
}
