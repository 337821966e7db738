//! Names in replication commands. These take no bind parameters, so every name is quoted or refused here.
//!
//! The two quoting functions leave a NUL as it is: the encoder of a query message refuses it.

use crate::Lsn;

/// The longest name that PostgreSQL keeps, bytes (`NAMEDATALEN - 1`).
const NAME_MAX: usize = 63;

/// Why a text cannot be a slot's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotNameError {
    /// No character at all.
    #[error("slot name is empty")]
    Empty,
    /// Longer than PostgreSQL keeps.
    #[error("slot name is {length} bytes long, at most 63 are allowed")]
    TooLong {
        /// Its length, bytes.
        length: usize,
    },
    /// A character that PostgreSQL refuses.
    #[error("slot name contains {character:?}, only a to z, 0 to 9 and _ are allowed")]
    BadCharacter {
        /// The first such.
        character: char,
    },
}

/// Why `START_REPLICATION` cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartReplicationError {
    /// The slot's name.
    #[error(transparent)]
    SlotName(#[from] SlotNameError),
    /// PostgreSQL 18 takes an empty list, and streams nothing for ever.
    #[error("no publication to replicate is named")]
    NoPublication,
    /// A publication cannot have an empty name.
    #[error("publication name is empty")]
    EmptyPublication,
    /// PostgreSQL would cut the name, and might find another publication by it.
    #[error("publication name is {length} bytes long, at most 63 are allowed")]
    PublicationTooLong {
        /// Its length, bytes.
        length: usize,
    },
    /// A name with a NUL would end the command early.
    #[error("publication name contains a NUL")]
    PublicationNul,
}

/// Checks a replication slot's name by PostgreSQL's own rule: 1 to 63 of `a` to `z`, `0` to `9` and `_`.
///
/// # Errors
/// Says what is wrong with it.
pub fn valid_slot_name(name: &str) -> Result<(), SlotNameError> {
    if name.is_empty() {
        return Err(SlotNameError::Empty);
    }
    let bad = |c: &char| !matches!(c, 'a'..='z' | '0'..='9' | '_');
    if let Some(character) = name.chars().find(bad) {
        return Err(SlotNameError::BadCharacter { character });
    }
    if name.len() > NAME_MAX {
        return Err(SlotNameError::TooLong { length: name.len() });
    }
    Ok(())
}

/// Quotes an identifier, always: `a"b` becomes `"a""b"`.
pub fn quote_identifier(name: &str) -> String {
    quote(name, '"')
}

/// Quotes a literal: `a'b` becomes `'a''b'`. A backslash stays as it is, which is right in replication commands, and in
/// SQL while `standard_conforming_strings` is on.
pub fn quote_literal(text: &str) -> String {
    quote(text, '\'')
}

/// Builds the command that streams `slot` from `from` with `pgoutput`, protocol version 1, text format. A publication is
/// quoted twice: as an identifier in a list, and the list as a literal.
///
/// # Errors
/// `slot` is not a slot's name, or `publications` holds none, or one that cannot be a publication's name.
pub fn start_replication(
    slot: &str,
    from: Lsn,
    publications: &[impl AsRef<str>],
) -> Result<String, StartReplicationError> {
    valid_slot_name(slot)?;
    if publications.is_empty() {
        return Err(StartReplicationError::NoPublication);
    }
    let mut names = Vec::with_capacity(publications.len());
    for name in publications {
        valid_publication_name(name.as_ref())?;
        names.push(quote_identifier(name.as_ref()));
    }
    Ok(format!(
        "START_REPLICATION SLOT {} LOGICAL {from} (proto_version '1', publication_names {})",
        quote_identifier(slot),
        quote_literal(&names.join(",")),
    ))
}

fn valid_publication_name(name: &str) -> Result<(), StartReplicationError> {
    match name.len() {
        0 => Err(StartReplicationError::EmptyPublication),
        length if length > NAME_MAX => Err(StartReplicationError::PublicationTooLong { length }),
        _ if name.contains('\0') => Err(StartReplicationError::PublicationNul),
        _ => Ok(()),
    }
}

fn quote(text: &str, mark: char) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(mark);
    for c in text.chars() {
        if c == mark {
            quoted.push(mark);
        }
        quoted.push(c);
    }
    quoted.push(mark);
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_are_doubled_and_all_else_stays() {
        assert_eq!(quote_identifier(r#"a"b'c\"#), r#""a""b'c\""#);
        assert_eq!(quote_literal(r#"a"b'c\"#), r#"'a"b''c\'"#);
        assert_eq!(
            (quote_identifier(""), quote_literal("")),
            (r#""""#.to_owned(), "''".to_owned())
        );
    }

    #[test]
    fn slot_names_are_checked_by_the_servers_rule() {
        let longest = "a".repeat(63);
        for name in ["tailpost", "_", "0", "a_1", longest.as_str()] {
            assert_eq!(valid_slot_name(name), Ok(()), "{name:?}");
        }
        let bad = |character| Err(SlotNameError::BadCharacter { character });
        for (name, character) in [
            ("a,b", ','),
            ("a\"b", '"'),
            ("a'); DROP--", '\''),
            ("Slot", 'S'),
            ("a b", ' '),
            ("a\0", '\0'),
            ("ä", 'ä'),
        ] {
            assert_eq!(valid_slot_name(name), bad(character), "{name:?}");
        }
        assert_eq!(valid_slot_name(""), Err(SlotNameError::Empty));
        assert_eq!(
            valid_slot_name(&"a".repeat(64)),
            Err(SlotNameError::TooLong { length: 64 })
        );
    }

    /// These very commands were accepted by PostgreSQL 15 and 18, and streamed these publications.
    #[test]
    fn start_replication_quotes_publications_twice() {
        let command = |publications: &[&str]| start_replication("s1", Lsn(0x1_0000_0002), publications);
        let expected = |list: &str| {
            Ok(format!(
                "START_REPLICATION SLOT \"s1\" LOGICAL 1/2 (proto_version '1', publication_names '{list}')"
            ))
        };
        assert_eq!(command(&["pub"]), expected(r#""pub""#));
        assert_eq!(command(&["a,b", "a\"b"]), expected(r#""a,b","a""b""#));
        assert_eq!(command(&["a'); DROP--"]), expected(r#""a''); DROP--""#));
        assert_eq!(command(&["UPPER c\\d"]), expected(r#""UPPER c\d""#));
        assert_eq!(command(&["häß 漢"]), expected(r#""häß 漢""#));
    }

    #[test]
    fn start_replication_refuses_names_that_the_server_would_misread() {
        let error = |slot, publications: &[&str]| {
            start_replication(slot, Lsn::ZERO, publications).expect_err("refused")
        };
        assert_eq!(error("s", &[]), StartReplicationError::NoPublication);
        assert_eq!(error("s", &["a", ""]), StartReplicationError::EmptyPublication);
        let long = "ä".repeat(32);
        assert_eq!(
            error("s", &[&long]),
            StartReplicationError::PublicationTooLong { length: 64 }
        );
        assert_eq!(error("s", &["a\0b"]), StartReplicationError::PublicationNul);
        assert_eq!(
            error("S", &["a"]),
            StartReplicationError::SlotName(SlotNameError::BadCharacter { character: 'S' })
        );
    }

    /// Reads one quoted text as the server's scanner does; returns it and what follows.
    fn unquote(text: &str, mark: char) -> (String, &str) {
        let mut rest = text.strip_prefix(mark).expect("an opening mark");
        let mut read = String::new();
        loop {
            let (part, after) = rest.split_once(mark).expect("a closing mark");
            read.push_str(part);
            match after.strip_prefix(mark) {
                Some(more) => {
                    read.push(mark);
                    rest = more;
                }
                None => return (read, after),
            }
        }
    }

    proptest! {
        #[test]
        fn no_publication_name_escapes_its_quotes(names in proptest::collection::vec("[a'\"\\\\,) ;é-]{1,20}", 1..4)) {
            let command = start_replication("s", Lsn::ZERO, &names).expect("names of the right length");
            let (_, literal) = command.split_once("publication_names ").expect("the option");
            let (list, end) = unquote(literal, '\'');
            prop_assert_eq!(end, ")");
            let mut rest = list.as_str();
            for (index, name) in names.iter().enumerate() {
                rest = if index == 0 { rest } else { rest.strip_prefix(',').expect("a comma") };
                let (read, after) = unquote(rest, '"');
                prop_assert_eq!(&read, name);
                rest = after;
            }
            prop_assert_eq!(rest, "");
        }
    }
}
