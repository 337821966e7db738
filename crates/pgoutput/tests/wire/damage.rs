//! Damaged bytes are an error or another message, never a panic. The seeds are all recorded messages.

use bytes::Bytes;
use tailpost_pgoutput::{Message, ReplicationMessage, peek_change};

use crate::recorded::{message_files, stream_files};
use crate::transcript::lines;

fn seeds(files: &[&str]) -> Vec<Bytes> {
    let seeds: Vec<_> = files.iter().flat_map(|file| lines(file)).collect();
    assert!(!seeds.is_empty());
    seeds
}

#[test]
fn every_truncation_of_a_recorded_message_is_an_error() {
    for seed in seeds(&message_files()) {
        for length in 0..seed.len() {
            assert!(
                Message::parse(&seed.slice(..length)).is_err(),
                "tag {} at {length}",
                seed[0]
            );
        }
    }
}

#[test]
fn no_truncation_of_a_recorded_payload_panics() {
    for seed in seeds(&stream_files()) {
        for length in 0..seed.len() {
            if let Ok(ReplicationMessage::XLogData { data, .. }) =
                ReplicationMessage::parse(seed.slice(..length))
            {
                assert!(Message::parse(&data).is_err());
            }
        }
    }
}

#[test]
fn no_flipped_byte_panics() {
    let all = [&message_files()[..], &stream_files()].concat();
    for seed in seeds(&all) {
        let mut bytes = seed.to_vec();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF] {
                bytes[at] ^= flip;
                read_all(Bytes::copy_from_slice(&bytes));
                bytes[at] ^= flip;
            }
        }
    }
}

/// Reads bytes in every way there is. The results don't matter, but what is refused must name its fault.
fn read_all(bytes: Bytes) {
    let refusals = [
        Message::parse(&bytes).err(),
        ReplicationMessage::parse(bytes.clone()).err(),
    ];
    for error in refusals.into_iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
    if let Some((tag, _)) = peek_change(&bytes) {
        assert!(bytes.len() >= 5, "{tag:?}");
    }
}
