//! The core's single rules, one test each; the laws together are simulated in [`crate::simulation`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailpost_outbox::{AggregateKey, HeaderValue, Mapped, Message, headers};
use tokio::time::Instant;

use crate::budget::Share;
use crate::core::{Core, Loss};
use crate::{Options, Order, Outcome, Seq};

fn mapped(aggregate: u64, id: &str) -> Mapped {
    Mapped {
        message: Message {
            exchange: "events".into(),
            routing_key: String::new(),
            message_id: id.into(),
            event_type: None,
            content_type: None,
            timestamp: None,
            headers: vec![(headers::POSITION.into(), HeaderValue::Text("0/1:0".into()))],
            body: Bytes::new(),
        },
        aggregate: Some(AggregateKey(aggregate)),
        aggregate_label: Arc::from(format!("order/{aggregate}")),
    }
}

/// A core with one transaction read, of one event for each aggregate given; ends at position 1.
fn core(options: Options, aggregates: &[u64]) -> (Core<u64>, Instant) {
    let now = Instant::now();
    let mut core = Core::new(options, now);
    core.begin();
    for (index, aggregate) in aggregates.iter().enumerate() {
        core.event(mapped(*aggregate, &index.to_string()), Share::default());
    }
    core.end(1, false, now);
    (core, now)
}

fn publish_all(core: &mut Core<u64>, now: Instant) -> Vec<(Seq, String)> {
    std::iter::from_fn(|| core.next_publish(now))
        .map(|(seq, message)| (seq, message.message_id.to_string()))
        .collect()
}

fn ids(published: &[(Seq, String)]) -> Vec<&str> {
    published.iter().map(|(_, id)| id.as_str()).collect()
}

fn returned(seq: Seq) -> Outcome {
    Outcome::Returned {
        seq,
        reason: "NO_ROUTE".into(),
    }
}

#[test]
fn law_4_a_returned_event_holds_its_aggregate_and_no_other() {
    let (mut core, now) = core(Options::default(), &[1, 1, 2]);
    let published = publish_all(&mut core, now);
    assert_eq!(ids(&published), ["0", "2"]);
    core.outcome(returned(published[0].0), now);
    core.outcome(Outcome::Confirmed(published[1].0), now);
    assert!(
        publish_all(&mut core, now).is_empty(),
        "it backs off, and its next waits"
    );
    let again = publish_all(&mut core, now + Duration::from_millis(250));
    assert_eq!(ids(&again), ["0"]);
    core.outcome(Outcome::Confirmed(again[0].0), now);
    assert_eq!(ids(&publish_all(&mut core, now)), ["1"]);
}

#[test]
fn law_9_a_second_or_foreign_confirm_moves_nothing() {
    let (mut core, now) = core(Options::default(), &[1, 2]);
    let published = publish_all(&mut core, now);
    assert!(core.sink_lost(Loss::Connection, "closed", now).is_none());
    core.outcome(Outcome::Confirmed(published[0].0), now);
    core.outcome(Outcome::Confirmed(99), now);
    assert_eq!((core.unsettled(), core.ledger.take_due(now, true)), (2, None));
    let again = publish_all(&mut core, now);
    assert_eq!(
        ids(&again),
        ["0", "1"],
        "all unconfirmed goes again, from the oldest"
    );
    core.outcome(Outcome::Confirmed(again[1].0), now);
    core.outcome(Outcome::Confirmed(again[1].0), now);
    assert_eq!((core.unsettled(), core.ledger.take_due(now, true)), (1, None));
}

#[test]
fn law_2_a_keepalive_behind_an_unsettled_event_waits_for_it() {
    let (mut core, now) = core(Options::default(), &[1]);
    core.keepalive(7, true, now);
    assert_eq!(core.ledger.take_due(now, true), None);
    let published = publish_all(&mut core, now);
    core.outcome(Outcome::Confirmed(published[0].0), now);
    assert_eq!(core.ledger.take_due(now, false), Some(7));
}

#[test]
fn law_2_a_keepalive_inside_a_transaction_moves_nothing() {
    let (mut core, now) = core(Options::default(), &[]);
    assert_eq!(core.ledger.take_due(now, true), Some(1));
    core.ledger.stored();
    core.begin();
    core.keepalive(7, true, now);
    assert_eq!(core.ledger.take_due(now, true), None);
}

#[test]
fn the_open_transactions_rows_leave_when_the_source_is_lost() {
    let (mut core, now) = core(Options::default(), &[1]);
    core.begin();
    core.event(mapped(1, "held"), Share::default());
    core.event(mapped(2, "flying"), Share::default());
    let published = publish_all(&mut core, now);
    assert_eq!(ids(&published), ["0", "flying"]);
    core.abandon_open_transaction(now);
    assert_eq!(
        (core.unsettled(), core.in_flight()),
        (1, 2),
        "the orphan keeps its place in the window"
    );
    core.begin();
    core.event(mapped(1, "held"), Share::default());
    core.event(mapped(2, "flying"), Share::default());
    core.end(2, false, now);
    core.outcome(Outcome::Confirmed(published[0].0), now);
    assert!(
        publish_all(&mut core, now).is_empty(),
        "the same row is in flight still"
    );
    core.outcome(Outcome::Confirmed(published[1].0), now);
    assert_eq!(ids(&publish_all(&mut core, now)), ["held", "flying"]);
    assert_eq!(
        core.ledger.take_due(now, true),
        Some(1),
        "an orphan's confirm settles nothing"
    );
}

#[test]
fn intake_stops_at_max_ahead_and_names_the_aggregate_that_holds() {
    let options = Options {
        max_ahead: 2,
        ..Options::default()
    };
    let (mut core, now) = core(options, &[1, 2, 3]);
    let published = publish_all(&mut core, now);
    core.outcome(returned(published[0].0), now);
    core.outcome(Outcome::Confirmed(published[1].0), now);
    assert!(core.accepts());
    assert_eq!(core.holding(false), None);
    core.outcome(Outcome::Confirmed(published[2].0), now);
    assert!(!core.accepts());
    let holding = core.holding(false).expect("a reason");
    assert!(
        holding.contains("order/1") && holding.contains("NO_ROUTE"),
        "{holding}"
    );
}

#[test]
fn a_confirm_is_overdue_after_its_time_out_but_not_while_the_broker_blocks() {
    let options = Options {
        confirm_timeout: Duration::from_secs(60),
        ..Options::default()
    };
    let (mut core, now) = core(options, &[1]);
    publish_all(&mut core, now);
    let late = now + Duration::from_secs(60);
    assert!(!core.confirm_is_overdue(late - Duration::from_millis(1)));
    assert!(core.confirm_is_overdue(late));
    core.outcome(
        Outcome::Blocked {
            reason: "memory".into(),
        },
        now,
    );
    assert!(!core.confirm_is_overdue(now + Duration::from_secs(3600)));
    core.outcome(Outcome::Unblocked, now + Duration::from_secs(3600));
    assert!(!core.confirm_is_overdue(now + Duration::from_secs(3659)));
    assert!(core.confirm_is_overdue(now + Duration::from_secs(3660)));
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let options = Options {
        in_flight: 2,
        ..Options::default()
    };
    let (mut core, now) = core(options, &[1, 2, 3]);
    let published = publish_all(&mut core, now);
    assert_eq!(ids(&published), ["0", "1"]);
    core.outcome(Outcome::Confirmed(published[1].0), now);
    assert_eq!(ids(&publish_all(&mut core, now)), ["2"]);
}

#[test]
fn a_message_that_closes_the_channel_three_times_while_alone_is_poison() {
    let (mut core, mut now) = core(Options::default(), &[1, 2]);
    publish_all(&mut core, now);
    assert!(core.sink_lost(Loss::Poisonous, "406", now).is_none());
    let first = publish_all(&mut core, now);
    assert_eq!(ids(&first), ["0"], "each goes alone");
    core.outcome(Outcome::Confirmed(first[0].0), now);
    for round in 1..=3 {
        now += Duration::from_secs(10);
        assert_eq!(ids(&publish_all(&mut core, now)), ["1"]);
        let poison = core.sink_lost(Loss::Poisonous, "406", now);
        assert_eq!(poison.is_some(), round == 3, "round {round}");
    }
}

#[test]
fn a_message_to_a_missing_exchange_backs_off_and_the_others_flow() {
    let (mut core, now) = core(Options::default(), &[1, 2]);
    publish_all(&mut core, now);
    assert!(core.sink_lost(Loss::Message, "404", now).is_none());
    assert_eq!(ids(&publish_all(&mut core, now)), ["0"]);
    assert!(core.sink_lost(Loss::Message, "404", now).is_none());
    let next = publish_all(&mut core, now);
    assert_eq!(ids(&next), ["1"], "the culprit waits");
    core.outcome(Outcome::Confirmed(next[0].0), now);
    assert_eq!(ids(&publish_all(&mut core, now + Duration::from_secs(5))), ["0"]);
}

#[test]
fn law_8_no_more_than_a_quarter_of_the_bound_is_in_flight_but_one_message_always() {
    let now = Instant::now();
    let mut core = Core::new(
        Options {
            in_flight_bytes: 400,
            ..Options::default()
        },
        now,
    );
    core.begin();
    for aggregate in 0..4 {
        let mut large = mapped(aggregate, &aggregate.to_string());
        large.message.body = Bytes::from(vec![0; if aggregate < 3 { 60 } else { 4000 }]);
        core.event(large, Share::default());
    }
    core.end(1u64, false, now);
    let first = publish_all(&mut core, now);
    assert_eq!(ids(&first), ["0", "1"]);
    core.outcome(Outcome::Confirmed(first[0].0), now);
    assert_eq!(ids(&publish_all(&mut core, now)), ["2"]);
    core.outcome(Outcome::Confirmed(first[1].0), now);
    core.outcome(Outcome::Confirmed(first[1].0 + 1), now);
    assert_eq!(
        ids(&publish_all(&mut core, now)),
        ["3"],
        "larger than the bound, it goes alone"
    );
}

#[test]
fn law_4_in_commit_order_nothing_overtakes_a_message_to_a_missing_exchange() {
    let (mut core, mut now) = core(
        Options {
            order: Order::Commit,
            ..Options::default()
        },
        &[1, 2],
    );
    publish_all(&mut core, now);
    for _ in 0..5 {
        assert!(core.sink_lost(Loss::Message, "404", now).is_none());
        now += Duration::from_secs(3);
        assert_eq!(ids(&publish_all(&mut core, now)), ["0"]);
    }
}

#[test]
fn rows_that_left_with_their_source_are_not_ahead_of_anything() {
    let (mut core, now) = core(
        Options {
            max_ahead: 3,
            ..Options::default()
        },
        &[1],
    );
    let published = publish_all(&mut core, now);
    core.outcome(returned(published[0].0), now);
    for _ in 0..3 {
        core.begin();
        core.event(mapped(2, "again"), Share::default());
        core.event(mapped(3, "again"), Share::default());
        core.abandon_open_transaction(now);
    }
    assert!(core.accepts() && core.ahead() == 0, "{} ahead", core.ahead());
}
