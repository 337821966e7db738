//! The offset stores as the command line names them.

use std::path::PathBuf;

use tailpost_offsets::{FileStore, Identity};
use tailpost_postgres::slot::SlotOffsets;
use tailpost_postgres::{Identity as ServerIdentity, KnownIdentity, PgConfig, PgPosition};
use tailpost_relay::{Cause, Disposition, Failure, OffsetStore};

use crate::config::OffsetsAt;

/// The store that `--offsets` names.
pub(crate) enum Offsets {
    Slot(SlotOffsets),
    File(Box<FileOffsets>),
}

impl Offsets {
    pub(crate) fn new(at: &OffsetsAt, config: &PgConfig, known: KnownIdentity) -> Self {
        match at {
            OffsetsAt::Slot => Self::Slot(SlotOffsets::new(None)),
            OffsetsAt::File(path) => Self::File(Box::new(FileOffsets {
                path: path.clone(),
                config: config.clone(),
                known,
                store: None,
            })),
        }
    }
}

impl OffsetStore for Offsets {
    type Position = PgPosition;

    async fn load(&mut self) -> Result<Option<PgPosition>, Failure> {
        match self {
            Self::Slot(store) => store.load().await,
            Self::File(store) => store.load().await,
        }
    }

    async fn store(&mut self, position: &PgPosition) -> Result<(), Failure> {
        match self {
            Self::Slot(store) => store.store(position).await,
            Self::File(store) => store.store(position).await,
        }
    }
}

/// A file, whose identity only the server can tell.
pub(crate) struct FileOffsets {
    path: PathBuf,
    config: PgConfig,
    known: KnownIdentity,
    store: Option<FileStore<PgPosition>>,
}

impl FileOffsets {
    async fn load(&mut self) -> Result<Option<PgPosition>, Failure> {
        let mut server = ServerIdentity::read(&self.config.url, &self.config.application_name).await?;
        let mut store = FileStore::open(&self.path, identity(&self.config, &server))?;
        // The file's timeline is that of its position: the source judges whether the server's goes on from there.
        let timeline = store.record().await?.and_then(|record| record.identity.timeline);
        if let Some(timeline) = timeline.and_then(|timeline| u32::try_from(timeline).ok()) {
            server.timeline = timeline;
        }
        let position = store.load().await?;
        self.known.set(server);
        self.store = Some(store);
        Ok(position)
    }

    async fn store(&mut self, position: &PgPosition) -> Result<(), Failure> {
        let Some(store) = &mut self.store else {
            return Err(Failure::new(
                "the offset was not loaded",
                Disposition::Halt(Cause::Unexpected),
            ));
        };
        if let Some(known) = self.known.get() {
            store.timeline().set(u64::from(known.timeline));
        }
        store.store(position).await
    }
}

/// Whose offset it is.
pub(crate) fn identity(config: &PgConfig, server: &ServerIdentity) -> Identity {
    let fields = [
        ("system_id", server.system_id.as_str()),
        ("database", server.database.as_str()),
        ("slot", config.slot.as_str()),
        ("name", config.name.as_str()),
    ];
    Identity::new("postgres", fields).with_timeline(u64::from(server.timeline))
}
