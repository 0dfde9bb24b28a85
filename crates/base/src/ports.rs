//! The TCP ports at which something may listen, where a firewall lets no others through.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Code, Entity, Error, Result};

/// Ports from the first to the last; or any, which the system chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ports(Option<(u16, u16)>);

impl Ports {
    /// Any free port.
    pub const ANY: Ports = Ports(None);

    /// True if the system chooses.
    pub const fn is_any(self) -> bool {
        self.0.is_none()
    }

    /// What is to be tried, each once: 0 where the system chooses. Those who begin at different
    /// places seldom try the same one first.
    pub fn tries(self, from: u32) -> impl Iterator<Item = u16> {
        let (first, last) = self.0.unwrap_or((0, 0));
        let count = u32::from(last - first) + 1;
        let begin = from % count;
        (0..count).filter_map(move |n| u16::try_from(u32::from(first) + (begin + n) % count).ok())
    }
}

/// This port; 0: any.
impl From<u16> for Ports {
    fn from(port: u16) -> Ports {
        Ports((port > 0).then_some((port, port)))
    }
}

/// `20000-20099`, or one port; nothing stands for any.
impl FromStr for Ports {
    type Err = Error;

    fn from_str(text: &str) -> Result<Ports> {
        if text.is_empty() {
            return Ok(Ports::ANY);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Ports(Some((first, last)))),
            _ => Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("ports".to_owned()),
                format!(
                    "'{}' is no range of ports",
                    text.chars().take(40).collect::<String>()
                ),
                "write for example 20000-20099",
            )),
        }
    }
}

impl TryFrom<String> for Ports {
    type Error = Error;

    fn try_from(text: String) -> Result<Ports> {
        text.parse()
    }
}

impl From<Ports> for String {
    fn from(ports: Ports) -> String {
        ports.to_string()
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some((first, last)) => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_tried_whole_from_anywhere() {
        let ports: Ports = "20000-20002".parse().unwrap();
        let tries = |from| ports.tries(from).collect::<Vec<_>>();
        assert_eq!(tries(0), [20000, 20001, 20002]);
        assert_eq!(tries(4), [20001, 20002, 20000]);
        assert_eq!(Ports::ANY.tries(7).collect::<Vec<_>>(), [0]);
        assert_eq!(Ports::from(0), Ports::ANY);
        assert_eq!(Ports::from(80).tries(7).collect::<Vec<_>>(), [80]);
        let all: Ports = "1-65535".parse().unwrap();
        assert_eq!(all.tries(u32::MAX).count(), 65535);
        assert_eq!(all.tries(65534).next(), Some(65535));
    }

    #[test]
    fn what_is_written_is_read_again_and_nonsense_is_refused() {
        for text in ["", "20000-20099", "7-7"] {
            assert_eq!(text.parse::<Ports>().unwrap().to_string(), text);
        }
        assert_eq!("7".parse::<Ports>().unwrap().to_string(), "7-7");
        for text in ["0-9", "9-8", "1-65536", "a-b", "-", "1-2-3", "20000–20010"] {
            let error = text.parse::<Ports>().unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{text}");
        }
    }
}
