//! Addresses of this machine, and which of several leads to another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};

use crate::sys;

/// How long one address may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Addresses between two machines that users may choose by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subnet {
    address: IpAddr,
    bits: u32,
}

impl Subnet {
    /// `10.1.0.0/16`, `fd00::/8`, or one address.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`].
    pub fn parse(text: &str) -> Result<Subnet> {
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(a, b)| (a, Some(b)));
        let address: Option<IpAddr> = address.parse().ok();
        let most = address.map_or(0, |it| if it.is_ipv4() { 32 } else { 128 });
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok());
        match (address, bits.filter(|bits| *bits <= most)) {
            (Some(address), Some(bits)) => Ok(Subnet { address, bits }),
            _ => Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("network".to_owned()),
                format!(
                    "'{}' is no network",
                    text.chars().take(60).collect::<String>()
                ),
                "write for example 10.1.0.0/16 or fd00:1::/64",
            )),
        }
    }

    /// True if the address lies in it.
    pub fn has(&self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            self.bits == 0 || (a ^ b) >> (width - self.bits.min(width)) == 0
        };
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

/// Where all of this machine's addresses are served, by both protocols if there are two.
pub(crate) fn any_address() -> IpAddr {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Under which addresses other machines may reach `port` here; the loopback only if there
/// is no other.
///
/// # Errors
/// [`Code::Network`] if none lies in `within`.
pub(crate) fn of_this_machine(port: u16, within: Option<Subnet>) -> Result<Vec<SocketAddr>> {
    let failed = |reason: String| {
        Error::new(
            Code::Network,
            Entity::Call,
            reason,
            "look at the output of: ip address; then give --network one of the networks",
        )
    };
    let all = sys::addresses().map_err(|error| failed(error.to_string()))?;
    let chosen = |it: &IpAddr| within.is_none_or(|within| within.has(*it));
    let mut found: Vec<IpAddr> = all.into_iter().filter(chosen).collect();
    if found.iter().any(|it| !it.is_loopback()) {
        found.retain(|it| !it.is_loopback());
    }
    if found.is_empty() {
        return Err(failed("this machine has no address there".to_owned()));
    }
    // The older protocol first: it is the one that clusters have everywhere.
    found.sort_by_key(|it| it.is_ipv6());
    Ok(found.into_iter().map(|it| (it, port).into()).collect())
}

/// The first of the addresses that answers, and this machine's own on the way there.
///
/// # Errors
/// [`Code::AgentUnreachable`] with all that were tried.
pub(super) fn reach(launchers: &[SocketAddr]) -> Result<(SocketAddr, IpAddr)> {
    let mut tried = Vec::new();
    for launcher in launchers {
        match TcpStream::connect_timeout(launcher, ANSWER).and_then(|it| it.local_addr()) {
            Ok(own) => return Ok((*launcher, own.ip())),
            Err(error) => tried.push(format!("{launcher}: {error}")),
        }
    }
    Err(Error::new(
        Code::AgentUnreachable,
        Entity::Node(outlive_base::NodeId::LAUNCHER.0),
        format!(
            "the launcher cannot be reached from here ({})",
            tried.join("; ")
        ),
        "let the hosts connect to the machine of outlive run, at any port or at those of --ports, or \
         choose the way by --network",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_addresses_and_no_others() {
        let has = |network: &str, address: &str| {
            Subnet::parse(network)
                .unwrap()
                .has(address.parse().unwrap())
        };
        assert!(has("10.1.0.0/16", "10.1.255.3") && !has("10.1.0.0/16", "10.2.0.1"));
        assert!(has("0.0.0.0/0", "8.8.8.8") && !has("0.0.0.0/0", "::1"));
        assert!(has("10.0.0.7", "10.0.0.7") && !has("10.0.0.7", "10.0.0.6"));
        assert!(has("fd00::/8", "fdff::1") && !has("fd00::/8", "fe80::1"));
        assert!(has("::/0", "fe80::1"));
        for bad in ["", "10.0.0.0/33", "eth0", "10.0.0/8", "::/129", "1.2.3.4/x"] {
            assert_eq!(
                Subnet::parse(bad).unwrap_err().code(),
                Code::InvalidArgument
            );
        }
    }

    #[test]
    fn the_address_that_answers_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let closed = {
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            other.local_addr().unwrap()
        };
        let (launcher, own) = reach(&[closed, there]).unwrap();
        assert_eq!((launcher, own), (there, "127.0.0.1".parse().unwrap()));
        let error = reach(&[closed]).unwrap_err();
        assert_eq!(error.code(), Code::AgentUnreachable);
        assert!(error.reason().contains(&closed.to_string()));
    }
}
