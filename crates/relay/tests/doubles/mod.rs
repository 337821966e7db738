//! A scripted source, a sink that the test answers for, and a store that pauses or fails on command.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tailpost_outbox::{AggregateKey, HeaderValue, MapError, Mapped, Message, Row, Table, headers};
use tailpost_relay::{
    Disposition, Ending, Failure, Item, OffsetStore, Options, Outcome, Progress, Sink, Source, State, Stream,
    run,
};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(3600);

pub(crate) fn row(aggregate: u64, id: u64) -> Item<u64> {
    item("outbox_event", aggregate, id)
}

/// A row that the mapping calls poison.
pub(crate) fn unpublishable() -> Item<u64> {
    item("poison", 0, 0)
}

fn item(table: &str, aggregate: u64, id: u64) -> Item<u64> {
    Item::Row(Row {
        table: Arc::new(Table {
            schema: "public".into(),
            name: table.into(),
            columns: vec![],
        }),
        values: vec![],
        transaction: Arc::from(aggregate.to_string()),
        index: id,
        size: 64,
    })
}

fn map(row: &Row) -> Result<Mapped, MapError> {
    if row.table.name == "poison" {
        return Err(MapError::Poison {
            what: "a test".into(),
        });
    }
    let aggregate: u64 = row.transaction.parse().expect("the script's number");
    Ok(Mapped {
        message: Message {
            exchange: "events".into(),
            routing_key: String::new(),
            message_id: row.index.to_string(),
            event_type: None,
            content_type: None,
            timestamp: None,
            headers: vec![(headers::POSITION.into(), HeaderValue::Text(row.position()))],
            body: Bytes::new(),
        },
        aggregate: Some(AggregateKey(aggregate)),
        aggregate_label: Arc::from("order/1"),
    })
}

#[derive(Default)]
struct Scene {
    items: VecDeque<Item<u64>>,
    failure: Option<Failure>,
    refuse_opening: bool,
    holder: Option<String>,
    moved_on_to: Option<u64>,
    resumed_at: Option<u64>,
    finished_at: Option<u64>,
    is_closed: bool,
    stored: Option<watch::Receiver<Option<u64>>>,
}

/// The test's end of the source.
#[derive(Clone, Default)]
pub(crate) struct Script {
    scene: Arc<Mutex<Scene>>,
    changed: Arc<Notify>,
}

impl Script {
    pub(crate) fn new() -> (Self, ScriptedSource) {
        let script = Self::default();
        (script.clone(), ScriptedSource(script))
    }

    fn set(&self, change: impl FnOnce(&mut Scene)) {
        change(&mut self.scene.lock().expect("no test panics with it"));
        self.changed.notify_one();
    }

    fn get<T>(&self, read: impl FnOnce(&mut Scene) -> T) -> T {
        read(&mut self.scene.lock().expect("no test panics with it"))
    }

    pub(crate) fn send(&self, items: Vec<Item<u64>>) {
        self.set(|scene| scene.items.extend(items));
    }

    /// The connection breaks once all items are read.
    pub(crate) fn fail(&self, failure: Failure) {
        self.set(|scene| scene.failure = Some(failure));
    }

    pub(crate) fn refuse_opening(&self, refuse: bool) {
        self.set(|scene| scene.refuse_opening = refuse);
    }

    pub(crate) fn stand_by(&self, holder: &str) {
        self.set(|scene| scene.holder = Some(holder.into()));
    }

    /// Another relay moves the source's own position.
    pub(crate) fn moved_on_to(&self, position: u64) {
        self.set(|scene| scene.moved_on_to = Some(position));
    }

    pub(crate) fn resumed_at(&self) -> Option<u64> {
        self.get(|scene| scene.resumed_at)
    }

    pub(crate) fn left(&self) -> usize {
        self.get(|scene| scene.items.len())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.get(|scene| scene.is_closed)
    }
}

pub(crate) struct ScriptedSource(Script);

impl Source for ScriptedSource {
    type Position = u64;
    type Stream = ScriptedStream;

    async fn open(
        &mut self,
        resume: Option<u64>,
        stored: watch::Receiver<Option<u64>>,
    ) -> Result<ScriptedStream, Failure> {
        let script = self.0.clone();
        script.get(|scene| {
            if let Some(holder) = &scene.holder {
                return Err(Failure::new(
                    "in use",
                    Disposition::Standby {
                        holder: holder.clone(),
                    },
                ));
            }
            if scene.refuse_opening {
                return Err(Failure::new("refused", Disposition::Retry { after: None }));
            }
            scene.resumed_at = resume;
            scene.stored = Some(stored);
            let start = scene.moved_on_to.take().or(resume).unwrap_or(0);
            Ok(ScriptedStream {
                script: self.0.clone(),
                start,
            })
        })
    }
}

pub(crate) struct ScriptedStream {
    script: Script,
    start: u64,
}

impl Stream for ScriptedStream {
    type Position = u64;

    fn start(&self) -> &u64 {
        &self.start
    }

    async fn next(&mut self) -> Result<Item<u64>, Failure> {
        loop {
            let next = self.script.get(|scene| match scene.items.pop_front() {
                Some(item) => Some(Ok(item)),
                None => scene.failure.take().map(Err),
            });
            match next {
                Some(next) => return next,
                None => self.script.changed.notified().await,
            }
        }
    }

    async fn finish(self) -> Result<(), Failure> {
        self.script
            .get(|scene| scene.finished_at = scene.stored.as_ref().and_then(|stored| *stored.borrow()));
        Ok(())
    }
}

impl Drop for ScriptedStream {
    fn drop(&mut self) {
        self.script.get(|scene| scene.is_closed = true);
    }
}

enum Command {
    Outcome(Outcome),
    Lose(Failure),
}

/// The test's end of the sink.
pub(crate) struct Broker {
    published: mpsc::UnboundedReceiver<u64>,
    commands: mpsc::UnboundedSender<Command>,
    generations: Arc<AtomicUsize>,
}

impl Broker {
    pub(crate) fn new() -> (Self, TestSink) {
        let (published_out, published) = mpsc::unbounded_channel();
        let (commands, commands_in) = mpsc::unbounded_channel();
        let generations = Arc::new(AtomicUsize::new(0));
        let sink = TestSink {
            published: published_out,
            commands: commands_in,
            generations: Arc::clone(&generations),
        };
        (
            Self {
                published,
                commands,
                generations,
            },
            sink,
        )
    }

    /// The number of the next message published.
    pub(crate) async fn published(&mut self) -> u64 {
        self.published.recv().await.expect("the relay runs")
    }

    pub(crate) fn confirm(&self, seq: u64) {
        self.command(Command::Outcome(Outcome::Confirmed(seq)));
    }

    pub(crate) fn nack(&self, seq: u64) {
        self.command(Command::Outcome(Outcome::Nacked(seq)));
    }

    pub(crate) fn lose(&self, failure: Failure) {
        self.command(Command::Lose(failure));
    }

    fn command(&self, command: Command) {
        assert!(self.commands.send(command).is_ok(), "the relay runs");
    }

    pub(crate) fn generations(&self) -> usize {
        self.generations.load(SeqCst)
    }
}

pub(crate) struct TestSink {
    published: mpsc::UnboundedSender<u64>,
    commands: mpsc::UnboundedReceiver<Command>,
    generations: Arc<AtomicUsize>,
}

impl Sink for TestSink {
    async fn connect(&mut self) -> Result<(), Failure> {
        self.generations.fetch_add(1, SeqCst);
        Ok(())
    }

    fn refuse(&self, _message: &Message) -> Option<String> {
        None
    }

    fn publish(&mut self, seq: u64, _message: Arc<Message>) {
        assert!(self.published.send(seq).is_ok(), "the test listens");
    }

    async fn next(&mut self, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        match self.commands.recv().await.expect("the test lives") {
            Command::Outcome(outcome) => outcomes.push(outcome),
            Command::Lose(failure) => return Err(failure),
        }
        Ok(())
    }

    fn abandon(&mut self) {}

    async fn close(&mut self) {}
}

#[derive(Default)]
struct StoreSwitches {
    paused: AtomicBool,
    failing: AtomicBool,
}

struct TestStore {
    position: Option<u64>,
    switches: Arc<StoreSwitches>,
}

impl OffsetStore for TestStore {
    type Position = u64;

    async fn load(&mut self) -> Result<Option<u64>, Failure> {
        Ok(self.position)
    }

    async fn store(&mut self, position: &u64) -> Result<(), Failure> {
        while self.switches.paused.load(SeqCst) {
            sleep(Duration::from_millis(10)).await;
        }
        if self.switches.failing.load(SeqCst) {
            return Err(Failure::new("disk full", Disposition::Retry { after: None }));
        }
        assert!(self.position <= Some(*position), "law 3");
        self.position = Some(*position);
        Ok(())
    }
}

/// A running relay.
pub(crate) struct Setup {
    pub(crate) script: Script,
    pub(crate) broker: Broker,
    pub(crate) progress: Arc<Progress>,
    switches: Arc<StoreSwitches>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Ending>,
}

impl Setup {
    pub(crate) fn start(options: Options, offset: Option<u64>) -> Self {
        let (script, source) = Script::new();
        let (broker, sink) = Broker::new();
        let switches = Arc::new(StoreSwitches::default());
        let store = TestStore {
            position: offset,
            switches: Arc::clone(&switches),
        };
        let progress = Arc::new(Progress::default());
        let (stop, stopped) = oneshot::channel();
        let stopped = async move {
            let _asked = stopped.await;
        };
        let task = tokio::spawn(run(
            source,
            sink,
            store,
            map,
            options,
            Arc::clone(&progress),
            stopped,
        ));
        Self {
            script,
            broker,
            progress,
            switches,
            stop: Some(stop),
            task,
        }
    }

    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn ending(&mut self) -> Ending {
        (&mut self.task).await.expect("the relay does not panic")
    }

    /// Waits for the end, confirming whatever is published.
    pub(crate) async fn ending_confirming_all(&mut self) -> Ending {
        loop {
            tokio::select! {
                ending = &mut self.task => return ending.expect("the relay does not panic"),
                Some(seq) = self.broker.published.recv() => self.broker.confirm(seq),
            }
        }
    }

    pub(crate) fn reported(&self) -> Option<u64> {
        self.script
            .get(|scene| scene.stored.as_ref().and_then(|stored| *stored.borrow()))
    }

    pub(crate) fn finished_at(&self) -> Option<u64> {
        self.script.get(|scene| scene.finished_at)
    }

    pub(crate) async fn wait_reported(&self, position: u64) {
        let waited = timeout(PATIENCE, async {
            while self.reported() != Some(position) {
                sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(
            waited.await.is_ok(),
            "{:?} is reported, not {position}",
            self.reported()
        );
    }

    pub(crate) async fn wait_for(&self, happened: impl Fn(&State) -> bool) {
        let waited = timeout(PATIENCE, async {
            while !happened(&self.progress.state()) {
                sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(waited.await.is_ok(), "{:?}", self.progress.state());
    }

    pub(crate) fn store_pause(&self, paused: bool) {
        self.switches.paused.store(paused, SeqCst);
    }

    pub(crate) fn store_fail(&self, failing: bool) {
        self.switches.failing.store(failing, SeqCst);
    }
}
