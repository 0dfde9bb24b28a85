//! Which messages are signs of life: those that come all the time, whatever happens to the job.

use crate::node::shell::PeerMessage;
use crate::node::word_of_silence;
use crate::orders::{Notice, Order};

impl Order {
    /// True of what is asked of every agent all the time, and of words on who is silent.
    pub const fn is_sign_of_life(&self) -> bool {
        matches!(self, Order::Status | Order::Silent { .. })
    }
}

impl Notice {
    /// True of what every agent says all the time, and of words on who is silent.
    pub const fn is_sign_of_life(&self) -> bool {
        matches!(
            self,
            Notice::Alive { .. }
                | Notice::Status(_)
                | Notice::Spans(_)
                | Notice::Silent { .. }
                | Notice::Suspected { .. }
                | Notice::Cleared { .. }
                | Notice::Dead { .. }
        )
    }
}

impl PeerMessage {
    /// True of the words of the detector.
    pub const fn is_sign_of_life(&self) -> bool {
        matches!(self, PeerMessage::Service { service, .. } if *service == word_of_silence())
    }
}
