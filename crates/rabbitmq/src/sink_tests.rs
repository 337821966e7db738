//! Goal: lapin behaves as `confirms.rs` says it does, and every end of a connection is told as what it is.
//! Method: the whole sink against a broker whose every frame the test decides.

use bytes::Bytes;
use futures_util::FutureExt;
use tailpost_outbox::{HeaderValue, headers};
use tailpost_relay::{Cause, Disposition};
use tokio::time::{Duration, Instant, timeout};

use super::*;
use crate::dial::CLOSE_TIMEOUT;
use crate::scripted_broker::{Broker, Port, Published};

const PATIENCE: Duration = Duration::from_secs(20);
/// What RabbitMQ proposes.
const FRAME_MAX: u32 = 131_072;

fn message(seq: Seq, body: usize) -> Arc<Message> {
    Arc::new(Message {
        exchange: "events".into(),
        routing_key: "order.placed".into(),
        message_id: format!("m{seq}"),
        event_type: None,
        content_type: None,
        timestamp: None,
        headers: vec![(headers::POSITION.into(), HeaderValue::Text(format!("0/1:{seq}")))],
        body: Bytes::from(vec![b'c'; body]),
    })
}

async fn connected_with(frame_max: u32) -> (RabbitSink, Broker) {
    let port = Port::open().await;
    let options = SinkOptions {
        connection_name: "tailpost/test".into(),
        max_message_bytes: 1 << 20,
        exchange: None,
    };
    let mut sink = RabbitSink::new(BrokerUrls::parse(&port.url()).unwrap(), options);
    let (connected, broker) = tokio::join!(sink.connect(), port.accept(frame_max));
    connected.unwrap();
    (sink, broker)
}

async fn connected() -> (RabbitSink, Broker) {
    connected_with(FRAME_MAX).await
}

/// Publishes events `0..count`, and what arrived of them; event n has delivery tag n + 1.
async fn publish(sink: &mut RabbitSink, broker: &mut Broker, count: u64) -> Vec<Published> {
    for seq in 0..count {
        sink.publish(seq, message(seq, 3));
    }
    let mut arrived = Vec::new();
    for _ in 0..count {
        arrived.push(broker.published().await);
    }
    arrived
}

async fn outcomes(sink: &mut RabbitSink, count: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while outcomes.len() < count {
        timeout(PATIENCE, sink.next(&mut outcomes))
            .await
            .expect("an outcome")
            .unwrap();
    }
    outcomes.sort_by_key(|outcome| format!("{outcome:?}"));
    outcomes
}

async fn failure(sink: &mut RabbitSink) -> Failure {
    let mut outcomes = Vec::new();
    loop {
        if let Err(failure) = timeout(PATIENCE, sink.next(&mut outcomes)).await.expect("an end") {
            return failure;
        }
    }
}

fn blocked() -> Outcome {
    Outcome::Blocked {
        reason: "low on memory".into(),
    }
}

fn returned(seq: Seq) -> Outcome {
    Outcome::Returned {
        seq,
        reason: "NO_ROUTE".into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_leave_in_the_order_of_the_calls() {
    let (mut sink, mut broker) = connected().await;
    let arrived = publish(&mut sink, &mut broker, 500).await;
    let ids: Vec<_> = arrived.into_iter().map(|message| message.message_id).collect();
    assert_eq!(ids, (0..500).map(|seq| format!("m{seq}")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn returns_that_ride_on_other_confirms_find_their_own_events() {
    let (mut sink, mut broker) = connected().await;
    let arrived = publish(&mut sink, &mut broker, 4).await;
    // Events 0 and 2 have no route; 1 is refused. lapin hands the return of 0 to 3, and that of 2 to 1.
    broker.give_back(&arrived[0]).await;
    broker.give_back(&arrived[2]).await;
    broker.ack(4, false).await;
    broker.nack(2).await;
    broker.ack(1, false).await;
    broker.ack(3, false).await;
    let expected = [
        Outcome::Confirmed(3),
        Outcome::Nacked(1),
        returned(0),
        returned(2),
    ];
    assert_eq!(outcomes(&mut sink, 4).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_ack_for_many_tells_the_unroutable_among_them() {
    // Each time in another order: lapin walks a HashMap.
    for _ in 0..20 {
        let (mut sink, mut broker) = connected().await;
        let arrived = publish(&mut sink, &mut broker, 100).await;
        for unroutable in arrived.iter().step_by(3) {
            broker.give_back(unroutable).await;
        }
        broker.ack(100, true).await;
        let outcomes = outcomes(&mut sink, 100).await;
        assert_eq!(outcomes.len(), 100);
        for seq in 0..100 {
            let expected = if seq % 3 == 0 {
                returned(seq)
            } else {
                Outcome::Confirmed(seq)
            };
            assert!(outcomes.contains(&expected), "{expected:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_that_carries_a_strangers_return_is_held_until_its_own_can_no_longer_come() {
    let (mut sink, mut broker) = connected().await;
    let arrived = publish(&mut sink, &mut broker, 3).await;
    broker.give_back(&arrived[0]).await;
    broker.give_back(&arrived[2]).await;
    broker.ack(3, false).await;
    // Sent after the ack, so that the ack has been seen when this is.
    broker.block().await;
    assert_eq!(outcomes(&mut sink, 1).await, [blocked()]);
    broker.ack(2, true).await;
    assert_eq!(
        outcomes(&mut sink, 3).await,
        [Outcome::Confirmed(1), returned(0), returned(2)]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn return_of_a_message_never_published_halts() {
    let (mut other, mut elsewhere) = connected().await;
    other.publish(9, message(9, 3));
    let stranger = elsewhere.published().await;
    let (mut sink, mut broker) = connected().await;
    publish(&mut sink, &mut broker, 1).await;
    broker.give_back(&stranger).await;
    broker.ack(1, false).await;
    let failure = failure(&mut sink).await;
    assert_eq!(failure.disposition, Disposition::Halt(Cause::Unexpected));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_broker_is_told_waited_for_and_left_at_once() {
    let (mut sink, mut broker) = connected().await;
    broker.block().await;
    assert_eq!(outcomes(&mut sink, 1).await, [blocked()]);
    sink.publish(0, message(0, 3));
    broker.unblock().await;
    assert_eq!(outcomes(&mut sink, 1).await, [Outcome::Unblocked]);
    broker.published().await;
    broker.ack(1, false).await;
    assert_eq!(outcomes(&mut sink, 1).await, [Outcome::Confirmed(0)]);

    broker.block().await;
    assert_eq!(outcomes(&mut sink, 1).await, [blocked()]);
    sink.publish(1, message(1, 300_000));
    let begun = Instant::now();
    sink.close().await;
    assert!(begun.elapsed() < CLOSE_TIMEOUT, "it waited for an answer");
    timeout(PATIENCE, broker.ended())
        .await
        .expect("the socket is shut");
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_closed_while_idle_says_why() {
    let (mut sink, mut broker) = connected().await;
    broker
        .close_channel(404, "NOT_FOUND - no exchange 'events' in vhost '/'")
        .await;
    let failure = failure(&mut sink).await;
    assert_eq!(failure.disposition, Disposition::Setup);
    assert!(failure.to_string().contains("no exchange 'events'"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_closed_over_a_message_answers_first_what_was_confirmed() {
    let (mut sink, mut broker) = connected().await;
    publish(&mut sink, &mut broker, 3).await;
    broker.ack(1, false).await;
    broker
        .close_channel(406, "PRECONDITION_FAILED - message size")
        .await;
    assert_eq!(outcomes(&mut sink, 1).await, [Outcome::Confirmed(0)]);
    assert_eq!(failure(&mut sink).await.disposition, Disposition::Park);
    let mut none = Vec::new();
    assert!(
        sink.next(&mut none).now_or_never().is_none(),
        "no generation is left"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn broker_that_drops_the_socket_is_retried() {
    let (mut sink, mut broker) = connected().await;
    publish(&mut sink, &mut broker, 3).await;
    drop(broker);
    let failure = failure(&mut sink).await;
    assert_eq!(failure.disposition, Disposition::Retry { after: None });
}

#[tokio::test(flavor = "multi_thread")]
async fn second_publish_of_an_unanswered_position_halts() {
    let (mut sink, _broker) = connected().await;
    sink.publish(0, message(0, 3));
    sink.publish(0, message(0, 3));
    let failure = failure(&mut sink).await;
    assert_eq!(failure.disposition, Disposition::Halt(Cause::Unexpected));
}

#[tokio::test(flavor = "multi_thread")]
async fn frame_size_is_ours_when_the_broker_has_no_limit_and_the_brokers_when_it_is_smaller() {
    let long = |bytes: usize| {
        let mut message = Message::clone(&message(0, 3));
        message
            .headers
            .push(("fill".into(), HeaderValue::Text("c".repeat(bytes))));
        message
    };
    let (sink, _broker) = connected_with(0).await;
    assert_eq!(sink.refuse(&long(130_000)), None);
    assert!(sink.refuse(&long(132_000)).is_some());
    let (mut sink, mut broker) = connected_with(8192).await;
    assert!(sink.refuse(&long(9000)).is_some());
    sink.publish(0, message(0, 20_000));
    broker.published().await;
    broker.ack(1, false).await;
    assert_eq!(outcomes(&mut sink, 1).await, [Outcome::Confirmed(0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_connect_takes_the_next_url_and_drops_the_old_connection() {
    let (one, two) = (Port::open().await, Port::open().await);
    let urls = BrokerUrls::parse(&format!("{},{}", one.url(), two.url())).unwrap();
    let options = SinkOptions {
        connection_name: "tailpost/test".into(),
        max_message_bytes: 1 << 20,
        exchange: None,
    };
    let mut sink = RabbitSink::new(urls, options);
    let (connected, first) = tokio::join!(sink.connect(), one.accept(FRAME_MAX));
    connected.unwrap();
    let (connected, _second) = tokio::join!(sink.connect(), two.accept(FRAME_MAX));
    connected.unwrap();
    timeout(PATIENCE, first.ended())
        .await
        .expect("the first socket is shut");
}
