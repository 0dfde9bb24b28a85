//! A terminal that shows pages, and is what it was afterwards, whatever ends the command: a key, a
//! signal or a panic.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outlive_base::{Error, Result};
use outlive_launch::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// Between two looks at the size: the signal that tells of a change may be another thread's.
const SIZE_EVERY: Duration = Duration::from_millis(200);
/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What the terminal was before; `None` inside: standard input is no terminal.
static BEFORE: Mutex<Option<Option<Termios>>> = Mutex::new(None);

/// What the user did, or what ends the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Time has passed, or the size has changed.
    Nothing,
    /// So many rows down, or up.
    Scroll(isize),
    Quit,
    /// A signal asks for the end.
    Signal(i32),
}

/// See the module.
pub struct Terminal {
    signals: OwnedFd,
    /// Standard input has keys.
    keys: bool,
}

impl Terminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If the kernel refuses a descriptor for signals, or the terminal does not listen.
    pub fn enter() -> Result<Terminal> {
        let failed = |error: io::Error| Error::io("the terminal", "prepare", &error);
        let signals = sys::signals().map_err(failed)?;
        let stdin = io::stdin();
        let keys = stdin.is_terminal();
        let before = match keys {
            true => Some(tcgetattr(&stdin).map_err(|error| failed(error.into()))?),
            false => None,
        };
        *lock() = Some(before.clone());
        let inner = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // First, or nobody would see what it says.
            restore();
            inner(panic);
        }));
        let terminal = Terminal { signals, keys };
        if let Some(mut raw) = before {
            // Keys come one by one, unseen; the interrupt key is one of them.
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(|error| failed(error.into()))?;
        }
        write(ENTER).map_err(failed)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size() -> (usize, usize) {
        let size = tcgetwinsize(io::stdout());
        let size = size.ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |it| (it.ws_col.into(), it.ws_row.into()))
    }

    /// Shows these lines, each no wider than the terminal.
    ///
    /// # Errors
    /// Those of writing: the terminal is gone.
    pub fn show(lines: &[String]) -> io::Result<()> {
        write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }

    /// Waits until then for something to be said. A change of size ends it too.
    pub fn wait(&mut self, until: Instant) -> Said {
        let size = Terminal::size();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.look(left.min(SIZE_EVERY)) {
                Said::Nothing if left > SIZE_EVERY && Terminal::size() == size => {}
                said => return said,
            }
        }
    }

    fn look(&mut self, timeout: Duration) -> Said {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.keys {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let timeout = Timespec::try_from(timeout).ok();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Said::Nothing;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            while let Some(caught) = sys::next_signal(self.signals.as_fd()) {
                if [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].contains(&caught.signal) {
                    return Said::Signal(caught.signal);
                }
            }
        }
        if ready.get(1) == Some(&true) {
            let mut keys = [0; 64];
            return match rustix::io::read(&stdin, &mut keys) {
                // Hung up, or another process has it.
                Ok(0) | Err(_) => Said::Quit,
                Ok(got) => key(&keys[..got]),
            };
        }
        Said::Nothing
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn key(keys: &[u8]) -> Said {
    const CONTROL_C: u8 = 3;
    match keys {
        [b'q' | b'Q' | CONTROL_C, ..] => Said::Quit,
        b"\x1b[B" | b"\x1bOB" | b"j" => Said::Scroll(1),
        b"\x1b[A" | b"\x1bOA" | b"k" => Said::Scroll(-1),
        b"\x1b[6~" | b" " => Said::Scroll(10),
        b"\x1b[5~" => Said::Scroll(-10),
        _ => Said::Nothing,
    }
}

fn restore() {
    if let Some(before) = lock().take() {
        // It may be gone; there is nothing more to do then.
        if let Some(before) = before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
        }
        let _ = write(LEAVE);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Option<Termios>>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(text: &str) -> io::Result<()> {
    let mut to = io::stdout().lock();
    to.write_all(text.as_bytes())?;
    to.flush()
}
