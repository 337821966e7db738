//! The status page: plain text, so that nothing in it can be markup.

use std::borrow::Cow;
use std::time::Duration;

use tailpost_relay::{Link, Progress};

use crate::escape;

/// Writes the page.
pub(crate) fn status(progress: &Progress, stall_after: Duration) -> String {
    let readiness = progress.readiness(stall_after);
    let state = progress.state();
    let ready = match (&readiness.reason, &readiness.holder) {
        (Some(reason), _) => format!("no: {reason}"),
        (None, Some(holder)) => format!("yes, waiting for {holder}"),
        (None, None) => "yes".into(),
    };
    let last_confirm = state
        .last_confirm
        .map(|at| format!("{} s ago", at.elapsed().as_secs()));
    let text = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let number = |n: u64| n.to_string();
    let lines = [
        ("role", readiness.role.to_owned()),
        ("ready", ready),
        ("source", link(&state.source)),
        ("broker", link(&state.sink)),
        ("blocked", text(state.blocked)),
        ("received", text(state.received)),
        ("stored", text(state.stored)),
        ("last confirm", text(last_confirm)),
        ("confirmed", number(progress.confirmed.value())),
        ("in flight", number(progress.in_flight.value())),
        (
            "unsettled",
            format!(
                "{} ({} bytes)",
                progress.unsettled.value(),
                progress.unsettled_bytes.value()
            ),
        ),
        ("held", number(progress.held.value())),
        ("ahead", number(progress.ahead.value())),
        ("returned", number(progress.returned.value())),
        ("nacked", number(progress.nacked.value())),
        ("source lag", format!("{} bytes", progress.lag_bytes.value())),
        (
            "source keeps",
            format!("{} bytes", progress.retained_bytes.value()),
        ),
    ];
    let mut page = format!("tailpost {}\n\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in lines {
        let value: Cow<'_, str> = escape::plain(&value);
        page.push_str(&format!("{name:<13}{value}\n"));
    }
    page
}

fn link(link: &Link) -> String {
    match link {
        Link::Starting => "connecting".into(),
        Link::Connected => "connected".into(),
        Link::Retrying { why } => format!("retrying: {why}"),
        Link::Standby { holder } => format!("standby: {holder} holds the lock"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_on_its_line() {
        let progress = Progress::default();
        progress.update(|state| {
            state.sink = Link::Retrying {
                why: "refused\nready        yes\x1b[2J".into(),
            };
            state.source = Link::Connected;
        });
        let page = status(&progress, Duration::from_secs(60));
        assert!(
            page.contains("broker       retrying: refused\\nready        yes\\u{1b}[2J\n"),
            "{page}"
        );
        assert_eq!(page.lines().filter(|line| line.starts_with("ready")).count(), 1);
    }

    #[test]
    fn a_standby_says_whom_it_waits_for() {
        let progress = Progress::default();
        progress.update(|state| {
            state.source = Link::Standby {
                holder: "process 7 on host db1".into(),
            }
        });
        let page = status(&progress, Duration::from_secs(60));
        assert!(page.contains("role         standby\n"), "{page}");
        assert!(
            page.contains("ready        yes, waiting for process 7 on host db1\n"),
            "{page}"
        );
    }
}
