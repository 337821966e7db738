//! Bytes of real servers (testdata/record.sh) read as what testdata/scenario.sql wrote.

use tailpost_pgoutput::{EPOCH_UNIX_US, Lsn, Message, ReplicationMessage, TupleValue, decode_bytea};

use crate::transcript::{lines, transcript};

const PG15: &str = include_str!("../../testdata/pg15.hex");
const PG18: &str = include_str!("../../testdata/pg18.hex");
const ROOTS: [&str; 2] = [
    include_str!("../../testdata/pg15-roots.hex"),
    include_str!("../../testdata/pg18-roots.hex"),
];
const BINARY: [&str; 2] = [
    include_str!("../../testdata/pg15-binary.hex"),
    include_str!("../../testdata/pg18-binary.hex"),
];
const STREAM: [&str; 2] = [
    include_str!("../../testdata/pg15-stream.hex"),
    include_str!("../../testdata/pg18-stream.hex"),
];

/// All recorded `pgoutput` messages.
pub(crate) fn message_files() -> [&'static str; 6] {
    [PG15, PG18, ROOTS[0], ROOTS[1], BINARY[0], BINARY[1]]
}

/// All recorded `CopyData` payloads.
pub(crate) fn stream_files() -> [&'static str; 2] {
    STREAM
}

fn messages(file: &str) -> Vec<Message> {
    lines(file)
        .iter()
        .map(|line| Message::parse(line).expect("a server's own bytes"))
        .collect()
}

/// The transcript was compared with the scenario by eye when it was written.
#[test]
fn bytes_of_both_servers_read_as_the_scenario_wrote_them() {
    let expected = include_str!("../../testdata/scenario.txt");
    for file in [PG15, PG18] {
        let read = transcript(&messages(file));
        for (line, (read, expected)) in read.lines().zip(expected.lines()).enumerate() {
            assert_eq!(read, expected, "line {}", line + 1);
        }
        assert_eq!(read.lines().count(), expected.lines().count());
    }
}

#[test]
fn recorded_begin_and_commit_agree_on_position_and_time() {
    const YEAR_2024_US: i64 = 1_704_067_200_000_000;
    for file in message_files() {
        let (mut open, mut last_end, mut transactions) = (None, Lsn::ZERO, 0);
        for message in messages(file) {
            match message {
                Message::Begin {
                    final_lsn,
                    timestamp,
                    xid,
                } => {
                    assert!(xid > 0 && open.replace((final_lsn, timestamp)).is_none());
                }
                Message::Commit {
                    commit_lsn,
                    end_lsn,
                    timestamp,
                    ..
                } => {
                    assert_eq!(open.take(), Some((commit_lsn, timestamp)));
                    assert!(last_end < commit_lsn && commit_lsn < end_lsn);
                    assert!(timestamp + EPOCH_UNIX_US > YEAR_2024_US);
                    (last_end, transactions) = (end_lsn, transactions + 1);
                }
                _ => assert!(open.is_some(), "outside of a transaction: {message:?}"),
            }
        }
        assert!(open.is_none() && transactions > 0);
    }
}

#[test]
fn recorded_bytea_decodes_to_the_bytes_that_were_inserted() {
    for file in [PG15, PG18] {
        let values: Vec<_> = messages(file)
            .into_iter()
            .filter_map(column_13_of_every)
            .collect();
        let decoded: Vec<_> = values
            .iter()
            .map(|value| decode_bytea(value).expect("hex format"))
            .collect();
        assert_eq!(decoded, [b"\0\xFF\\'".as_slice(), b""]);
    }
}

/// `c_bytea` of `shop.every`, unless it is NULL.
fn column_13_of_every(message: Message) -> Option<bytes::Bytes> {
    let Message::Insert { new, .. } = message else {
        return None;
    };
    match new.get(13)? {
        TupleValue::Text(value) => Some(value.clone()),
        _ => None,
    }
}

/// Both relations are sent, the row names the root.
#[test]
fn a_partition_published_via_its_root_names_the_root() {
    for file in ROOTS {
        let read = transcript(&messages(file));
        let expected = "begin\n\
            relation shop.parted Default id*:20 note:25\n\
            relation shop.parted_low Default id*:20 note:25\n\
            insert shop.parted id=\"5\" note=\"in the low part\"\n\
            commit flags=0\n";
        assert_eq!(read, expected);
    }
}

#[test]
fn values_of_a_binary_stream_are_marked_as_binary() {
    for file in BINARY {
        let read = transcript(&messages(file));
        let row = read
            .lines()
            .find(|line| line.starts_with("insert"))
            .expect("a row");
        assert!(
            row.contains(r"c_bool=<\x01>") && row.contains(r"c_bytea=<\x00\xff\\\'>"),
            "{row}"
        );
        assert!(row.contains(r#"c_jsonb=<\x01{"#), "{row}");
    }
}

#[test]
fn recorded_copy_data_holds_keepalives_and_one_message_each() {
    for file in STREAM {
        let mut kinds = Vec::new();
        for payload in lines(file) {
            match ReplicationMessage::parse(payload).expect("a server's own bytes") {
                ReplicationMessage::Keepalive { wal_end, clock, .. } => {
                    assert!(wal_end > Lsn::ZERO && clock > 0);
                    kinds.push("keepalive");
                }
                ReplicationMessage::XLogData {
                    wal_start,
                    wal_end,
                    data,
                    ..
                } => {
                    assert_eq!(wal_start, wal_end);
                    match Message::parse(&data).expect("a server's own bytes") {
                        Message::Begin { final_lsn, .. } => assert!(wal_start < final_lsn),
                        Message::Relation(_) => assert_eq!(wal_start, Lsn::ZERO),
                        Message::Commit { end_lsn, .. } => assert_eq!(wal_start, end_lsn),
                        _ => {}
                    }
                    kinds.push("data");
                }
            }
        }
        assert_eq!(kinds, ["keepalive", "data", "data", "data", "data", "keepalive"]);
    }
}
