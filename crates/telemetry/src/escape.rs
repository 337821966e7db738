//! Makes text from outside harmless in a line of output (CWE-117): what would end the line, steer a terminal, or turn
//! the direction of what follows is shown as its code.

use std::borrow::Cow;
use std::fmt::Write;

fn is_harmful(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{2028}' | '\u{2029}' // line and paragraph separator
            | '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' // Unicode's Bidi_Control
        )
}

fn escaped(text: &str, mut show: impl FnMut(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_harmful(char) {
            show(&mut out, char)
        } else {
            out.push(char)
        }
    }
    Cow::Owned(out)
}

/// `text` with harmful characters as Rust writes them: `\n`, `\u{1b}`.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |out, char| out.extend(char.escape_default()))
}

/// A JSON document on one line, with harmful characters as JSON writes them: `\u001b`. They can stand in strings only,
/// so it means the same.
pub(crate) fn json(document: &str) -> Cow<'_, str> {
    escaped(document, |out, char| {
        let mut units = [0; 2];
        for unit in char.encode_utf16(&mut units) {
            // Writing to a string does not fail.
            let written = write!(out, "\\u{unit:04x}");
            debug_assert!(written.is_ok());
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn line_ends_terminal_codes_and_direction_marks_are_shown_as_codes() {
        assert_eq!(
            plain("a\nb\r\t\x1b[2J\u{9b}\u{202e}\u{2028}ü→"),
            "a\\nb\\r\\t\\u{1b}[2J\\u{9b}\\u{202e}\\u{2028}ü→"
        );
        assert_eq!(json("\"\u{9b}\u{202e}\u{7f}ü\""), "\"\\u009b\\u202e\\u007fü\"");
        assert!(matches!(plain("harmless ü→"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left(text in any::<String>()) {
            prop_assert!(!plain(&text).contains(is_harmful));
        }

        #[test]
        fn escaped_json_means_the_same(text in any::<String>()) {
            let document = serde_json::to_string(&text).unwrap();
            let escaped = json(&document);
            prop_assert!(!escaped.contains(is_harmful));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }
    }
}
