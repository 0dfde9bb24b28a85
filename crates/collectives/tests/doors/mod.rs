//! Rails over UCX between all processes of a scenario.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use outlive_collectives::tcp::{Listener, Options};
use outlive_collectives::ucx::{self, Door, Ucx};

/// A rail for each process; none for the dead, whose worker and listener go with them.
pub fn rails(processes: u32, dead: &[u32]) -> Vec<Option<Ucx>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ucx::Options {
        control: Options {
            silence: Duration::from_secs(20),
            incarnation: 0,
        },
        library: None,
    };
    let open = |_| {
        let listener = Listener::bind(any).expect("listens");
        Door::open(listener, options.clone()).expect("UCX")
    };
    let doors: Vec<_> = (0..processes).map(open).collect();
    let cards: Vec<_> = doors.iter().map(Door::card).collect();
    let rails = doors.into_iter().zip(0..).map(|(door, me)| {
        (!dead.contains(&me)).then(|| {
            let mut rail = Ucx::new(door, me, &cards, [9; 32]).expect("a rail");
            rail.call_all();
            rail
        })
    });
    rails.collect()
}
