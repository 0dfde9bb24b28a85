//! What a process tells the others before rails are made.
//!
//! Layout (little-endian): the control listener's address as text, with a u32 length;
//! the challenge, 32 bytes; the worker's address, with a u32 length.

use std::net::SocketAddr;

use outlive_base::wire::{Reader, WireError, Writer};

use crate::rail::tcp::proof::CHALLENGE_BYTES;

/// The longest card, in bytes: a worker's address grows with the network devices.
pub const CARD_BYTES_MAX: usize = 1 << 20;
/// The longest address in words: IPv6 with scope and port.
const ADDRESS_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Card {
    /// Where its kernel answers for it.
    pub(super) control: SocketAddr,
    /// What frames to it must answer.
    pub(super) challenge: [u8; CHALLENGE_BYTES],
    /// UCX's address of its worker.
    pub(super) worker: Vec<u8>,
}

impl Card {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.blob(self.control.to_string().as_bytes());
        writer.raw(&self.challenge).blob(&self.worker);
        writer.as_slice().to_vec()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Card, WireError> {
        let mut reader = Reader::new(bytes);
        let text = reader.text(ADDRESS_MAX)?;
        let control = text.parse().map_err(|_| WireError::Value("address"))?;
        let challenge = reader.array()?;
        let worker = reader.blob(CARD_BYTES_MAX)?.to_vec();
        if worker.is_empty() {
            return Err(WireError::Value("no worker's address"));
        }
        reader.finish()?;
        Ok(Card {
            control,
            challenge,
            worker,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cards_come_back_and_cuts_are_refused(
            port: u16, challenge: [u8; 32], worker in prop::collection::vec(any::<u8>(), 1..300),
            cut: prop::sample::Index,
        ) {
            let control = SocketAddr::from(([127, 0, 0, 1], port));
            let card = Card { control, challenge, worker };
            let bytes = card.encode();
            prop_assert_eq!(Card::decode(&bytes), Ok(card));
            prop_assert!(Card::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_a_card_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(card) = Card::decode(&bytes) {
                prop_assert!(card.worker.len() < bytes.len());
            }
        }
    }
}
