//! The aggregate: the hash that orders its events, and its name as an operator reads it. Also how any text from a row is
//! made fit for a log line.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::AggregateKey;

/// Characters of a label, at most; an escape counts as its characters.
pub(crate) const LABEL_CHARS: usize = 200;

/// Hashes the pair. A `str` hashes with an end mark, so `("ab", "c")` and `("a", "bc")` differ.
pub(crate) fn aggregate_key(aggregate_type: Option<&str>, aggregate_id: &str) -> AggregateKey {
    let mut hasher = DefaultHasher::new();
    (aggregate_type, aggregate_id).hash(&mut hasher);
    AggregateKey(hasher.finish())
}

/// Writes `order/4711` into `label`, which it empties first.
pub(crate) fn write_label(label: &mut String, aggregate_type: Option<&str>, aggregate_id: Option<&str>) {
    label.clear();
    let mut left = LABEL_CHARS;
    let parts = [aggregate_type, aggregate_id.map(|_| "/"), aggregate_id];
    for part in parts.into_iter().flatten() {
        if !push_escaped(label, part, &mut left) {
            return;
        }
    }
}

/// Escapes a text from a row for a log line: control, format and other invisible characters, and the backslash. Cut at
/// `max` characters, the last of which is then `…`.
pub(crate) fn escaped(text: &str, max: usize) -> String {
    let mut out = String::new();
    let mut left = max;
    push_escaped(&mut out, text, &mut left);
    out
}

/// Appends `text` as long as `left` characters suffice. Returns false when it was cut.
fn push_escaped(out: &mut String, text: &str, left: &mut usize) -> bool {
    if text.len() <= *left && text.bytes().all(is_plain) {
        out.push_str(text);
        *left -= text.len();
        return true;
    }
    for character in text.chars() {
        let width = width(character);
        if width > *left {
            cut(out, *left);
            return false;
        }
        *left -= width;
        if width == 1 {
            out.push(character);
        } else {
            out.extend(character.escape_debug());
        }
    }
    true
}

/// Ends a text that is too long with a mark, in place of its last character where no room is left.
fn cut(out: &mut String, left: usize) {
    if left == 0 {
        out.pop();
    }
    out.push('…');
}

fn width(character: char) -> usize {
    match character {
        '"' | '\'' => 1,
        other => other.escape_debug().len(),
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label(aggregate_type: Option<&str>, aggregate_id: Option<&str>) -> String {
        let mut label = "of the event before".to_string();
        write_label(&mut label, aggregate_type, aggregate_id);
        label
    }

    #[test]
    fn the_key_tells_where_the_type_ends() {
        assert_ne!(aggregate_key(Some("ab"), "c"), aggregate_key(Some("a"), "bc"));
        assert_ne!(aggregate_key(Some(""), "c"), aggregate_key(None, "c"));
        assert_eq!(
            aggregate_key(Some("order"), "1"),
            aggregate_key(Some("order"), "1")
        );
    }

    #[test]
    fn a_label_is_type_slash_id() {
        assert_eq!(label(Some("order"), Some("4711")), "order/4711");
        assert_eq!(label(Some("order"), None), "order");
        assert_eq!(label(None, Some("4711")), "/4711");
    }

    #[test]
    fn an_id_cannot_forge_a_log_line() {
        let forged = label(
            Some("order"),
            Some("x\n{\"level\":\"error\"}\u{1b}[2J\u{202e}\\n"),
        );
        assert_eq!(forged, "order/x\\n{\"level\":\"error\"}\\u{1b}[2J\\u{202e}\\\\n");
        assert_eq!(label(None, Some("a\\nb")), "/a\\\\nb");
    }

    #[test]
    fn a_long_label_is_cut_at_200_characters() {
        assert_eq!(escaped(&"é".repeat(200), 200), "é".repeat(200));
        assert_eq!(escaped(&"é".repeat(201), 200), format!("{}…", "é".repeat(199)));
        assert_eq!(escaped(&"x".repeat(201), 200), format!("{}…", "x".repeat(199)));
        assert_eq!(
            escaped(&format!("{}\u{1b}", "x".repeat(197)), 200),
            format!("{}…", "x".repeat(197))
        );
    }

    proptest! {
        #[test]
        fn every_label_is_one_short_printable_line(
            aggregate_type in proptest::option::of(any::<String>()),
            aggregate_id in proptest::option::of(proptest::collection::vec(any::<char>(), 0..300)),
        ) {
            let id: Option<String> = aggregate_id.map(|chars| chars.into_iter().collect());
            let label = label(aggregate_type.as_deref(), id.as_deref());
            prop_assert!(label.chars().count() <= LABEL_CHARS);
            prop_assert!(!label.chars().any(char::is_control), "{label:?}");
        }
    }
}
