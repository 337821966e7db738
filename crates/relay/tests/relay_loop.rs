//! The loop with a scripted source and a sink that the test answers for, in paused time: what the core alone cannot
//! show, being about tasks, connections and the order of effects.

mod doubles;

use std::time::Duration;

use doubles::{Broker, Script, Setup, row, unpublishable};
use tailpost_relay::{Cause, Disposition, Ending, Failure, Item, Link, OnHalt, Options};
use tokio::time::{sleep, timeout};

fn retry() -> Failure {
    Failure::new("gone", Disposition::Retry { after: None })
}

fn begin() -> Item<u64> {
    Item::Begin
}

fn end(position: u64) -> Item<u64> {
    Item::End {
        position,
        urgent: false,
    }
}

#[tokio::test(start_paused = true)]
async fn law_2_nothing_is_reported_before_it_is_stored_nor_stored_before_it_is_confirmed() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![begin(), row(1, 1), row(2, 2), end(10)]);
    let first = setup.broker.published().await;
    let second = setup.broker.published().await;
    setup.broker.confirm(second);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.reported(), Some(0), "the first is not confirmed");
    setup.store_pause(true);
    setup.broker.confirm(first);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.reported(), Some(0), "confirmed, but not stored");
    setup.store_pause(false);
    setup.wait_reported(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_reads_on_to_the_transactions_end_and_repeats_nothing() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![begin(), row(1, 1)]);
    let first = setup.broker.published().await;
    setup.stop();
    sleep(Duration::from_secs(1)).await;
    setup
        .script
        .send(vec![row(2, 2), end(10), begin(), row(3, 3), end(20)]);
    let second = setup.broker.published().await;
    setup.broker.confirm(first);
    setup.broker.confirm(second);
    let ending = setup.ending().await;
    assert!(matches!(ending, Ending::Drained), "{ending:?}");
    assert_eq!(
        setup.finished_at(),
        Some(10),
        "the last report is taken before the end"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_not_confirmed_in_time_ends_incomplete_and_stores_what_is() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup
        .script
        .send(vec![begin(), row(1, 1), end(10), begin(), row(2, 2), end(20)]);
    let first = setup.broker.published().await;
    let _second = setup.broker.published().await;
    setup.stop();
    setup.broker.confirm(first);
    let ending = setup.ending().await;
    assert!(matches!(ending, Ending::Incomplete { .. }), "{ending:?}");
    assert_eq!(setup.reported(), Some(10));
}

#[tokio::test(start_paused = true)]
async fn a_first_start_stores_where_it_begins_before_it_publishes() {
    let mut setup = Setup::start(Options::default(), None);
    setup.store_pause(true);
    setup.script.send(vec![begin(), row(1, 1), end(10)]);
    assert!(
        timeout(Duration::from_secs(60), setup.broker.published())
            .await
            .is_err(),
        "nothing is stored yet"
    );
    setup.store_pause(false);
    setup.wait_reported(0).await;
    setup.broker.published().await;
}

#[tokio::test(start_paused = true)]
async fn law_5_nothing_is_published_while_the_source_and_its_lock_are_lost() {
    let mut setup = Setup::start(
        Options {
            in_flight: 1,
            ..Options::default()
        },
        Some(0),
    );
    setup.script.send(vec![begin(), row(1, 1), row(2, 2), end(10)]);
    let first = setup.broker.published().await;
    setup.script.refuse_opening(true);
    setup.script.fail(retry());
    setup
        .wait_for(|state| matches!(state.source, Link::Retrying { .. }))
        .await;
    setup.broker.confirm(first);
    assert!(
        timeout(Duration::from_secs(60), setup.broker.published())
            .await
            .is_err(),
        "the lock is lost"
    );
    setup.script.refuse_opening(false);
    setup.broker.published().await;
    assert_eq!(setup.script.resumed_at(), Some(10), "from the last end received");
}

#[tokio::test(start_paused = true)]
async fn law_5_a_relay_that_was_overtaken_forgets_what_it_had_read() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![begin(), row(1, 1), row(1, 2), end(10)]);
    let first = setup.broker.published().await;
    setup.script.moved_on_to(50);
    setup.script.fail(retry());
    setup.wait_reported(50).await;
    setup.broker.confirm(first);
    assert!(
        timeout(Duration::from_secs(60), setup.broker.published())
            .await
            .is_err(),
        "another relay has sent it"
    );
    setup.script.send(vec![begin(), row(1, 3), end(60)]);
    let third = setup.broker.published().await;
    setup.broker.confirm(third);
    setup.wait_reported(60).await;
}

#[tokio::test(start_paused = true)]
async fn law_9_a_lost_generation_confirms_nothing_and_all_goes_again_from_the_oldest() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![begin(), row(1, 1), row(2, 2), end(10)]);
    let first = setup.broker.published().await;
    let second = setup.broker.published().await;
    setup.broker.lose(retry());
    assert_eq!(setup.broker.published().await, first);
    assert_eq!(setup.broker.published().await, second);
    assert_eq!(setup.reported(), Some(0));
    setup.broker.confirm(first);
    setup.broker.confirm(second);
    setup.wait_reported(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_confirm_that_does_not_come_ends_the_generation() {
    let mut setup = Setup::start(
        Options {
            confirm_timeout: Duration::from_secs(60),
            ..Options::default()
        },
        Some(0),
    );
    setup.script.send(vec![begin(), row(1, 1), end(10)]);
    let first = setup.broker.published().await;
    let again = timeout(Duration::from_secs(66), setup.broker.published()).await;
    assert_eq!(again.ok(), Some(first));
    assert_eq!(setup.broker.generations(), 2);
}

#[tokio::test(start_paused = true)]
async fn law_6_poison_halts_and_the_position_stands_before_it() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![
        begin(),
        row(1, 1),
        end(10),
        begin(),
        row(2, 2),
        unpublishable(),
        end(20),
    ]);
    let first = setup.broker.published().await;
    setup.broker.confirm(first);
    let ending = setup.ending_confirming_all().await;
    let Ending::Halted(failure) = ending else {
        panic!("{ending:?}")
    };
    assert_eq!(failure.disposition, Disposition::Halt(Cause::Poison));
    assert_eq!(setup.reported(), Some(10));
}

#[tokio::test(start_paused = true)]
async fn with_on_halt_stay_the_process_stays_unready_until_it_is_stopped() {
    let mut setup = Setup::start(
        Options {
            on_halt: OnHalt::Stay,
            ..Options::default()
        },
        Some(0),
    );
    setup.script.send(vec![begin(), unpublishable(), end(20)]);
    setup.wait_for(|state| state.halted.is_some()).await;
    assert!(
        timeout(Duration::from_secs(3600), setup.ending()).await.is_err(),
        "it stays"
    );
    assert!(
        !setup.script.is_closed(),
        "and so does the stream, whose keepalives go on"
    );
    setup.stop();
    assert!(matches!(setup.ending().await, Ending::Halted(_)));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_set_up_halts_at_start_and_is_retried_after_the_first_confirm() {
    let wrong = || Failure::new("no exchange \"events\"", Disposition::Setup);
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![begin(), row(1, 1), end(10)]);
    setup.broker.published().await;
    setup.broker.lose(wrong());
    assert!(matches!(setup.ending().await, Ending::Halted(_)));

    let mut setup = Setup::start(Options::default(), Some(0));
    setup
        .script
        .send(vec![begin(), row(1, 1), end(10), begin(), row(1, 2), end(20)]);
    let first = setup.broker.published().await;
    setup.broker.confirm(first);
    let second = setup.broker.published().await;
    setup.broker.lose(wrong());
    assert_eq!(setup.broker.published().await, second);
}

#[tokio::test(start_paused = true)]
async fn intake_stops_while_the_offset_cannot_be_stored() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.store_fail(true);
    setup.script.send(vec![begin(), row(1, 1), end(10)]);
    let first = setup.broker.published().await;
    setup.broker.confirm(first);
    setup.wait_for(|state| state.store_failing.is_some()).await;
    setup.script.send(vec![begin(), row(1, 2), end(20)]);
    assert!(
        timeout(Duration::from_secs(60), setup.broker.published())
            .await
            .is_err()
    );
    setup.store_fail(false);
    setup.broker.published().await;
}

#[tokio::test(start_paused = true)]
async fn law_8_a_slow_broker_stops_the_source_at_the_byte_bound() {
    let options = Options {
        in_flight: 4,
        in_flight_bytes: 16 << 10,
        ..Options::default()
    };
    let mut setup = Setup::start(options, Some(0));
    let mut items = vec![begin()];
    items.extend((1..=1000).map(|n| row(n, n)));
    items.push(end(10));
    setup.script.send(items);
    sleep(Duration::from_secs(60)).await;
    let taken = 1000 - setup.script.left();
    assert!(
        taken <= 32,
        "{taken} rows of 0.5 KiB and more were read into 16 KiB"
    );
    let ending = async {
        while setup.reported() != Some(10) {
            let seq = setup.broker.published().await;
            setup.broker.confirm(seq);
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(
        timeout(Duration::from_secs(600), ending).await.is_ok(),
        "it flows on"
    );
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_ready_and_names_the_holder() {
    let setup = Setup::start(Options::default(), Some(0));
    setup.script.stand_by("pid 17 on db1");
    setup.script.fail(retry());
    setup
        .wait_for(|state| matches!(state.source, Link::Standby { .. }))
        .await;
    let readiness = setup.progress.readiness(Duration::from_secs(60));
    assert!(readiness.ready, "{readiness:?}");
    assert_eq!(
        (readiness.role, readiness.holder.as_deref()),
        ("standby", Some("pid 17 on db1"))
    );
}

#[tokio::test(start_paused = true)]
async fn law_10_a_position_is_stored_only_where_no_transaction_is_open() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![
        begin(),
        row(1, 1),
        Item::Keepalive {
            position: 5,
            urgent: true,
        },
        row(2, 2),
    ]);
    for _ in 0..2 {
        let seq = setup.broker.published().await;
        setup.broker.confirm(seq);
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        setup.reported(),
        Some(0),
        "all is confirmed, and the transaction is open"
    );
    setup.script.send(vec![end(10)]);
    setup.wait_reported(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_at_the_drain_time_out_also_when_the_reader_waits_for_memory() {
    let options = Options {
        in_flight_bytes: 4 << 10,
        ..Options::default()
    };
    let mut setup = Setup::start(options, Some(0));
    let mut items = vec![begin()];
    items.extend((1..=100).map(|n| row(n, n)));
    setup.script.send(items);
    setup.broker.published().await;
    sleep(Duration::from_secs(1)).await;
    setup.stop();
    let ending = timeout(Duration::from_millis(8_500), setup.ending()).await;
    assert!(matches!(ending, Ok(Ending::Incomplete { .. })), "{ending:?}");
}

#[tokio::test(start_paused = true)]
async fn a_halt_with_a_backlog_behind_it_ends_at_once() {
    let mut setup = Setup::start(Options::default(), Some(0));
    let mut items = vec![begin(), unpublishable()];
    items.extend((1..=1000).map(|n| row(n, n)));
    setup.script.send(items);
    let ending = timeout(Duration::from_secs(1), setup.ending()).await;
    assert!(matches!(ending, Ok(Ending::Halted(_))), "{ending:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_source_is_lost_ends_at_once_and_says_so() {
    let mut setup = Setup::start(
        Options {
            in_flight: 1,
            ..Options::default()
        },
        Some(0),
    );
    setup.script.send(vec![begin(), row(1, 1), row(2, 2), end(10)]);
    let first = setup.broker.published().await;
    setup.script.refuse_opening(true);
    setup.script.fail(retry());
    setup
        .wait_for(|state| matches!(state.source, Link::Retrying { .. }))
        .await;
    setup.broker.confirm(first);
    setup.stop();
    let ending = timeout(Duration::from_secs(1), setup.ending()).await;
    assert!(matches!(ending, Ok(Ending::Incomplete { .. })), "{ending:?}");
}

/// With a retry that is due and cannot go the loop must sleep: in paused time a loop that spins never lets time pass.
#[tokio::test(start_paused = true)]
async fn a_retry_that_is_due_does_not_keep_the_loop_busy_while_nothing_may_be_published() {
    let mut setup = Setup::start(Options::default(), Some(0));
    setup.script.send(vec![begin(), row(1, 1), end(10)]);
    let first = setup.broker.published().await;
    setup.script.stand_by("pid 17 on db1");
    setup.script.fail(retry());
    setup
        .wait_for(|state| matches!(state.source, Link::Standby { .. }))
        .await;
    setup.broker.nack(first);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(setup.reported(), Some(0));
}

/// The doubles themselves: a sink that nobody answers says nothing.
#[tokio::test(start_paused = true)]
async fn the_double_of_the_broker_is_silent_until_it_is_told() {
    let (mut broker, _sink) = Broker::new();
    let (_script, _source) = Script::new();
    assert!(
        timeout(Duration::from_secs(60), broker.published())
            .await
            .is_err()
    );
}
