//! Rails between the processes of a scenario; none for the dead.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::time::Duration;

use outlive_base::Time;
use outlive_network::JobKey;
use outlive_network::rail::sessions::Sessions;
use outlive_network::rail::tcp::{KEY_BYTES, Listener, Options, Tcp};
use outlive_network::rail::threads::Threads;
use outlive_network::session::{Config, MeshOptions};

/// The key of this run: the port of a dead process may be taken by another run beside this
/// one, which is not to be heard.
pub fn secret() -> [u8; KEY_BYTES] {
    static SECRET: LazyLock<[u8; KEY_BYTES]> = LazyLock::new(|| {
        let random = || RandomState::new().build_hasher().finish().to_le_bytes();
        let words = [random(), random(), random(), random()];
        let mut all = words.into_iter().flatten();
        std::array::from_fn(|_| all.next().unwrap_or_default())
    });
    *SECRET
}

/// Between threads: a dead one's is dropped.
pub fn threads(processes: u32, dead: &[u32]) -> Vec<Option<Threads>> {
    let all = (0..).zip(Threads::all(processes));
    all.map(|(me, rail)| (!dead.contains(&me)).then_some(rail))
        .collect()
}

/// Over TCP: the listener of a dead process goes with it.
pub fn tcp(processes: u32, dead: &[u32]) -> Vec<Option<Tcp>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listeners: Vec<_> = (0..processes)
        .map(|_| Listener::bind(any).expect("listens"))
        .collect();
    let addresses: Vec<_> = listeners
        .iter()
        .map(|one| one.address().expect("has one"))
        .collect();
    let rails = (0..).zip(listeners).map(|(me, listener)| {
        let options = Options {
            silence: Duration::from_secs(20),
            incarnation: 0,
        };
        (!dead.contains(&me)).then(|| {
            let rail = Tcp::new(listener, me, addresses.clone(), secret(), options);
            let mut rail = rail.expect("a rail");
            rail.call_all();
            rail
        })
    });
    rails.collect()
}

/// A job whose processes talk over sessions, at addresses that nobody else has.
pub struct Job {
    addresses: Vec<SocketAddr>,
}

impl Job {
    pub fn new(processes: u32) -> Job {
        let random = RandomState::new().build_hasher().finish() as u32;
        let host = Ipv4Addr::from(0x7f00_0000 | random >> 8 | 1);
        let held: Vec<_> = (0..processes)
            .map(|_| TcpListener::bind((host, 0)).expect("listens"))
            .collect();
        let addresses = held.iter().map(|one| one.local_addr().expect("has one"));
        Job {
            addresses: addresses.collect(),
        }
    }

    /// A process, for the first time or, with the memory of none before, again.
    pub fn process(&self, rank: u32) -> Sessions {
        let options = MeshOptions {
            rank,
            addresses: self.addresses.clone(),
            session: Config {
                window_bytes: 300 << 10,
                heartbeat: Time::from_ms(100),
                silence: Time::from_secs(2),
                give_up: Time::from_secs(3),
                backoff_max: Time::from_ms(100),
                ..Config::default()
            },
            reliable: true,
            inbox_bytes_max: 64 << 20,
            call_timeout: Time::from_secs(2),
        };
        let key = JobKey::from_bytes(secret());
        let mut rail = Sessions::new(options, key, 1).expect("a rail");
        rail.call_all();
        rail
    }

    pub fn sessions(&self, dead: &[u32]) -> Vec<Option<Sessions>> {
        let all = 0..self.addresses.len() as u32;
        all.map(|me| (!dead.contains(&me)).then(|| self.process(me)))
            .collect()
    }
}
