//! Handshakes between two state machines, without sockets.

use proptest::prelude::*;

use super::*;

fn secret(key: u8, job_hash: u64) -> Secret {
    Secret::shared(JobKey::from_bytes([key; 32]), job_hash)
}

fn hello(me: u32, wanted: u32) -> Hello {
    Hello {
        identity: Identity {
            peer: NodeId(me),
            epoch: 5,
        },
        wanted: NodeId(wanted),
        port: 4000,
    }
}

/// Feeds all of `bytes` by the wanted steps.
fn feed_all(side: &mut Handshake, bytes: &[u8], out: &mut Vec<u8>) -> Result<Progress, Failure> {
    let mut rest = bytes;
    let mut last = Ok(Progress::More);
    while !rest.is_empty() && side.wants() > 0 {
        let (now, later) = rest.split_at(side.wants().min(rest.len()));
        rest = later;
        last = Ok(side.feed(now, out)?);
    }
    last
}

fn pair(caller: Secret, listener: Secret) -> (Handshake, Handshake, Vec<u8>) {
    let mut out = Vec::new();
    let call = Handshake::call(caller, hello(1, 2), Purpose::Stream, b"header", &mut out).unwrap();
    (call, Handshake::listen(listener, hello(2, 0)), out)
}

#[test]
fn both_ends_learn_each_other_and_share_a_cipher() {
    let (mut call, mut listen, first) = pair(secret(1, 7), secret(1, 7));
    call.set_last(99);
    let mut to_caller = Vec::new();
    assert!(matches!(
        feed_all(&mut listen, &first, &mut to_caller),
        Ok(Progress::More)
    ));
    let mut to_listener = Vec::new();
    assert!(matches!(
        feed_all(&mut call, &to_caller, &mut to_listener),
        Ok(Progress::More)
    ));
    assert!(call.awaits_verdict());
    assert!(listen.asked().is_none(), "nothing is told before the proof");
    to_caller.clear();
    assert!(matches!(
        feed_all(&mut listen, &to_listener, &mut to_caller),
        Ok(Progress::Decide)
    ));
    let (remote, purpose, last) = listen.asked().unwrap();
    assert_eq!((remote, purpose, last), (hello(1, 2), Purpose::Stream, 99));
    let theirs = listen
        .answer(Verdict::Accept, &mut to_caller)
        .unwrap()
        .unwrap();
    let mut none = Vec::new();
    let Ok(Progress::Done(mine)) = feed_all(&mut call, &to_caller, &mut none) else {
        panic!("the caller is through")
    };
    assert_eq!(mine.identity().peer, NodeId(2));
    assert_eq!(theirs.confirm.header, b"header");
    assert_eq!(mine.id, theirs.id);
    let (mut wire, mut plain) = (Vec::new(), Vec::new());
    mine.cipher.seal(FIRST_NONCE, b"hello", &mut wire).unwrap();
    theirs
        .cipher
        .open(FIRST_NONCE, &wire[2..], &mut plain)
        .unwrap();
    assert_eq!(plain, b"hello");
    wire[5] ^= 1;
    assert_eq!(
        theirs.cipher.open(2, &wire[2..], &mut plain),
        Err(Failure::Protocol)
    );
}

#[test]
fn another_key_or_job_is_named_on_both_sides() {
    for other in [secret(2, 7), secret(1, 8)] {
        let (mut call, mut listen, first) = pair(secret(1, 7), other);
        let mut to_caller = Vec::new();
        assert_eq!(
            feed_all(&mut listen, &first, &mut to_caller).err(),
            Some(Failure::Key)
        );
        assert_eq!(
            feed_all(&mut call, &to_caller, &mut Vec::new()).err(),
            Some(Failure::Key)
        );
    }
}

#[test]
fn another_version_and_another_peer_are_named() {
    let (mut call, mut listen, mut first) = pair(secret(1, 7), secret(1, 7));
    first[4] = 1;
    let mut to_caller = Vec::new();
    assert_eq!(
        feed_all(&mut listen, &first, &mut to_caller).err(),
        Some(Failure::Version(1))
    );
    to_caller[4] = 3;
    assert_eq!(
        feed_all(&mut call, &to_caller, &mut Vec::new()).err(),
        Some(Failure::Version(3))
    );
    let (mut call, _, first) = pair(secret(1, 7), secret(1, 7));
    let mut other = Handshake::listen(secret(1, 7), hello(3, 0));
    let mut to_caller = Vec::new();
    assert!(feed_all(&mut other, &first, &mut to_caller).is_ok());
    assert_eq!(
        feed_all(&mut call, &to_caller, &mut Vec::new()).err(),
        Some(Failure::WrongPeer(NodeId(3)))
    );
}

#[test]
fn a_replayed_call_proves_nothing() {
    let (mut call, mut listen, first) = pair(secret(1, 7), secret(1, 7));
    let mut to_caller = Vec::new();
    assert!(feed_all(&mut listen, &first, &mut to_caller).is_ok());
    let mut proof = Vec::new();
    assert!(feed_all(&mut call, &to_caller, &mut proof).is_ok());
    // An eavesdropper sends the recorded first message and proof to a listener.
    let mut second = Handshake::listen(secret(1, 7), hello(2, 0));
    assert!(feed_all(&mut second, &first, &mut Vec::new()).is_ok());
    assert_eq!(
        feed_all(&mut second, &proof, &mut Vec::new()).err(),
        Some(Failure::Protocol)
    );
    assert!(second.asked().is_none());
}

/// Each letter is a guest with the key of that letter, and the peer of its place in the alphabet.
fn guests(claim: &str) -> Option<Guest> {
    let [letter @ b'a'..=b'z'] = claim.as_bytes() else {
        return None;
    };
    let (key, peer) = (JobKey::from_bytes([*letter; 32]), u32::from(letter - b'a'));
    let peer = NodeId(peer);
    Some(Guest { key, peer })
}

/// What a caller with `key` and `claim` that says it is `me` comes to, and what the listener says.
fn visit(key: u8, claim: &str, me: u32) -> (Option<Failure>, Option<Verdict>) {
    let secret = Secret {
        claim: claim.into(),
        ..secret(key, 7)
    };
    let mut first = Vec::new();
    let mut call =
        Handshake::call(secret, hello(me, 99), Purpose::Control, &[], &mut first).unwrap();
    let (job_hash, guests) = (7, Arc::new(guests));
    let mut listen = Handshake::listen_at(Door::Each { job_hash, guests }, hello(99, 0));
    let (mut to_caller, mut to_listener) = (Vec::new(), Vec::new());
    if let Err(failure) = feed_all(&mut listen, &first, &mut to_caller) {
        assert_eq!(failure, Failure::Key);
    }
    let heard = feed_all(&mut call, &to_caller, &mut to_listener);
    if let Err(failure) = heard {
        return (Some(failure), None);
    }
    to_caller.clear();
    assert!(feed_all(&mut listen, &to_listener, &mut to_caller).is_ok());
    assert_eq!(listen.asked().unwrap().0.identity.peer, NodeId(me));
    // Its owner has nothing against it.
    let made = listen.answer(Verdict::Accept, &mut to_caller).unwrap();
    let told = feed_all(&mut call, &to_caller, &mut Vec::new());
    match told {
        Ok(Progress::Done(done)) => {
            assert_eq!(done.id, made.unwrap().id);
            (None, Some(Verdict::Accept))
        }
        Err(Failure::Turned(verdict)) => {
            assert!(made.is_none());
            (None, Some(verdict))
        }
        _ => panic!("no answer"),
    }
}

#[test]
fn each_speaks_under_its_own_key_as_its_own_peer() {
    assert_eq!(visit(b'b', "b", 1), (None, Some(Verdict::Accept)));
    let refused = (Some(Failure::Key), None);
    assert_eq!(visit(b'a', "b", 1), refused, "another's key");
    assert_eq!(visit(b'a', "b", 0), refused);
    assert_eq!(visit(b'a', "A", 0), refused, "a claim that nobody may make");
    assert_eq!(visit(b'a', "", 0), refused, "no claim");
    let turned = (None, Some(Verdict::NotYours));
    assert_eq!(visit(b'a', "a", 1), turned, "as another");
    assert_eq!(visit(b'a', "a", u32::MAX), turned);
    // The claim is part of what is proven: it cannot be exchanged on the way.
    let secret = Secret {
        claim: "b".into(),
        ..secret(b'b', 7)
    };
    let mut first = Vec::new();
    Handshake::call(secret, hello(1, 99), Purpose::Control, &[], &mut first).unwrap();
    first[11] = b'c';
    let same_key = |_: &str| {
        let (key, peer) = (JobKey::from_bytes([b'b'; 32]), NodeId(1));
        Some(Guest { key, peer })
    };
    let (job_hash, guests) = (7, Arc::new(same_key));
    let mut listen = Handshake::listen_at(Door::Each { job_hash, guests }, hello(99, 0));
    let heard = feed_all(&mut listen, &first, &mut Vec::new());
    assert_eq!(heard.err(), Some(Failure::Key));
}

proptest! {
    #[test]
    fn mutated_handshakes_never_panic_and_are_never_believed(
        at in 0usize..200, flip in 1u8..=255, cut in 1usize..200,
    ) {
        let (mut call, mut listen, mut first) = pair(secret(1, 7), secret(1, 7));
        let index = at % first.len();
        first[index] ^= flip;
        let mut to_caller = Vec::new();
        let heard = feed_all(&mut listen, &first[..cut.min(first.len())], &mut to_caller);
        prop_assert!(!listen.shown_key() || heard.is_err() || cut <= index);
        let (_, mut fresh, good) = pair(secret(1, 7), secret(1, 7));
        let mut reply = Vec::new();
        let _ = feed_all(&mut fresh, &good, &mut reply);
        let index = at % reply.len();
        reply[index] ^= flip;
        let answered = feed_all(&mut call, &reply, &mut Vec::new());
        prop_assert!(!call.awaits_verdict() || answered.is_err());
    }

    #[test]
    fn garbage_is_refused_within_the_bound(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let mut listen = Handshake::listen(secret(1, 7), hello(2, 0));
        let _ = feed_all(&mut listen, &bytes, &mut Vec::new());
        prop_assert!(!listen.shown_key());
        prop_assert!(listen.buffer.capacity() <= 2 * CONFIRM_BYTES_MAX);
    }
}
