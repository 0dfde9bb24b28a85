//! Where the processes of all nodes meet: torchrun's static rendezvous, on the first node, at a
//! port that each start chooses anew. Ranks then lie on the nodes in their order, where their data
//! is; another rendezvous numbers them by who comes first.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};

use outlive_base::Ports;

/// Below those that Linux gives to whoever asks for any.
const FIRST: u16 = 20_000;
const LAST: u16 = 31_999;

pub(super) struct Meeting<'a> {
    /// The first node.
    pub address: &'a str,
    /// All nodes are this machine.
    pub here: bool,
    pub ports: Ports,
    /// Differs from start to start.
    pub start: u64,
    pub nodes: usize,
}

/// The variables that say so to torchrun; those that the user has set stay.
pub(super) fn meeting_at(
    meeting: &Meeting,
    is_set: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let of = [
        ("PET_NNODES", meeting.nodes.to_string()),
        ("PET_MASTER_ADDR", meeting.address.to_owned()),
        ("PET_MASTER_PORT", port(meeting).to_string()),
    ];
    of.into_iter()
        .filter(|(name, _)| !is_set(name))
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn port(meeting: &Meeting) -> u16 {
    if meeting.here {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        if let Ok(free) = free {
            return free.port();
        }
    }
    // On another machine nobody can be asked. One that is taken costs the next start's attempt,
    // which comes to another.
    let ports = match meeting.ports.is_any() {
        true => format!("{FIRST}-{LAST}").parse().unwrap_or(Ports::ANY),
        false => meeting.ports,
    };
    let from = xxhash_rust::xxh3::xxh3_64(&meeting.start.to_le_bytes());
    ports.tries(from as u32).next().unwrap_or(FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, ports: &str, here: bool) -> Meeting<'static> {
        Meeting {
            address: "n1",
            here,
            ports: ports.parse().unwrap(),
            start,
            nodes: 3,
        }
    }

    #[test]
    fn starts_meet_at_ports_of_their_own() {
        let ports: Vec<u16> = (0..8).map(|start| port(&at(start, "", false))).collect();
        let within = |port: &u16| (FIRST..=LAST).contains(port);
        assert!(ports.iter().all(within), "{ports:?}");
        assert!(ports.windows(2).any(|two| two[0] != two[1]), "{ports:?}");
        assert_eq!(port(&at(7, "", false)), port(&at(7, "", false)));
        let open = (0..8).map(|start| port(&at(start, "21000-21001", false)));
        assert!({ open }.all(|port| (21_000..=21_001).contains(&port)));
        assert_ne!(port(&at(0, "", true)), 0);
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let all = meeting_at(&at(0, "", false), |_| false);
        assert_eq!(all["PET_NNODES"], "3");
        assert_eq!(all["PET_MASTER_ADDR"], "n1");
        let own = meeting_at(&at(0, "", false), |name| name == "PET_MASTER_PORT");
        assert_eq!(own.len(), 2);
        assert!(!own.contains_key("PET_MASTER_PORT"));
    }
}
