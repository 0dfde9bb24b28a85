//! How the messages of a job grow with its nodes: as docs/measured/scale.md says. Counts of the
//! nodes and the supervisor that run; no times.

use outlive_control::traffic::Count;
use outlive_simulator::job::{Scale, measure};

const SIZES: [u32; 3] = [16, 64, 256];

fn of(nodes: u32) -> Scale {
    let seed = outlive_base::seed!();
    measure(nodes, seed).unwrap_or_else(|why| panic!("{nodes} nodes: {why}"))
}

/// At most so many messages, and so many bytes.
fn within(count: Count, messages: u64, bytes: u64, what: &str) {
    let ok = count.messages <= messages && count.bytes <= bytes;
    assert!(
        ok,
        "{what}: {count:?}, at most {messages} and {bytes} bytes"
    );
}

#[test]
fn a_node_has_as_many_messages_however_many_there_are_and_the_centre_so_many_for_each() {
    for nodes in SIZES {
        let found = of(nodes);
        let n = u64::from(nodes);
        let phase = |name: &str| found.phase(name).expect("each is measured");
        let at = |what: &str| format!("{nodes} nodes, {what}");

        // Each is told of all others once: of that alone the bytes of all grow with the square.
        let opening = phase("opening");
        within(opening.node_max.work(), 16, 512 + 24 * n, &at("opening"));
        within(
            opening.coordinator.work(),
            8 * n,
            128 * n,
            &at("opening, coordinator"),
        );
        within(
            opening.launcher.work(),
            8 * n,
            n * (512 + 24 * n),
            &at("opening, launcher"),
        );

        // Heartbeats to three, and from two; questions of the launcher.
        let second = phase("second");
        within(second.node_max.signs, 30, 1_024, &at("signs of life"));
        within(
            second.launcher.signs,
            9 * n,
            256 * n,
            &at("signs of life, launcher"),
        );

        // A decision names a part of each node, at each of three levels.
        let checkpoint = phase("checkpoint");
        within(
            checkpoint.node_max.work(),
            96,
            8_192 + 1_024 * n,
            &at("checkpoint"),
        );

        // Those that have the decision are not told of it again, nor of those who stayed.
        let recovery = phase("recovery");
        within(recovery.node_median.work(), 64, 2_048, &at("recovery"));
        within(
            recovery.coordinator.work(),
            64 * n,
            2_048 * n,
            &at("recovery, coordinator"),
        );
        within(
            recovery.launcher.work(),
            8 * n,
            4_096 + (256 + 24) * n,
            &at("recovery, launcher"),
        );

        // Two on each side of the ring, the coordinator, the launcher.
        assert!(found.peers.1 <= 6, "{} peers of {nodes}", found.peers.1);
        assert_eq!(found.coordinator_peers, nodes as usize);
    }
}

#[test]
fn the_same_seed_counts_the_same() {
    let seed = outlive_base::seed!();
    let shown = |scale: Result<Scale, String>| format!("{scale:?}");
    assert_eq!(shown(measure(16, seed)), shown(measure(16, seed)));
}
