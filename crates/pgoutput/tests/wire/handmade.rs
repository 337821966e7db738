//! One message of each kind, its bytes written by hand from the manual.

use bytes::Bytes;
use tailpost_pgoutput::{
    DecodeError, Lsn, Message, OldTuple, Relation, RelationColumn, ReplicaIdentity, ReplicationMessage,
    TupleValue, peek_change,
};

const LSN_1: [u8; 8] = [0, 0, 0, 0x16, 0xB3, 0x74, 0xD8, 0x48];
const LSN_2: [u8; 8] = [0, 0, 0, 0x16, 0xB3, 0x74, 0xD8, 0x80];
const TIME: [u8; 8] = [0, 2, 0xA5, 0x8B, 0x4A, 0x5C, 0x6D, 0x7E];
const CLOCK: i64 = 0x0002_A58B_4A5C_6D7E;
const RELATION: [u8; 4] = [0, 0, 0x40, 0x01];

fn parse(parts: &[&[u8]]) -> Result<Message, DecodeError> {
    Message::parse(&parts.concat().into())
}

fn text(value: &'static str) -> TupleValue {
    TupleValue::Text(Bytes::from_static(value.as_bytes()))
}

#[test]
fn begin_is_read() {
    let begin = parse(&[b"B", &LSN_1, &TIME, &[0, 0, 2, 0xFA]]);
    assert_eq!(
        begin,
        Ok(Message::Begin {
            final_lsn: Lsn(0x16_B374_D848),
            timestamp: CLOCK,
            xid: 762
        })
    );
}

#[test]
fn commit_is_read() {
    let (commit_lsn, end_lsn) = (Lsn(0x16_B374_D848), Lsn(0x16_B374_D880));
    let commit = parse(&[b"C", &[0], &LSN_1, &LSN_2, &TIME]);
    assert_eq!(
        commit,
        Ok(Message::Commit {
            flags: 0,
            commit_lsn,
            end_lsn,
            timestamp: CLOCK
        })
    );
}

#[test]
fn origin_is_read() {
    let origin = parse(&[b"O", &LSN_1, b"elsewhere\0"]);
    assert_eq!(
        origin,
        Ok(Message::Origin {
            commit_lsn: Lsn(0x16_B374_D848),
            name: "elsewhere".to_owned()
        })
    );
}

#[test]
fn relation_is_read() {
    let id_column = [b"\x01id\0".as_slice(), &[0, 0, 0, 20], &[0xFF; 4]].concat();
    let note_column = [b"\x00note\0".as_slice(), &[0, 0, 4, 0x13], &[0, 0, 0, 44]].concat();
    let relation = parse(&[
        b"R",
        &RELATION,
        b"shop\0orders\0d",
        &[0, 2],
        &id_column,
        &note_column,
    ]);
    let columns = vec![
        RelationColumn {
            is_key: true,
            name: "id".to_owned(),
            type_oid: 20,
            type_modifier: -1,
        },
        RelationColumn {
            is_key: false,
            name: "note".to_owned(),
            type_oid: 1043,
            type_modifier: 44,
        },
    ];
    let expected = Relation {
        id: 0x4001,
        namespace: "shop".to_owned(),
        name: "orders".to_owned(),
        replica_identity: ReplicaIdentity::Default,
        columns,
    };
    assert_eq!(relation, Ok(Message::Relation(expected)));
}

#[test]
fn every_replica_identity_is_read_and_no_other() {
    let identity = |byte: u8| match parse(&[b"R", &RELATION, b"s\0t\0", &[byte, 0, 0]])? {
        Message::Relation(relation) => Ok(relation.replica_identity),
        other => panic!("{other:?}"),
    };
    assert_eq!(identity(b'd'), Ok(ReplicaIdentity::Default));
    assert_eq!(identity(b'n'), Ok(ReplicaIdentity::Nothing));
    assert_eq!(identity(b'f'), Ok(ReplicaIdentity::Full));
    assert_eq!(identity(b'i'), Ok(ReplicaIdentity::Index));
    assert_eq!(
        identity(b'x'),
        Err(DecodeError::UnexpectedMarker { tag: b'R', offset: 9 })
    );
}

#[test]
fn an_empty_namespace_is_pg_catalog() {
    let Ok(Message::Relation(relation)) = parse(&[b"R", &RELATION, b"\0pg_class\0n", &[0, 0]]) else {
        panic!("a relation");
    };
    assert_eq!(relation.namespace, "pg_catalog");
    let named = parse(&[b"Y", &[0, 0, 0, 25], b"\0text\0"]);
    let expected = Message::Type {
        id: 25,
        namespace: "pg_catalog".to_owned(),
        name: "text".to_owned(),
    };
    assert_eq!(named, Ok(expected));
}

#[test]
fn insert_is_read_with_every_kind_of_value() {
    let values = [
        b"n".as_slice(),
        b"u",
        b"t\0\0\0\x02ab",
        b"t\0\0\0\0",
        b"b\0\0\0\x01\xFF",
    ]
    .concat();
    let insert = parse(&[b"I", &RELATION, b"N", &[0, 5], &values]);
    let new = vec![
        TupleValue::Null,
        TupleValue::Unchanged,
        text("ab"),
        text(""),
        TupleValue::Binary(Bytes::from_static(&[0xFF])),
    ];
    assert_eq!(
        insert,
        Ok(Message::Insert {
            relation_id: 0x4001,
            new
        })
    );
}

#[test]
fn update_is_read_without_old_row_with_key_and_with_full_row() {
    let (old_row, new_row) = (b"\0\x01t\0\0\0\x011", b"\0\x01t\0\0\0\x012");
    let update = |old| Message::Update {
        relation_id: 0x4001,
        old,
        new: vec![text("2")],
    };
    assert_eq!(parse(&[b"U", &RELATION, b"N", new_row]), Ok(update(None)));
    let key = parse(&[b"U", &RELATION, b"K", old_row, b"N", new_row]);
    assert_eq!(key, Ok(update(Some(OldTuple::Key(vec![text("1")])))));
    let full = parse(&[b"U", &RELATION, b"O", old_row, b"N", new_row]);
    assert_eq!(full, Ok(update(Some(OldTuple::Full(vec![text("1")])))));
}

#[test]
fn delete_is_read_with_key_and_with_full_row() {
    let row = b"\0\x01t\0\0\0\x011";
    let delete = |old| {
        Ok(Message::Delete {
            relation_id: 0x4001,
            old,
        })
    };
    assert_eq!(
        parse(&[b"D", &RELATION, b"K", row]),
        delete(OldTuple::Key(vec![text("1")]))
    );
    assert_eq!(
        parse(&[b"D", &RELATION, b"O", row]),
        delete(OldTuple::Full(vec![text("1")]))
    );
}

#[test]
fn truncate_is_read_with_each_option() {
    for (options, cascade, restart_identity) in [
        (0, false, false),
        (1, true, false),
        (2, false, true),
        (3, true, true),
    ] {
        let truncate = parse(&[b"T", &[0, 0, 0, 2, options], &RELATION, &[0, 0, 0x40, 2]]);
        let relation_ids = vec![0x4001, 0x4002];
        assert_eq!(
            truncate,
            Ok(Message::Truncate {
                relation_ids,
                cascade,
                restart_identity
            })
        );
    }
}

#[test]
fn logical_message_is_read() {
    let message = parse(&[b"M", &[1], &LSN_1, b"greeting\0", &[0, 0, 0, 2], b"\0\xFF"]);
    let expected = Message::Message {
        transactional: true,
        lsn: Lsn(0x16_B374_D848),
        prefix: "greeting".to_owned(),
        content: Bytes::from_static(b"\0\xFF"),
    };
    assert_eq!(message, Ok(expected));
}

#[test]
fn xlog_data_is_read_also_when_its_data_is_cut() {
    let payload = Bytes::from([b"w".as_slice(), &LSN_1, &LSN_2, &TIME, b"I\0\0\x40\x01N"].concat());
    assert_eq!(payload.len(), ReplicationMessage::XLOG_HEADER_LEN + 6);
    let (wal_start, wal_end) = (Lsn(0x16_B374_D848), Lsn(0x16_B374_D880));
    let parsed = ReplicationMessage::parse(payload);
    let data = Bytes::from_static(b"I\0\0\x40\x01N");
    assert!(peek_change(&data).is_some_and(|(_, relation)| relation == 0x4001));
    assert_eq!(
        parsed,
        Ok(ReplicationMessage::XLogData {
            wal_start,
            wal_end,
            clock: CLOCK,
            data
        })
    );
}

#[test]
fn keepalive_is_read_and_its_every_other_length_refused() {
    let bytes = Bytes::from([b"k".as_slice(), &LSN_1, &TIME, &[1, 0]].concat());
    let keepalive = |reply_requested| ReplicationMessage::Keepalive {
        wal_end: Lsn(0x16_B374_D848),
        clock: CLOCK,
        reply_requested,
    };
    assert_eq!(ReplicationMessage::parse(bytes.slice(..18)), Ok(keepalive(true)));
    let quiet = Bytes::from([&bytes[..17], &[0]].concat());
    assert_eq!(ReplicationMessage::parse(quiet), Ok(keepalive(false)));
    let long = DecodeError::Trailing {
        tag: b'k',
        offset: 18,
        trailing: 1,
    };
    assert_eq!(ReplicationMessage::parse(bytes.clone()), Err(long));
    for length in 1..18 {
        let error = ReplicationMessage::parse(bytes.slice(..length)).expect_err("a part of a keepalive");
        assert!(matches!(error, DecodeError::Short { tag: b'k', .. }), "{error}");
    }
    assert_eq!(ReplicationMessage::parse(Bytes::new()), Err(DecodeError::Empty));
}

#[test]
fn unknown_tags_are_refused_those_of_later_protocol_versions_too() {
    for tag in *b"SEcAbPKrpxi\0" {
        assert_eq!(parse(&[&[tag], &[0; 40]]), Err(DecodeError::UnknownTag { tag }));
        let stream = ReplicationMessage::parse(Bytes::from(vec![tag; 40]));
        assert_eq!(stream, Err(DecodeError::UnknownTag { tag }));
    }
}

#[test]
fn an_unknown_kind_of_value_is_refused_where_it_stands() {
    let unknown = DecodeError::UnknownTupleKind { tag: b'I', offset: 9 };
    assert_eq!(parse(&[b"I", &RELATION, b"N", &[0, 2], b"nx"]), Err(unknown));
}

#[test]
fn an_unknown_marker_is_refused_where_it_stands() {
    let unexpected = |tag, offset| Err(DecodeError::UnexpectedMarker { tag, offset });
    let row = b"\0\x01n";
    assert_eq!(parse(&[b"I", &RELATION, b"K", row]), unexpected(b'I', 5));
    assert_eq!(parse(&[b"U", &RELATION, b"x", row]), unexpected(b'U', 5));
    assert_eq!(
        parse(&[b"U", &RELATION, b"K", row, b"K", row]),
        unexpected(b'U', 9)
    );
    assert_eq!(parse(&[b"D", &RELATION, b"N", row]), unexpected(b'D', 5));
}

#[test]
fn negative_counts_and_lengths_are_refused_where_they_stand() {
    let negative = |tag, offset| Err(DecodeError::NegativeLength { tag, offset });
    assert_eq!(parse(&[b"I", &RELATION, b"N", &[0xFF, 0xFF]]), negative(b'I', 6));
    assert_eq!(
        parse(&[b"I", &RELATION, b"N\0\x01t", &[0x80, 0, 0, 0]]),
        negative(b'I', 9)
    );
    assert_eq!(
        parse(&[b"R", &RELATION, b"s\0t\0d", &[0x80, 0]]),
        negative(b'R', 10)
    );
    assert_eq!(parse(&[b"T", &[0xFF, 0xFF, 0xFF, 0xFF, 0]]), negative(b'T', 1));
    assert_eq!(
        parse(&[b"M", &[0], &LSN_1, b"p\0", &[0xFF; 4]]),
        negative(b'M', 12)
    );
}

/// The error names the place behind the count and all that is missing: the count was judged before anything was
/// allocated or read for it.
#[test]
fn a_count_beyond_the_message_is_refused_before_any_item_is_read() {
    let short = |tag, offset, needed| Err(DecodeError::Short { tag, offset, needed });
    let tables = parse(&[b"T", &[0x7F, 0xFF, 0xFF, 0xFF, 0], &RELATION]);
    assert_eq!(tables, short(b'T', 5, 0x7FFF_FFFF * 4 - 5));
    let values = parse(&[b"I", &RELATION, b"N", &[0x7F, 0xFF], b"nn"]);
    assert_eq!(values, short(b'I', 8, 0x7FFF - 2));
    let columns = parse(&[b"R", &RELATION, b"s\0t\0d", &[0x7F, 0xFF], &[0; 10]]);
    assert_eq!(columns, short(b'R', 12, 0x7FFF * 10 - 10));
    let value = parse(&[b"I", &RELATION, b"N\0\x01t", &[0x7F, 0xFF, 0xFF, 0xFF], b"abc"]);
    assert_eq!(value, short(b'I', 13, 0x7FFF_FFFF - 3));
}

#[test]
fn names_must_end_and_be_utf8() {
    assert_eq!(
        parse(&[b"O", &LSN_1, b"endless"]),
        Err(DecodeError::Short {
            tag: b'O',
            offset: 16,
            needed: 1
        })
    );
    assert_eq!(
        parse(&[b"O", &LSN_1, b"\xC3\x28\0"]),
        Err(DecodeError::NameNotUtf8 { tag: b'O', offset: 9 })
    );
}

#[test]
fn errors_name_tag_and_offset_in_words() {
    let error = parse(&[b"I", &RELATION, b"N", &[0, 2], b"nx"]).expect_err("an unknown kind");
    assert_eq!(
        error.to_string(),
        "message 'I' has a value of unknown kind at offset 9"
    );
    let error = parse(&[&[7]]).expect_err("an unknown tag");
    assert_eq!(error.to_string(), r"message with unknown tag '\x07'");
}

#[test]
fn debug_output_shows_lengths_and_no_content() {
    let secret = Bytes::from_static(b"secret");
    let row = vec![
        TupleValue::Text(secret.clone()),
        TupleValue::Binary(secret.clone()),
        TupleValue::Null,
    ];
    let shown = [
        format!(
            "{:?}",
            Message::Insert {
                relation_id: 1,
                new: row.clone()
            }
        ),
        format!(
            "{:?}",
            Message::Update {
                relation_id: 1,
                old: Some(OldTuple::Full(row.clone())),
                new: row.clone()
            }
        ),
        format!(
            "{:?}",
            Message::Delete {
                relation_id: 1,
                old: OldTuple::Key(row)
            }
        ),
        format!(
            "{:?}",
            Message::Message {
                transactional: true,
                lsn: Lsn::ZERO,
                prefix: "secret".to_owned(),
                content: secret.clone()
            }
        ),
        format!(
            "{:?}",
            ReplicationMessage::XLogData {
                wal_start: Lsn::ZERO,
                wal_end: Lsn::ZERO,
                clock: 0,
                data: secret
            }
        ),
    ];
    for text in shown {
        assert!(!text.contains("secret") && text.contains('6'), "{text}");
    }
}
