use super::*;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    "[a-zü /.]{1,40}"
}

fn part() -> impl Strategy<Value = Part> {
    (name(), any::<u64>(), any::<u64>()).prop_map(|(name, offset, length)| Part {
        name,
        offset,
        length,
    })
}

fn kind() -> impl Strategy<Value = RegionKind> {
    prop_oneof![Just(RegionKind::Plain), Just(RegionKind::Ring)]
}

fn stat() -> impl Strategy<Value = Stat> {
    let torn = prop::collection::vec(any::<(u64, u64)>(), 0..5);
    (name(), kind(), any::<(u64, u64, u64, u32)>(), torn).prop_map(|(name, kind, it, torn)| Stat {
        name,
        kind,
        bytes: it.0,
        puts: it.1,
        waiting: it.2,
        writers: it.3,
        torn,
    })
}

fn source() -> impl Strategy<Value = Source> {
    let at = prop::option::of(any::<([u8; 4], u16)>().prop_map(SocketAddr::from));
    (at, part()).prop_map(|(at, part)| Source {
        at,
        name: part.name,
        offset: part.offset,
        length: part.length,
    })
}

fn error() -> impl Strategy<Value = Error> {
    let entity = prop_oneof![
        name().prop_map(Entity::Region),
        name().prop_map(Entity::Address),
        name().prop_map(Entity::Job),
        name().prop_map(Entity::File),
        name().prop_map(Entity::Option),
        any::<u32>().prop_map(Entity::Rank),
        any::<u32>().prop_map(Entity::Node),
        any::<u64>().prop_map(Entity::Version),
        Just(Entity::Call),
    ];
    let code = prop::sample::select(Code::ALL);
    (code, entity, name(), name())
        .prop_map(|(code, entity, why, how)| Error::new(code, entity, why, how))
}

fn message() -> impl Strategy<Value = Message> {
    let inline = || prop::option::of(prop::collection::vec(any::<u8>(), 0..300));
    let about = (any::<u128>(), name(), any::<[u64; 4]>()).prop_map(|(instance, unix, of)| About {
        instance,
        unix,
        memory: of[0],
        free: of[1],
        quota: of[2],
        used: of[3],
    });
    prop_oneof![
        Just(Message::Hello),
        about.prop_map(Message::About),
        (name(), any::<u64>(), kind()).prop_map(|(a, b, c)| Message::Allocate(a, b, c)),
        name().prop_map(Message::Delete),
        name().prop_map(Message::Stat),
        stat().prop_map(Message::Region),
        name().prop_map(Message::List),
        prop::collection::vec(stat(), 0..5).prop_map(Message::Listing),
        (part(), any::<u32>(), inline()).prop_map(|(a, b, c)| Message::Put(a, b, c)),
        (part(), any::<u32>(), any::<bool>()).prop_map(|(a, b, c)| Message::Get(a, b, c)),
        (part(), any::<u32>(), any::<bool>(), any::<u64>())
            .prop_map(|(a, b, c, d)| Message::Lend(a, b, c, d)),
        any::<(u64, bool)>().prop_map(|(a, b)| Message::Lent(a, b)),
        any::<bool>().prop_map(Message::Return),
        (name(), any::<u64>(), any::<u32>()).prop_map(|(a, b, c)| Message::Wait(a, b, c)),
        (name(), any::<u64>(), any::<u32>(), inline())
            .prop_map(|(a, b, c, d)| Message::Push(a, b, c, d)),
        (name(), any::<u32>()).prop_map(|(a, b)| Message::Pop(a, b)),
        any::<u64>().prop_map(Message::Length),
        Just(Message::Taken),
        (part(), any::<u32>(), prop::collection::vec(source(), 0..5))
            .prop_map(|(a, b, c)| Message::Sum(a, b, c)),
        (part(), any::<u32>()).prop_map(|(a, b)| Message::Digest(a, b)),
        (0..=CHUNK_BYTES as u32).prop_map(Message::Chunk),
        any::<Option<u128>>().prop_map(Message::End),
        Just(Message::Go),
        Just(Message::Busy),
        any::<u64>().prop_map(Message::Done),
        error().prop_map(Message::Failed),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_nothing_else(message in message(), more in any::<u8>()) {
        let mut bytes = message.bytes();
        prop_assert!(bytes.len() <= outlive_network::channel::MESSAGE_BYTES_MAX);
        let parsed = Message::parse(&bytes);
        prop_assert_eq!(parsed.as_ref(), Ok(&message));
        // Neither shorter nor longer: a length is always exact.
        for cut in 0..bytes.len() {
            prop_assert!(Message::parse(&bytes[..cut]).is_err());
        }
        bytes.push(more);
        prop_assert!(Message::parse(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.bytes(), bytes);
        }
    }

    #[test]
    fn a_damaged_message_is_another_message_or_an_error(
        message in message(), at in any::<prop::sample::Index>(), bit in 0..8u8,
    ) {
        let mut bytes = message.bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(other) = Message::parse(&bytes) {
            prop_assert_ne!(other, message);
        }
    }
}

#[test]
fn the_largest_messages_fit_into_a_record() {
    let name = "n".repeat(NAME_BYTES_MAX);
    let stat = Stat {
        name: name.clone(),
        kind: RegionKind::Plain,
        bytes: 1,
        puts: 1,
        waiting: 0,
        writers: 0,
        torn: vec![(1, 2)],
    };
    let part = Part {
        name: name.clone(),
        offset: 0,
        length: 1,
    };
    let source = Source {
        at: Some(
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
                .parse()
                .unwrap(),
        ),
        name: name.clone(),
        offset: 0,
        length: 1,
    };
    let text = "w".repeat(10_000);
    let many = Stat {
        torn: vec![(1, 2); 1000],
        ..stat.clone()
    };
    for message in [
        Message::Listing(vec![stat; LIST_MAX]),
        Message::Region(many),
        Message::Put(part.clone(), 1, Some(vec![1; INLINE_BYTES_MAX])),
        Message::Sum(part, 1, vec![source; SOURCES_MAX]),
        Message::Failed(Error::new(
            Code::Corrupt,
            Entity::Region(name),
            &text,
            &text,
        )),
    ] {
        let bytes = message.bytes();
        assert!(bytes.len() <= outlive_network::channel::MESSAGE_BYTES_MAX);
        assert!(Message::parse(&bytes).is_ok());
    }
}

#[test]
fn names_and_chunks_are_bounded() {
    for bad in ["", "a\nb", "\u{7f}", &"n".repeat(NAME_BYTES_MAX + 1)] {
        assert!(!check_name(bad));
        assert!(Message::parse(&Message::Stat(bad.into()).bytes()).is_err());
    }
    let chunk = Message::Chunk(CHUNK_BYTES as u32 + 1);
    assert!(Message::parse(&chunk.bytes()).is_err());
    let inline = Message::Push("r".into(), 1, 1, Some(vec![0; INLINE_BYTES_MAX + 1]));
    assert!(Message::parse(&inline.bytes()).is_err());
}
