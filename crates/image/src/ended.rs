//! Children that have ended already: they are made once more, under their numbers, and end as
//! they did, so that their parents are told.

use std::io;

use crate::gate::{self, Gone, List};
use crate::model::Ended;
use crate::restore::{Built, Restorer};
use crate::skeleton::first_stops;
use crate::sys::{self, Change};

impl Restorer<'_> {
    /// Makes them, when their parents have their signal actions. What their parents own is not
    /// touched by their ends: nothing is registered for threads yet.
    pub(crate) fn end_children(&self, built: &[Built]) -> io::Result<()> {
        let numbered = self.image.ended.iter().filter(|_| self.options.numbers);
        for ended in numbered {
            let mut both = self.image.processes.iter().zip(built);
            if let Some((_, (parent, _))) = both.find(|(process, _)| process.pid == ended.ppid) {
                self.end_child(*parent, ended)?;
            }
        }
        Ok(())
    }

    fn end_child(&self, parent: i32, ended: &Ended) -> io::Result<()> {
        let memory = gate::memory(parent)?;
        let mut list = List::new();
        let signal = ended.exit_signal.max(0) as u64;
        self.clone_call(&mut list, 0, signal, ended.pid);
        // A number that another process has by now: the parent finds no such child.
        let born = match gate::run(parent, &memory, &list) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Who waits for the signal must not wait for ever.
                return sys::kill(parent, ended.exit_signal);
            }
            ran => ran?.born,
        };
        first_stops(&born)?;
        born.into_iter()
            .try_for_each(|child| end(child, ended.status))
    }
}

/// Lets a stopped child with a gate end with a status.
fn end(child: i32, status: i32) -> io::Result<()> {
    let signal = status & 0x7f;
    if signal == 0 {
        let list = List::new().with(libc::SYS_exit_group, &[(status >> 8) as u64 & 0xff]);
        return match gate::run(child, &gate::memory(child)?, &list) {
            Err(error)
                if matches!(
                    Gone::of(&error),
                    Some(Gone {
                        change: Change::Ended(_),
                        ..
                    })
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
            Ok(_) => Err(io::Error::other("a child did not end")),
        };
    }
    if signal != libc::SIGKILL {
        let mut list = List::new();
        let default = list.bytes(&[0; 32]);
        list.call(libc::SYS_rt_sigaction, &[signal as u64, default, 0, 8]);
        gate::run(child, &gate::memory(child)?, &list)?;
        // It has left its core already.
        sys::set_limit(child, libc::RLIMIT_CORE, 0, 0)?;
        sys::set_mask(child, 0)?;
    }
    sys::kill(child, signal)?;
    if signal != libc::SIGKILL {
        sys::resume(child, 0)?;
    }
    loop {
        match sys::wait(child, true)? {
            Some((_, Change::Ended(_))) => return Ok(()),
            Some((
                _,
                Change::Stopped {
                    signal: met,
                    event: 0,
                },
            )) if met == signal => {
                sys::resume(child, signal)?;
            }
            Some((_, Change::Stopped { .. })) => sys::resume(child, 0)?,
            None => {}
        }
    }
}
