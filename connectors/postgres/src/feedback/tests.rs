use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
enum Step {
    Received(u64),
    Stored(u64),
    Ask,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u64..1000).prop_map(Step::Received),
        (0_u64..1000).prop_map(Step::Stored),
        Just(Step::Ask),
        (0_u64..3000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Law 2, and liveness: the state is polled as the task polls it, whenever something changes or the due time comes.
    #[test]
    fn nothing_beyond_what_is_stored_is_reported_and_every_report_is_in_time(
        steps in prop::collection::vec(step(), 0..60),
        eager: bool,
        confirmed in 0_u64..1000,
    ) {
        let interval = SECOND;
        let mut state = FeedbackState::new(interval, eager, Lsn(confirmed));
        let (mut now, mut stored, mut last, mut asked_at) = (Instant::now(), confirmed, None::<StandbyStatus>, None);
        let mut sent_at = now;
        for step in std::iter::once(Step::Wait(0)).chain(steps) {
            let mut until = now;
            match step {
                Step::Received(lsn) => state.received(Lsn(lsn)),
                Step::Stored(lsn) => {
                    stored = stored.max(lsn);
                    state.stored(Lsn(lsn));
                }
                Step::Ask => {
                    asked_at = asked_at.or(Some(now));
                    state.ask();
                }
                Step::Wait(ms) => until = now + Duration::from_millis(ms),
            }
            loop {
                if let Some(status) = state.take(now, 0) {
                    prop_assert!(status.flush.0 <= stored, "beyond what is stored");
                    prop_assert_eq!(status.flush, status.apply);
                    prop_assert!(status.write >= status.flush);
                    if let Some(last) = last {
                        prop_assert!(status.flush >= last.flush && status.write >= last.write, "backward");
                        let news = (last.write, last.flush) != (status.write, status.flush);
                        prop_assert!(news || now - sent_at >= REPEAT_MIN, "too often");
                    }
                    (last, sent_at, asked_at) = (Some(status), now, None);
                }
                if eager {
                    prop_assert_eq!(last.map(|status| status.flush.0), Some(stored), "a store is reported at once");
                }
                prop_assert!(now - sent_at < interval, "the interval was missed");
                prop_assert!(asked_at.is_none_or(|at| now - at < REPEAT_MIN), "an answer is missing");
                let due = state.due(now);
                prop_assert!(due > now, "due again at once");
                if due > until {
                    now = until;
                    break;
                }
                now = due;
            }
        }
    }
}

#[test]
fn the_interval_is_a_third_of_the_time_out_and_ten_seconds_at_most() {
    assert_eq!(interval(Duration::ZERO), 10 * SECOND);
    assert_eq!(interval(60 * SECOND), 10 * SECOND);
    assert_eq!(interval(3 * SECOND), SECOND);
}

#[test]
fn a_silent_server_is_asked_for_a_sign_of_life_and_not_again_before_it_gave_one() {
    let mut state = FeedbackState::new(SECOND, false, Lsn(1));
    let mut now = Instant::now();
    let mut asks = |state: &mut FeedbackState| {
        now += SECOND;
        state.take(now, 0).expect("due").reply
    };
    assert_eq!(
        [asks(&mut state), asks(&mut state), asks(&mut state)],
        [false, true, false]
    );
    state.heard(1);
    assert_eq!(
        [asks(&mut state), asks(&mut state), asks(&mut state)],
        [false, true, false]
    );
    // As long as it sends by itself it is not asked.
    for times in 2..10 {
        state.heard(times);
        assert!(!asks(&mut state));
    }
}

type Server = tokio::io::DuplexStream;

fn spawn(
    eager: bool,
) -> (
    Feedback,
    Server,
    watch::Sender<Option<PgPosition>>,
    mpsc::Receiver<PgError>,
) {
    let (client, server) = tokio::io::duplex(256);
    let (stored, watched) = watch::channel(None);
    let (ending, ended) = mpsc::channel(2);
    let state = FeedbackState::new(10 * SECOND, eager, Lsn(10));
    (
        Feedback::spawn(client, state, watched, ending),
        server,
        stored,
        ended,
    )
}

/// Reads a status update: (write, flush).
async fn status(server: &mut Server) -> (u64, u64) {
    let mut frame = [0; 5 + StandbyStatus::LEN];
    server.read_exact(&mut frame).await.expect("a status update");
    assert_eq!((frame[0], frame[5]), (b'd', b'r'));
    let lsn = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes"));
    (lsn(6), lsn(14))
}

#[tokio::test(start_paused = true)]
async fn status_goes_out_though_nobody_reads_from_the_stream() {
    let (feedback, mut server, _stored, _ended) = spawn(false);
    feedback.received(Lsn(50));
    let began = Instant::now();
    for _ in 0..7 {
        assert_eq!(status(&mut server).await, (50, 10));
    }
    assert_eq!((Instant::now() - began).as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_newly_stored_position_is_reported_at_once_where_the_slot_keeps_the_offset() {
    let (_feedback, mut server, stored, _ended) = spawn(true);
    assert_eq!(status(&mut server).await, (10, 10));
    let began = Instant::now();
    stored.send_replace(Some(PgPosition(Lsn(40))));
    assert_eq!(status(&mut server).await, (40, 40));
    assert!(Instant::now() - began < SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_last_report_before_the_end_has_what_is_stored() {
    let (feedback, mut server, stored, _ended) = spawn(false);
    assert_eq!(status(&mut server).await, (10, 10));
    stored.send_replace(Some(PgPosition(Lsn(90))));
    feedback.finish().await.expect("written");
    assert_eq!(status(&mut server).await, (90, 90));
    let mut rest = Vec::new();
    feedback.terminate().await;
    server.read_to_end(&mut rest).await.expect("closed");
    assert_eq!(rest, b"c\0\0\0\x04X\0\0\0\x04");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_ends_the_stream() {
    let (feedback, _server, _stored, mut ended) = spawn(false);
    // The pipe holds six updates; the seventh never goes out.
    let reason = ended.recv().await.expect("a reason");
    assert!(matches!(reason, PgError::Timeout { .. }), "{reason}");
    assert!(feedback.finish().await.is_err());
}

#[tokio::test]
async fn dropping_the_feedback_closes_the_connection() {
    let (feedback, mut server, _stored, _ended) = spawn(false);
    assert_eq!(status(&mut server).await, (10, 10));
    drop(feedback);
    assert_eq!(server.read(&mut [0; 8]).await.expect("end of stream"), 0);
}
