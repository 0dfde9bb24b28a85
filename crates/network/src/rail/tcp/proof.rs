//! The proof that a caller holds the job's key: HMAC-BLAKE2s over the listener's
//! challenge and the caller's rank. A challenge of this rail is used once, so nothing
//! replays; the rail over UCX uses one for the life of a rail, under a label of its own.

use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

/// Length of the job's key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Length of a challenge, in bytes.
pub(crate) const CHALLENGE_BYTES: usize = 32;
/// Length of a caller's answer: its rank and the hash.
pub(crate) const ANSWER_BYTES: usize = 4 + 32;

const LABEL: &[u8] = b"outlive collectives rail 1";
/// The label of the rail over UCX: an answer that one rail gives opens no other.
#[cfg(feature = "ucx")]
pub(crate) const UCX_LABEL: &[u8] = b"outlive collectives ucx 1";

pub(crate) fn challenge() -> Option<[u8; CHALLENGE_BYTES]> {
    let mut bytes = [0; CHALLENGE_BYTES];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

/// What the caller answers; `None` if the hash is not compiled in.
pub(super) fn answer(
    key: &[u8; KEY_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
    rank: u32,
) -> Option<[u8; ANSWER_BYTES]> {
    answer_as(LABEL, key, challenge, rank)
}

/// The answer under this label.
pub(crate) fn answer_as(
    label: &[u8],
    key: &[u8; KEY_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
    rank: u32,
) -> Option<[u8; ANSWER_BYTES]> {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s)?;
    let mut data = label.to_vec();
    data.extend_from_slice(challenge);
    data.extend_from_slice(&rank.to_le_bytes());
    let mut mac = [0; 32];
    hash.hmac(key, &data, &mut mac);
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&rank.to_le_bytes());
    bytes[4..].copy_from_slice(&mac);
    Some(bytes)
}

/// The rank that gave this answer, if it holds the key.
pub(super) fn verify(
    key: &[u8; KEY_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
    given: &[u8; ANSWER_BYTES],
) -> Option<u32> {
    let rank = u32::from_le_bytes([given[0], given[1], given[2], given[3]]);
    let wanted = answer(key, challenge, rank)?;
    equal(&wanted, given).then_some(rank)
}

/// Every byte is looked at: the time tells nothing of where they differ.
pub(crate) fn equal(wanted: &[u8; ANSWER_BYTES], given: &[u8; ANSWER_BYTES]) -> bool {
    let differ = wanted
        .iter()
        .zip(given)
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_answers_and_only_this_challenge() {
        let (one, two) = (challenge().expect("random"), challenge().expect("random"));
        let given = answer(&[7; 32], &one, 3).expect("hash");
        assert_eq!(verify(&[7; 32], &one, &given), Some(3));
        assert_eq!(verify(&[8; 32], &one, &given), None);
        assert_eq!(verify(&[7; 32], &two, &given), None);
        let mut other = given;
        other[0] = 4;
        assert_eq!(verify(&[7; 32], &one, &other), None);
    }
}
