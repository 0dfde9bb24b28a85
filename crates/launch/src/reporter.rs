//! Writes the job's own report without holding up the driver.

use std::path::PathBuf;

use crossbeam_channel::{Sender, TrySendError, bounded};

use crate::store;

/// The thread that writes it.
pub(crate) struct Reporter {
    to: Option<Sender<String>>,
    thread: Option<std::thread::JoinHandle<()>>,
    path: PathBuf,
}

impl Reporter {
    pub fn start(path: PathBuf) -> Reporter {
        let (to, from) = bounded::<String>(1);
        let target = path.clone();
        let write = move || {
            for text in from {
                if let Err(error) = store::write_atomic(&target, text.as_bytes()) {
                    tracing::warn!(%error, "report not written");
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("report".into())
            .spawn(write)
            .ok();
        Reporter {
            to: Some(to),
            thread,
            path,
        }
    }

    /// Skips this one if the last is still being written.
    pub fn write(&self, text: String) {
        if let Some(to) = &self.to
            && let Err(TrySendError::Disconnected(_)) = to.try_send(text)
        {
            tracing::warn!(path = %self.path.display(), "no report is written");
        }
    }

    /// The last word: waits for what is being written.
    pub fn finish(mut self, text: String) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = store::write_atomic(&self.path, text.as_bytes()) {
            tracing::warn!(%error, "report not written");
        }
    }
}
