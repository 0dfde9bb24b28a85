//! The mesh's inner turn: waiting for sockets and serving them.

use rustix::event::{PollFd, PollFlags};

use super::{Mesh, READ_BUDGET_BYTES, STRANGERS_MAX};
use crate::session::conn::{Conn, End, Stage};
use crate::session::machine::{Cut, Link};
use crate::wire::Verdict;
use outlive_base::Time;

impl Mesh {
    fn flags(&self, conn: &Conn, wanted: &impl Fn(u32) -> bool) -> PollFlags {
        if matches!(conn.stage, Stage::Connecting) {
            return PollFlags::OUT;
        }
        let mut flags = PollFlags::IN;
        if let Some(peer) = conn.peer
            && let Some(state) = self.peers.get(&peer)
            && state.inbox_bytes > self.options.inbox_bytes_max
            && !wanted(peer)
        {
            flags = PollFlags::empty();
        }
        if conn.full || !conn.out.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    /// What is ready: `None` for the listener, else an index into `conns`.
    pub(super) fn wait(
        &mut self,
        wait: Time,
        wanted: &impl Fn(u32) -> bool,
    ) -> Vec<(Option<Link>, PollFlags)> {
        let mut fds = Vec::with_capacity(self.conns.len() + 1);
        let mut names = Vec::with_capacity(self.conns.len() + 1);
        let mut paused = Vec::new();
        for conn in &self.conns {
            let flags = self.flags(conn, wanted);
            if flags.is_empty() {
                paused.push((conn.peer, conn.link));
            }
            fds.push(PollFd::from_borrowed_fd(conn.sock.fd(), flags));
            names.push(Some(conn.link));
        }
        if let Some(listener) = &self.listener {
            fds.push(PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN));
            names.push(None);
        }
        let timeout = rustix::event::Timespec {
            tv_sec: (wait.0 / 1_000_000_000) as i64,
            tv_nsec: (wait.0 % 1_000_000_000) as _,
        };
        // Interrupted, as after a restore: nothing is ready, and the caller's
        // next turn looks again.
        let ready = rustix::event::poll(&mut fds, Some(&timeout)).unwrap_or(0);
        let mut events = Vec::new();
        if ready > 0 {
            for (fd, name) in fds.iter().zip(names) {
                if !fd.revents().is_empty() {
                    events.push((name, fd.revents()));
                }
            }
        }
        for (peer, link) in paused {
            if let Some(state) = peer.and_then(|peer| self.peers.get_mut(&peer)) {
                // It is we who do not read.
                state.session.heard(link);
            }
        }
        events
    }

    pub(super) fn serve(&mut self, events: &[(Option<Link>, PollFlags)]) {
        for (name, flags) in events {
            if flags.contains(PollFlags::NVAL) {
                return self.reborn();
            }
            let Some(link) = name else {
                self.accept();
                continue;
            };
            let Some(at) = self.conns.iter().position(|conn| conn.link == *link) else {
                continue;
            };
            if let Err(end) = self.serve_one(at)
                && let Some(at) = self.conns.iter().position(|conn| conn.link == *link)
            {
                self.end(at, end);
            }
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            let sock = match listener.accept() {
                Ok(Some(sock)) => sock,
                Ok(None) => return,
                Err(_) => return self.reborn(),
            };
            let strangers = self.conns.iter().filter(|conn| conn.peer.is_none());
            if strangers.count() >= STRANGERS_MAX {
                let oldest = self.conns.iter().position(|conn| conn.peer.is_none());
                oldest.into_iter().for_each(|at| self.end(at, End::Broken));
            }
            let stage = Conn::listening(&self.secret, self.options.rank);
            let deadline = self.clock + self.options.call_timeout;
            let link = self.new_link();
            let plain = !self.options.reliable;
            self.conns
                .push(Conn::new(sock, link, None, stage, deadline, plain));
        }
    }

    fn serve_one(&mut self, at: usize) -> Result<(), End> {
        let conn = &mut self.conns[at];
        match conn.stage {
            Stage::Connecting => {
                let Some(peer) = conn.peer else {
                    return Err(End::Broken);
                };
                let state = self.peers.get(&peer);
                let resume = state.and_then(|state| state.session.proof(conn.link));
                let resume = resume.ok_or(End::Broken)?;
                conn.shake(&self.secret, self.options.rank, peer, &resume)
            }
            Stage::Shaking(_) => {
                conn.full = false;
                conn.flush_out()?;
                if !conn.shake_on()? {
                    return Ok(());
                }
                match conn.peer {
                    None => self.decide(at),
                    Some(_) => self.read(at),
                }
            }
            Stage::Open => {
                let state = conn.peer.and_then(|peer| self.peers.get_mut(&peer));
                conn.write(&mut state.ok_or(End::Broken)?.session)?;
                self.read(at)
            }
        }
    }

    /// A caller has proven who it is.
    fn decide(&mut self, at: usize) -> Result<(), End> {
        let conn = &mut self.conns[at];
        let (peer, resume) = conn.caller().ok_or(End::Broken)?;
        if peer == self.options.rank || peer as usize >= self.options.addresses.len() {
            let _ = conn.answer(Verdict::WrongPeer);
            return Err(End::Broken);
        }
        let known = self.peers.contains_key(&peer);
        let (link, me, bare) = (conn.link, self.options.rank, !self.options.reliable);
        let session = &mut self.peer(peer).session;
        // What a bare connection took is lost with it: none is given up for another one, and of
        // two calls that cross the lower rank's stands.
        let other = session.current().is_some() || session.is_calling() && me < peer;
        let called = match bare && other {
            true => Err(Cut::Stale),
            false => session.called(link, &resume),
        };
        let conn = &mut self.conns[at];
        let Some(state) = self.peers.get_mut(&peer) else {
            return Err(End::Broken);
        };
        match called {
            Ok(closed) => {
                conn.peer = Some(peer);
                state.incomplete.rollback();
                conn.answer(Verdict::Accept)?;
                conn.write(&mut state.session)?;
                closed.into_iter().for_each(|link| self.close(link));
                Ok(())
            }
            Err(Cut::Forgotten) => {
                conn.answer(Verdict::Accept)?;
                conn.out.extend(state.session.welcome(&resume));
                conn.flush_out()?;
                Err(End::Broken)
            }
            Err(_) => {
                let _ = conn.answer(Verdict::Stale);
                if !known {
                    self.peers.remove(&peer);
                }
                Err(End::Broken)
            }
        }
    }

    fn read(&mut self, at: usize) -> Result<(), End> {
        let conn = &mut self.conns[at];
        let peer = conn.peer.ok_or(End::Broken)?;
        let state = self.peers.get_mut(&peer).ok_or(End::Broken)?;
        let (mut done, mut closed) = (Vec::new(), Vec::new());
        let result = conn.read(
            &mut state.session,
            &mut state.incomplete,
            READ_BUDGET_BYTES,
            &mut done,
            &mut closed,
        );
        if result.is_ok() && state.session.current() == Some(conn.link) {
            // An acknowledgement may be due.
            conn.write(&mut state.session)?;
        }
        for bytes in done {
            self.deliver(peer, bytes);
        }
        closed.into_iter().for_each(|link| self.close(link));
        result
    }
}
