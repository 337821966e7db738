//! Properties over generated messages and over arbitrary bytes.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use tailpost_pgoutput::{
    DecodeError, Lsn, Message, OldTuple, Relation, RelationColumn, ReplicaIdentity, ReplicationMessage,
    StandbyStatus, Tag, Tuple, TupleValue, decode_bytea, peek_change,
};

use crate::encoder::encode;

fn lsn() -> impl Strategy<Value = Lsn> {
    any::<u64>().prop_map(Lsn)
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

/// The wire's empty namespace reads as `pg_catalog`.
fn namespace() -> impl Strategy<Value = String> {
    prop_oneof![Just("pg_catalog".to_owned()), "[^\0]{1,12}"]
}

fn content() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = TupleValue> {
    prop_oneof![
        Just(TupleValue::Null),
        Just(TupleValue::Unchanged),
        content().prop_map(TupleValue::Text),
        content().prop_map(TupleValue::Binary),
    ]
}

fn tuple() -> impl Strategy<Value = Tuple> {
    vec(value(), 0..12)
}

fn old() -> impl Strategy<Value = OldTuple> {
    prop_oneof![tuple().prop_map(OldTuple::Key), tuple().prop_map(OldTuple::Full)]
}

fn relation() -> impl Strategy<Value = Relation> {
    let identity = prop_oneof![
        Just(ReplicaIdentity::Default),
        Just(ReplicaIdentity::Nothing),
        Just(ReplicaIdentity::Full),
        Just(ReplicaIdentity::Index),
    ];
    let column = (any::<bool>(), name(), any::<u32>(), any::<i32>()).prop_map(
        |(is_key, name, type_oid, type_modifier)| RelationColumn {
            is_key,
            name,
            type_oid,
            type_modifier,
        },
    );
    (any::<u32>(), namespace(), name(), identity, vec(column, 0..12)).prop_map(
        |(id, namespace, name, replica_identity, columns)| Relation {
            id,
            namespace,
            name,
            replica_identity,
            columns,
        },
    )
}

fn change() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u32>(), tuple()).prop_map(|(relation_id, new)| Message::Insert { relation_id, new }),
        (any::<u32>(), proptest::option::of(old()), tuple()).prop_map(|(relation_id, old, new)| {
            Message::Update {
                relation_id,
                old,
                new,
            }
        }),
        (any::<u32>(), old()).prop_map(|(relation_id, old)| Message::Delete { relation_id, old }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (lsn(), any::<i64>(), any::<u32>()).prop_map(|(final_lsn, timestamp, xid)| Message::Begin {
            final_lsn,
            timestamp,
            xid
        }),
        (any::<u8>(), lsn(), lsn(), any::<i64>()).prop_map(|(flags, commit_lsn, end_lsn, timestamp)| {
            Message::Commit {
                flags,
                commit_lsn,
                end_lsn,
                timestamp,
            }
        }),
        (lsn(), name()).prop_map(|(commit_lsn, name)| Message::Origin { commit_lsn, name }),
        relation().prop_map(Message::Relation),
        (any::<u32>(), namespace(), name()).prop_map(|(id, namespace, name)| Message::Type {
            id,
            namespace,
            name
        }),
        change(),
        (vec(any::<u32>(), 0..8), any::<bool>(), any::<bool>()).prop_map(
            |(relation_ids, cascade, restart_identity)| Message::Truncate {
                relation_ids,
                cascade,
                restart_identity
            }
        ),
        (any::<bool>(), lsn(), name(), content()).prop_map(|(transactional, lsn, prefix, content)| {
            Message::Message {
                transactional,
                lsn,
                prefix,
                content,
            }
        }),
    ]
}

/// Arbitrary bytes behind a known tag, so that they reach every reader.
fn tagged_bytes() -> impl Strategy<Value = Vec<u8>> {
    let tag = proptest::sample::select(b"BCORYIUDTMwk".as_slice());
    (
        tag,
        vec(
            prop_oneof![any::<u8>(), Just(0), Just(1), Just(b'N'), Just(b't'), Just(0xFF)],
            0..80,
        ),
    )
        .prop_map(|(tag, rest)| [vec![tag], rest].concat())
}

proptest! {
    #[test]
    fn every_message_reads_back_as_it_was_written(message in message()) {
        prop_assert_eq!(Message::parse(&encode(&message)), Ok(message));
    }

    #[test]
    fn every_truncation_and_every_extension_is_an_error(message in message(), tail in vec(any::<u8>(), 1..5)) {
        let bytes = encode(&message);
        prop_assert_eq!(Message::parse(&Bytes::new()), Err(DecodeError::Empty));
        for length in 1..bytes.len() {
            let error = Message::parse(&bytes.slice(..length)).expect_err("a part is no message");
            prop_assert!(matches!(error, DecodeError::Short { .. }), "{} at {}", error, length);
        }
        let longer = Bytes::from([&bytes[..], &tail].concat());
        let expected = DecodeError::Trailing { tag: bytes[0], offset: bytes.len(), trailing: tail.len() };
        prop_assert_eq!(Message::parse(&longer), Err(expected));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop_oneof![vec(any::<u8>(), 0..80), tagged_bytes()]) {
        let bytes = Bytes::from(bytes);
        let parsed = Message::parse(&bytes);
        if let (Some((_, peeked)), Ok(message)) = (peek_change(&bytes), &parsed) {
            prop_assert_eq!(Some(peeked), relation_id(message));
        }
        // Whatever is refused must also be showable.
        let shown = format!("{parsed:?} {:?}", ReplicationMessage::parse(bytes.clone()));
        prop_assert!(!shown.is_empty());
        if let Err(error) = decode_bytea(&bytes) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn peek_reads_changes_from_any_cut_that_holds_the_relation(message in change(), cut in 0_usize..200) {
        let bytes = encode(&message);
        let cut = cut.min(bytes.len());
        let tag = Tag::from_byte(bytes[0]).expect("a known tag");
        let expected = (cut >= 5).then(|| (tag, relation_id(&message).expect("a change")));
        prop_assert_eq!(peek_change(&bytes[..cut]), expected);
    }

    #[test]
    fn peek_sees_nothing_in_other_messages(message in message()) {
        prop_assume!(relation_id(&message).is_none());
        prop_assert_eq!(peek_change(&encode(&message)), None);
    }

    #[test]
    fn row_values_lie_in_the_input(tuple in tuple()) {
        let bytes = encode(&Message::Insert { relation_id: 1, new: tuple });
        let Ok(Message::Insert { new, .. }) = Message::parse(&bytes) else { panic!("an insert") };
        for value in new {
            let (TupleValue::Text(value) | TupleValue::Binary(value)) = value else { continue };
            prop_assert!(value.is_empty() || bytes.as_ptr_range().contains(&value.as_ptr()));
        }
    }

    #[test]
    fn lsn_reads_back_as_it_was_printed(lsn in lsn()) {
        prop_assert_eq!(lsn.to_string().parse(), Ok(lsn));
        prop_assert_eq!(lsn.to_string().to_lowercase().parse(), Ok(lsn));
    }

    #[test]
    fn bytea_reads_back_whatever_the_case(bytes in vec(any::<u8>(), 0..300), upper in any::<bool>()) {
        let digits: String = bytes
            .iter()
            .map(|byte| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") })
            .collect();
        prop_assert_eq!(decode_bytea(format!("\\x{digits}").as_bytes()), Ok(Bytes::from(bytes)));
    }

    #[test]
    fn bytea_names_the_first_bad_digit(good in "[0-9a-fA-F]{0,20}", bad in "[^0-9a-fA-F]", rest in "[ -~]{0,9}") {
        let mut text = format!("\\x{good}{bad}{rest}");
        if !text.len().is_multiple_of(2) {
            text.push('0');
        }
        prop_assert_eq!(decode_bytea(text.as_bytes()), Err(DecodeError::ByteaBadDigit { offset: good.len() + 2 }));
    }

    #[test]
    fn standby_status_takes_34_bytes_and_keeps_its_fields_apart(
        (write, flush, apply) in (lsn(), lsn(), lsn()), clock in any::<i64>(), reply in any::<bool>(),
    ) {
        let mut buffer = BytesMut::new();
        StandbyStatus { write, flush, apply, clock, reply }.encode(&mut buffer);
        let expected = [
            b"r", &write.0.to_be_bytes()[..], &flush.0.to_be_bytes(), &apply.0.to_be_bytes(),
            &clock.to_be_bytes(), &[u8::from(reply)],
        ].concat();
        prop_assert_eq!(buffer.len(), 34);
        prop_assert_eq!(&buffer[..], &expected[..]);
    }
}

fn relation_id(message: &Message) -> Option<u32> {
    match message {
        Message::Insert { relation_id, .. }
        | Message::Update { relation_id, .. }
        | Message::Delete { relation_id, .. } => Some(*relation_id),
        _ => None,
    }
}
