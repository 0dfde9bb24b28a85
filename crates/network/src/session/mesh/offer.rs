//! Handing messages over: into frames, or bare.

use outlive_base::Error;

use super::Mesh;
use crate::session::conn::{LAST, MESSAGE_HEAD_BYTES};
use crate::session::sock::Done;

impl Mesh {
    /// Hands over as much as possible of a message of `body`; `offset` counts
    /// what was taken (begin with 0). True once all of it was. A second message
    /// to the same rank may begin only then.
    ///
    /// # Errors
    /// If the session has failed.
    pub fn offer(
        &mut self,
        to: u32,
        context: u32,
        tag: u32,
        body: &[u8],
        offset: &mut usize,
    ) -> Result<bool, Error> {
        let mut head = [0; MESSAGE_HEAD_BYTES];
        head[..4].copy_from_slice(&tag.to_le_bytes());
        head[4..8].copy_from_slice(&context.to_le_bytes());
        head[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let whole = MESSAGE_HEAD_BYTES + body.len();
        if to == self.options.rank {
            self.deliver(to, [&head[..], body].concat());
            *offset = whole;
            return Ok(true);
        }
        self.check(to)?;
        if !self.options.reliable {
            return self.offer_plain(to, &head, body, offset);
        }
        let frame_bytes_max = self.options.session.frame_bytes_max;
        let session = &mut self.peer(to).session;
        while *offset < whole {
            let Some(room) = session.room() else {
                break;
            };
            // Not in crumbs: a frame has a price.
            let rest = whole - *offset;
            if room < rest && room < frame_bytes_max {
                break;
            }
            let count = room.min(rest);
            let flags = if count == rest { LAST } else { 0 };
            let in_head = MESSAGE_HEAD_BYTES.saturating_sub(*offset).min(count);
            let begin = (*offset + in_head) - MESSAGE_HEAD_BYTES.min(*offset + in_head);
            let from = if in_head > 0 {
                *offset
            } else {
                MESSAGE_HEAD_BYTES
            };
            let parts = [
                &head[from..from + in_head],
                &body[begin..begin + count - in_head],
            ];
            if !session.push(flags, &parts) {
                break;
            }
            *offset += count;
        }
        self.call_first(to);
        self.write(to);
        Ok(*offset == whole)
    }

    fn offer_plain(
        &mut self,
        to: u32,
        head: &[u8],
        body: &[u8],
        offset: &mut usize,
    ) -> Result<bool, Error> {
        self.peer(to).session.hurry();
        self.call_first(to);
        let Some(state) = self.peers.get_mut(&to) else {
            return Ok(false);
        };
        let session = &mut state.session;
        let link = session.current();
        let conn = self.conns.iter_mut().find(|c| Some(c.link) == link);
        let Some(conn) = conn.filter(|conn| conn.out.is_empty()) else {
            return Ok(false);
        };
        if session.has_output() {
            let written = conn.write(session);
            if written.is_err() || session.has_output() {
                return Ok(false);
            }
        }
        let whole = head.len() + body.len();
        while *offset < whole {
            let first = &head[(*offset).min(head.len())..];
            let second = &body[offset.saturating_sub(head.len())..];
            let parts = [std::io::IoSlice::new(first), std::io::IoSlice::new(second)];
            match conn.sock.send(&parts) {
                Done::Bytes(count) => *offset += count,
                Done::Later => {
                    conn.full = true;
                    return Ok(false);
                }
                Done::Over | Done::Dead => {
                    state.broken = true;
                    return self.check(to).map(|()| false);
                }
            }
        }
        Ok(true)
    }
}
