use super::*;

#[test]
fn a_message_that_is_too_long_is_no_fault_of_the_program() {
    let error = encode(&vec![7u8; MESSAGE_BYTES_MAX]).unwrap_err();
    assert_eq!(error.code(), Code::Network);
    assert!(encode(&vec![7u8; MESSAGE_BYTES_MAX - 5]).is_ok());
}

#[test]
fn messages_round_trip_and_hostile_bytes_are_refused() {
    let notice = Notice::Checkpoint {
        version: Version(7),
        step: Step::Aborted {
            level: Some(Level::PARTNER),
            error: Error::internal("x"),
        },
    };
    let bytes = encode(&notice).unwrap();
    assert_eq!(decode::<Notice>(&bytes).unwrap(), notice);
    for cut in 0..bytes.len() {
        assert_eq!(
            decode::<Notice>(&bytes[..cut]).unwrap_err().code(),
            Code::PeerVersion
        );
    }
    let mut source = outlive_base::rng::Sequence::new(outlive_base::seed!(), 2);
    for _ in 0..20_000 {
        let mut mutated = bytes.clone();
        let at = source.below(mutated.len() as u64) as usize;
        mutated[at] ^= 1 << source.below(8);
        let _ = decode::<Notice>(&mutated);
        let _ = decode::<Order>(&mutated);
    }
    let long_vector = [PROTOCOL, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(decode::<Order>(&long_vector).is_err());
}
