//! Rails over UCX between all processes of a scenario.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use outlive_network::rail::tcp::{KEY_BYTES, Listener, Options};
use outlive_network::rail::ucx::{self, Door, Ucx};

/// How long they may take to meet.
const BOUND: Duration = Duration::from_secs(60);

/// A rail for each process; none for the dead, whose worker and listener go with them.
pub fn rails(processes: u32, dead: &[u32], secret: [u8; KEY_BYTES]) -> Vec<Option<Ucx>> {
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
            let mut rail = Ucx::new(door, me, &cards, secret).expect("a rail");
            rail.call_all();
            rail
        })
    });
    let mut rails: Vec<_> = rails.collect();
    // As in MPI_Init: UCX before 1.14 ends its process if another dies in a handshake.
    thread::scope(|scope| {
        for rail in rails.iter_mut().flatten() {
            scope.spawn(|| rail.meet(BOUND).expect("transports"));
        }
    });
    rails
}
