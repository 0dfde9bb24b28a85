//! A transport over a rail on which nobody dies, for tests.

use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result, Time};
use outlive_network::rail::threads::Threads;
use outlive_network::rail::{Content, Frame, Key, News, Rail};

use super::Transport;

const KEY: Key = Key {
    comm: 0,
    sequence: 0,
    incarnation: 0,
    protocol: 0,
};

/// See the module.
pub(crate) struct Over<R: Rail> {
    rail: R,
    /// Sender, tag and bytes of what nobody asked for yet.
    mail: Vec<(u32, u32, Vec<u8>)>,
}

impl Over<Threads> {
    /// One for each of `size` threads.
    pub(crate) fn threads(size: u32) -> Vec<Over<Threads>> {
        let over = |rail| Over {
            rail,
            mail: Vec::new(),
        };
        Threads::all(size).into_iter().map(over).collect()
    }
}

impl<R: Rail> Over<R> {
    fn take_in(&mut self) {
        while let Some((from, frame)) = self.rail.receive() {
            let [a, b, c, d, ..] = frame.msg;
            let bytes = frame.body.map_or(Vec::new(), |body| body.bytes.to_vec());
            self.mail
                .push((from, u32::from_le_bytes([a, b, c, d]), bytes));
        }
    }

    /// Messages that nobody received: (sender, tag). Call it when all are done.
    pub(crate) fn left_over(&mut self) -> Vec<(u32, u32)> {
        self.take_in();
        self.mail.iter().map(|mail| (mail.0, mail.1)).collect()
    }
}

impl<R: Rail> Drop for Over<R> {
    fn drop(&mut self) {
        // Who panics is dead, and the others end as well.
        if !std::thread::panicking() {
            self.rail.leave(Duration::ZERO);
        }
    }
}

impl<R: Rail> Transport for Over<R> {
    fn rank(&self) -> u32 {
        self.rail.me()
    }
    fn size(&self) -> u32 {
        self.rail.size()
    }
    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()> {
        let mut msg = [0; 32];
        msg[..4].copy_from_slice(&tag.to_le_bytes());
        let body = Some(Content::new(bytes.to_vec()));
        self.rail.send(
            to,
            Frame {
                key: KEY,
                msg,
                body,
            },
        );
        Ok(())
    }
    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)> {
        loop {
            self.take_in();
            let fits = |mail: &(u32, u32, Vec<u8>)| {
                mail.1 == tag && from.is_none_or(|from| from == mail.0)
            };
            if let Some(place) = self.mail.iter().position(fits) {
                let (from, _, bytes) = self.mail.remove(place);
                return Ok((from, bytes));
            }
            while let Some(news) = self.rail.news() {
                if let News::Dead(dead) = news {
                    let (code, entity) = (Code::RankLost, Entity::Rank(dead));
                    return Err(Error::new(code, entity, "it panicked", "see its message"));
                }
            }
            self.rail.wait(self.rail.now() + Time::from_ms(50));
        }
    }
}
