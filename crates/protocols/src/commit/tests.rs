use super::*;

#[test]
fn sizes_are_bounded() {
    assert!(
        size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX,
        "{}",
        size_of::<Msg>()
    );
    assert!(size_of::<Event>() <= 24, "{}", size_of::<Event>());
}
