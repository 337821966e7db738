use bytes::{BufMut, BytesMut};

use super::*;

const INT8: u32 = 20;
const TEXT: u32 = 25;
const BYTEA: u32 = 17;

fn changes() -> Changes {
    Changes::new(Arc::new(Progress::default()))
}

fn begin(commit: u64) -> Bytes {
    let mut bytes = BytesMut::from(&b"B"[..]);
    bytes.put_u64(commit);
    bytes.put_i64(0);
    bytes.put_u32(7);
    bytes.freeze()
}

fn commit(commit: u64, end: u64) -> Bytes {
    let mut bytes = BytesMut::from(&b"C\0"[..]);
    bytes.put_u64(commit);
    bytes.put_u64(end);
    bytes.put_i64(0);
    bytes.freeze()
}

fn relation(id: u32, name: &str, columns: &[(&str, u32)]) -> Bytes {
    let mut bytes = BytesMut::from(&b"R"[..]);
    bytes.put_u32(id);
    bytes.put_slice(b"public\0");
    bytes.put_slice(name.as_bytes());
    bytes.put_slice(b"\0d");
    bytes.put_u16(u16::try_from(columns.len()).expect("few"));
    for (name, oid) in columns {
        bytes.put_u8(0);
        bytes.put_slice(name.as_bytes());
        bytes.put_u8(0);
        bytes.put_u32(*oid);
        bytes.put_i32(-1);
    }
    bytes.freeze()
}

/// A change with a new tuple of `(kind, text)`.
fn change(tag: u8, id: u32, values: &[(u8, &[u8])]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(tag);
    bytes.put_u32(id);
    bytes.put_u8(b'N');
    bytes.put_u16(u16::try_from(values.len()).expect("few"));
    for (kind, text) in values {
        bytes.put_u8(*kind);
        if !matches!(kind, b'n' | b'u') {
            bytes.put_u32(u32::try_from(text.len()).expect("short"));
            bytes.put_slice(text);
        }
    }
    bytes.freeze()
}

/// Announces relation 1, ours, and 2, which is not.
fn announce(changes: &mut Changes) {
    for (id, ours) in [(1, true), (2, false)] {
        let bytes = relation(
            id,
            "outbox_event",
            &[("id", INT8), ("payload", TEXT), ("raw", BYTEA)],
        );
        match changes.take(Lsn(1), bytes).expect("understood") {
            Change::Announced(relation) => changes.announce(relation, ours),
            other => panic!("no announcement: {other:?}"),
        }
    }
}

const ROW: &[(u8, &[u8])] = &[(b't', b"5"), (b't', b"{\"a\": 1.10}"), (b't', b"\\x00ff")];

fn row(change: Change) -> Row {
    match change {
        Change::Item(Item::Row(row)) => row,
        other => panic!("no row: {other:?}"),
    }
}

#[test]
fn a_transaction_becomes_begin_rows_and_the_place_after_its_commit() {
    let mut changes = changes();
    assert!(matches!(
        changes.take(Lsn(0), begin(100)),
        Ok(Change::Item(Item::Begin))
    ));
    announce(&mut changes);
    let first = row(changes.take(Lsn(50), change(b'I', 1, ROW)).expect("a row"));
    assert!(matches!(
        changes.take(Lsn(60), change(b'I', 2, ROW)),
        Ok(Change::Nothing)
    ));
    let second = row(changes.take(Lsn(70), change(b'I', 1, ROW)).expect("a row"));
    assert_eq!(
        (first.position().as_str(), second.position().as_str()),
        ("0/64:0", "0/64:1")
    );
    assert!(Arc::ptr_eq(&first.table, &second.table) && Arc::ptr_eq(&first.transaction, &second.transaction));
    assert_eq!(
        first.values,
        [
            Value::Text(Bytes::from_static(b"5")),
            Value::Text(Bytes::from_static(b"{\"a\": 1.10}")),
            Value::Binary(Bytes::from_static(&[0x00, 0xFF])),
        ]
    );
    assert!(matches!(
        changes.take(Lsn(100), commit(100, 130)),
        Ok(Change::End(Lsn(130)))
    ));
}

#[test]
fn a_null_and_an_empty_text_stay_apart() {
    let mut changes = changes();
    changes.take(Lsn(0), begin(100)).expect("understood");
    announce(&mut changes);
    let row = row(changes
        .take(
            Lsn(50),
            change(b'I', 1, &[(b'n', b""), (b't', b""), (b't', b"\\x")]),
        )
        .expect("a row"));
    assert_eq!(
        row.values,
        [
            Value::Null,
            Value::Text(Bytes::new()),
            Value::Binary(Bytes::new())
        ]
    );
}

#[test]
fn a_foreign_table_is_not_even_parsed() {
    let mut changes = changes();
    changes.take(Lsn(0), begin(100)).expect("understood");
    announce(&mut changes);
    assert!(matches!(
        changes.take(Lsn(50), Bytes::from_static(b"I\0\0\0\x02garbage")),
        Ok(Change::Nothing)
    ));
}

#[test]
fn updates_deletes_and_truncates_of_outbox_tables_are_counted_and_passed() {
    let mut changes = changes();
    changes.take(Lsn(0), begin(100)).expect("understood");
    announce(&mut changes);
    for (message, ours) in [(b'U', 1), (b'U', 2), (b'D', 1), (b'D', 2)] {
        assert!(matches!(
            changes.take(Lsn(50), change(message, ours, ROW)),
            Ok(Change::Nothing)
        ));
    }
    let truncate = Bytes::from_static(b"T\0\0\0\x02\0\0\0\0\x01\0\0\0\x02");
    assert!(matches!(changes.take(Lsn(50), truncate), Ok(Change::Nothing)));
    let progress = &changes.progress;
    let passed = [
        progress.passed_updates.value(),
        progress.passed_deletes.value(),
        progress.passed_truncates.value(),
    ];
    assert_eq!(passed, [1, 1, 1]);
}

#[test]
fn an_oversized_insert_keeps_its_place_among_the_rows_and_shows_no_content() {
    let mut changes = changes();
    changes.take(Lsn(0), begin(100)).expect("understood");
    announce(&mut changes);
    let head = change(b'I', 1, &[(b't', b"secret-canary")]);
    match changes.oversized(Lsn(50), &head, 40_000_000).expect("understood") {
        Change::Item(Item::Oversized { what }) => {
            assert!(
                what.contains("public.outbox_event") && what.contains("0/64") && what.contains("40000000"),
                "{what}"
            );
            assert!(!what.contains("canary"));
        }
        other => panic!("not reported: {other:?}"),
    }
    assert_eq!(
        row(changes.take(Lsn(60), change(b'I', 1, ROW)).expect("a row")).index,
        1
    );
    assert!(matches!(
        changes.oversized(Lsn(70), &change(b'I', 2, ROW), 40_000_000),
        Ok(Change::Nothing)
    ));
    assert!(matches!(
        changes.oversized(Lsn(70), &change(b'U', 1, ROW), 40_000_000),
        Ok(Change::Nothing)
    ));
    assert!(matches!(
        changes.oversized(Lsn(70), b"M\0", 40_000_000),
        Ok(Change::Nothing)
    ));
    assert!(changes.oversized(Lsn(70), b"Z\0\0\0\0", 40_000_000).is_err());
}

/// What does not fit what was sent before it ends the stream with its place.
#[test]
fn what_does_not_fit_halts_with_its_place() {
    let open = || {
        let mut changes = changes();
        changes.take(Lsn(0), begin(100)).expect("understood");
        announce(&mut changes);
        changes
    };
    let cases: [(&str, Changes, Bytes); 9] = [
        (
            "a tag of another version",
            open(),
            Bytes::from_static(b"S\0\0\0\x01\x01"),
        ),
        ("a table never announced", open(), change(b'I', 3, ROW)),
        (
            "a value left out of an insert",
            open(),
            change(b'I', 1, &[ROW[0], (b'u', b""), ROW[2]]),
        ),
        (
            "a binary value",
            open(),
            change(b'I', 1, &[ROW[0], (b'b', b"x"), ROW[2]]),
        ),
        (
            "a row too short for its table",
            open(),
            change(b'I', 1, &ROW[..2]),
        ),
        (
            "a bytea in the escape format",
            open(),
            change(b'I', 1, &[ROW[0], ROW[1], (b't', b"\\000")]),
        ),
        ("a transaction inside another", open(), begin(200)),
        ("the end of another transaction", open(), commit(200, 230)),
        ("an end without a transaction", changes(), commit(100, 130)),
    ];
    for (what, mut changes, message) in cases {
        let error = changes.take(Lsn(0xAB), message).map(|_| ()).expect_err(what);
        assert!(error.to_string().contains("0/AB"), "{what}: {error}");
        assert_eq!(
            error.disposition(),
            tailpost_relay::Disposition::Halt(tailpost_relay::Cause::Unexpected),
            "{what}"
        );
    }
    let mut outside = changes();
    announce(&mut outside);
    assert!(
        outside.take(Lsn(1), change(b'I', 1, ROW)).is_err(),
        "a row outside of a transaction"
    );
}

#[test]
fn a_small_row_does_not_hold_the_read_buffer() {
    let mut changes = changes();
    changes.take(Lsn(0), begin(100)).expect("understood");
    announce(&mut changes);
    let message = change(b'I', 1, ROW);
    let mut buffer = vec![0; 1 << 20];
    buffer[..message.len()].copy_from_slice(&message);
    let buffer = Bytes::from(buffer);
    let row = row(changes
        .take(Lsn(50), buffer.slice(..message.len()))
        .expect("a row"));
    assert!(buffer.is_unique(), "the row {} holds the buffer", row.position());
}
