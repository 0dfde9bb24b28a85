//! Ranks of the tests, on one host.

use std::net::TcpListener;

use outlive_base::Time;
use outlive_network::JobKey;
use outlive_network::session::{Config, MeshOptions};
use outlive_sessions::Setup;

/// How each of `size` ranks on this host joins, changed by `change`.
pub fn setups(size: u32, change: impl Fn(&mut Setup)) -> Vec<Setup> {
    let held: Vec<_> = (0..size)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses: Vec<_> = held.iter().map(|l| l.local_addr().unwrap()).collect();
    let session = Config {
        window_bytes: 256 << 10,
        frame_bytes_max: 32 << 10,
        heartbeat: Time::from_ms(50),
        silence: Time::from_secs(2),
        give_up: Time::from_secs(60),
        ..Config::default()
    };
    let setup = |rank| {
        let mut setup = Setup {
            options: MeshOptions {
                rank,
                addresses: addresses.clone(),
                session: session.clone(),
                reliable: true,
                inbox_bytes_max: 64 << 20,
                call_timeout: Time::from_secs(3),
            },
            key: JobKey::from_bytes([7; 32]),
            job: "test".into(),
            chaos: None,
        };
        change(&mut setup);
        setup
    };
    (0..size).map(setup).collect()
}
