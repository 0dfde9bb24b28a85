//! Every rail keeps the promises of rails; and whoever breaks one is found.
#![allow(clippy::unwrap_used)] // a panic is how a test reports

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use outlive_base::{Time, rng::Sequence};
use outlive_network::JobKey;
use outlive_network::rail::sessions::Sessions;
use outlive_network::rail::tcp::{Listener, Options, Tcp};
use outlive_network::rail::threads::Threads;
use outlive_network::rail::{Can, Frame, Key, News, Rail, conform};
use outlive_network::session::{Config, MeshOptions};

const BOUND: Duration = Duration::from_secs(60);
/// Longer than a call may take.
const AT_ONCE: Duration = Duration::from_millis(2_500);

#[test]
fn threads_conform() {
    conform(Threads::all, |_| (), BOUND).unwrap();
}

fn tcp(size: u32) -> Vec<Tcp> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listeners: Vec<_> = (0..size).map(|_| Listener::bind(any).unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|one| one.address().unwrap()).collect();
    let rail = |(me, listener)| {
        Tcp::new(listener, me, addresses.clone(), [7; 32], Options::default()).unwrap()
    };
    (0..).zip(listeners).map(rail).collect()
}

#[test]
fn tcp_conforms() {
    conform(tcp, |_| (), BOUND).unwrap();
}

/// Its listener is closed, so a call is refused; the goodbye has not been read yet, nor who says it.
#[test]
fn who_has_left_is_not_dead_though_its_goodbye_is_unread() {
    for is_known in [true, false] {
        let mut both = tcp(2).into_iter();
        let (mut one, mut two) = (both.next().unwrap(), both.next().unwrap());
        let key = Key {
            comm: 7,
            sequence: 1,
            incarnation: 0,
            protocol: 1,
        };
        let (msg, body) = ([1; 32], None);
        let frame = Frame { key, msg, body };
        two.send(0, frame.clone());
        // Its call is answered here, and no more.
        assert_eq!(one.receive(), None);
        let (end, mut came) = (Instant::now() + BOUND, None);
        while is_known && came.is_none() {
            two.wait(two.now() + Time::from_ms(1));
            came = one.receive();
            assert!(Instant::now() < end, "nothing came");
        }
        assert_eq!(came, is_known.then_some((1, frame.clone())));
        two.leave(BOUND);
        drop(two);
        one.send(1, frame.clone());
        assert_eq!(one.news(), Some(News::Left(1)), "known: {is_known}");
        let unread = (!is_known).then_some((1, frame));
        assert_eq!(one.receive(), unread);
    }
}

/// Sessions of a job at addresses that nobody else has.
fn sessions(size: u32) -> Vec<Sessions> {
    let mut random = Sequence::new(outlive_base::seed!(), 1);
    let host = Ipv4Addr::from(0x7f00_0000 | random.below(1 << 24) as u32 | 1);
    let held: Vec<_> = (0..size)
        .map(|_| TcpListener::bind((host, 0)).unwrap())
        .collect();
    let addresses: Vec<_> = held.iter().map(|one| one.local_addr().unwrap()).collect();
    drop(held);
    let rail = |rank| {
        let options = MeshOptions {
            rank,
            addresses: addresses.clone(),
            session: Config {
                // Less than some frames, and no more than a moment for a death.
                window_bytes: 300 << 10,
                heartbeat: Time::from_ms(100),
                silence: Time::from_secs(2),
                give_up: Time::from_secs(3),
                ..Config::default()
            },
            reliable: true,
            inbox_bytes_max: 1 << 20,
            call_timeout: Time::from_secs(2),
        };
        Sessions::new(options, JobKey::from_bytes([7; 32]), 1).unwrap()
    };
    (0..size).map(rail).collect()
}

#[test]
fn sessions_conform_though_links_break() {
    let disturb = |rail: &mut Sessions| {
        for peer in 0..rail.size() {
            rail.break_link(peer);
        }
    };
    conform(sessions, disturb, BOUND).unwrap();
}

#[test]
fn sessions_conform_though_descriptors_die() {
    conform(sessions, Sessions::lose_descriptors, BOUND).unwrap();
}

/// What a bad rail does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Breaks {
    Nothing,
    Order,
    Once,
    Bytes,
    SendBlocks,
    LookBlocks,
    KeepsForTheDead,
    DeathTwice,
    LeavingIsDeath,
    DeathAfterLeaving,
}

struct Bad {
    rail: Threads,
    breaks: Breaks,
    held: Option<(u32, Frame)>,
    again: Option<News>,
    gone: bool,
    sent: u32,
    waiting: usize,
}

impl Rail for Bad {
    fn me(&self) -> u32 {
        self.rail.me()
    }
    fn size(&self) -> u32 {
        self.rail.size()
    }
    fn name(&self) -> &'static str {
        "bad"
    }
    fn can(&self) -> Can {
        self.rail.can()
    }
    fn now(&self) -> Time {
        self.rail.now()
    }
    fn ready(&self) -> bool {
        self.rail.ready()
    }
    fn waiting(&self) -> usize {
        self.waiting
    }
    fn send(&mut self, to: u32, mut frame: Frame) {
        self.sent += 1;
        match self.breaks {
            Breaks::SendBlocks if self.sent == 20 => std::thread::sleep(AT_ONCE),
            Breaks::Once if self.sent == 20 => self.rail.send(to, frame.clone()),
            Breaks::Bytes if self.sent == 20 => frame.msg[31] ^= 1,
            Breaks::KeepsForTheDead if self.gone => self.waiting += 1,
            _ => {}
        }
        self.rail.send(to, frame);
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        let came = self.rail.receive();
        match self.breaks {
            // The tenth, after the eleventh.
            Breaks::Order if came.as_ref().is_some_and(|one| one.1.key.sequence == 10) => {
                let next = self.rail.receive();
                self.held = came;
                next.or_else(|| self.held.take())
            }
            Breaks::Order if came.is_none() => self.held.take(),
            _ => came,
        }
    }
    fn news(&mut self) -> Option<News> {
        let news = self.rail.news();
        self.gone |= news.is_some();
        match (self.breaks, news) {
            (Breaks::DeathTwice, Some(News::Dead(_))) => self.again = news,
            (Breaks::LeavingIsDeath, Some(News::Left(who))) => return Some(News::Dead(who)),
            (Breaks::DeathAfterLeaving, Some(News::Left(who))) => {
                self.again = Some(News::Dead(who));
            }
            (_, None) => return self.again.take(),
            _ => {}
        }
        news
    }
    fn look(&mut self) {
        if self.breaks == Breaks::LookBlocks {
            std::thread::sleep(AT_ONCE);
        }
    }
    fn wait(&mut self, until: Time) {
        self.rail.wait(until);
    }
    fn flushed(&mut self) -> bool {
        self.rail.flushed()
    }
    fn leave(&mut self, bound: Duration) {
        self.rail.leave(bound);
    }
}

#[test]
fn a_rail_that_breaks_a_promise_is_found() {
    let bad = |breaks| {
        let open = move |size| {
            let bad = |rail| Bad {
                rail,
                breaks,
                held: None,
                again: None,
                gone: false,
                sent: 0,
                waiting: 0,
            };
            Threads::all(size).into_iter().map(bad).collect()
        };
        conform(open, |_| (), 2 * AT_ONCE)
    };
    bad(Breaks::Nothing).unwrap();
    for breaks in [
        Breaks::Order,
        Breaks::Once,
        Breaks::Bytes,
        Breaks::SendBlocks,
        Breaks::LookBlocks,
        Breaks::KeepsForTheDead,
        Breaks::DeathTwice,
        Breaks::LeavingIsDeath,
        Breaks::DeathAfterLeaving,
    ] {
        let found = bad(breaks);
        assert!(found.is_err(), "{breaks:?} was not found");
        println!("{breaks:?}: {}", found.unwrap_err());
    }
}
