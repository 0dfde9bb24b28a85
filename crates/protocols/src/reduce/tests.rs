//! Groups and trees; behaviour is tested in the simulator.

use super::*;
use crate::broadcast::LogP;
use crate::broadcast::tree::Shape;

const LOGP: LogP = LogP {
    latency: 2,
    overhead: 1,
    gap: 1,
};

#[test]
fn sizes_are_bounded() {
    assert!(size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX);
    assert!(size_of::<Reduce>() <= 64, "{}", size_of::<Reduce>());
}

/// Every group has one member in each tree, or is the root's; every place but the root
/// and those left over has one above, and is below it.
#[test]
fn groups_and_trees_cover_all() {
    for processes in 1..70 {
        for failures in [0, 1, 2, 3, 7, 69] {
            let config =
                Config::new(Shape::Binomial, processes, 0, failures, &LOGP).expect("valid");
            let mut exchanged = 0;
            let mut up = 0;
            for place in 0..processes {
                let group = config.group(place);
                assert!(group.contains(&place));
                exchanged += group.len() as u64 - 1;
                for &other in &group {
                    assert_eq!(config.group(other), group);
                }
                match config.above(place) {
                    Some(above) => {
                        up += 1;
                        assert!(config.below(above).contains(&place));
                        let tree = |place: u32| (place - 1) % (config.failures + 1);
                        assert!(above == 0 || tree(above) == tree(place));
                    }
                    None => assert!(group.contains(&0)),
                }
            }
            assert_eq!(exchanged + up, config.messages(), "{processes} {failures}");
        }
    }
    assert!(Config::new(Shape::Binomial, 0, 0, 1, &LOGP).is_err());
    assert!(Config::new(Shape::Binomial, 4, 4, 1, &LOGP).is_err());
}
