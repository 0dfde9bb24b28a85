//! What a job of many nodes costs in messages, bytes and time, with the nodes and the supervisor
//! that run: `cargo run --release -p outlive-simulator --example scale -- NODES...`. The table is
//! that of docs/measured/scale.md.

use outlive_control::traffic::{Count, Traffic};
use outlive_simulator::job::{Phase, measure};

fn main() -> std::process::ExitCode {
    let asked: Vec<u32> = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap_or(0))
        .collect();
    let nodes = match asked.is_empty() {
        true => vec![16, 64, 256],
        false => asked,
    };
    let mut ok = true;
    for nodes in nodes {
        let began = std::time::Instant::now();
        match measure(nodes, 1) {
            Ok(found) => {
                println!("{nodes} nodes ({:.1} s)", began.elapsed().as_secs_f64());
                found.phases.iter().for_each(show);
                println!(
                    "  peers: coordinator {}, node {} (at most {})",
                    found.coordinator_peers, found.peers.0, found.peers.1
                );
            }
            Err(why) => {
                ok = false;
                println!("{nodes} nodes: {why}");
            }
        }
    }
    std::process::ExitCode::from(u8::from(!ok))
}

fn show(phase: &Phase) {
    let count = |it: Count| format!("{:>8} {:>10.1}", it.messages, it.bytes as f64 / 1024.0);
    let cost = |it: &Traffic| match phase.name {
        "second" => count(it.signs),
        _ => count(it.work()),
    };
    println!(
        "  {:<11}{:>9.1} ms  launcher {}  coordinator {}  node {}  most {}",
        phase.name,
        phase.took.as_ms(),
        cost(&phase.launcher),
        cost(&phase.coordinator),
        cost(&phase.node_median),
        cost(&phase.node_max),
    );
}
