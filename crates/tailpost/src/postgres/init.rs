//! `tailpost postgres init`.

use std::sync::Arc;
use std::time::Duration;

use tailpost_outbox::Mapper;
use tailpost_postgres::PgConfig;
use tailpost_postgres::backfill::Backfill;
use tailpost_postgres::init::{self, InitOptions, Step};
use tailpost_rabbitmq::{BrokerUrls, RabbitSink, SinkOptions};
use tailpost_relay::{Disposition, Ending, Failure, Options, Progress};
use tokio::time::interval;
use tracing::{info, warn};

use super::{Error, print, sql};
use crate::args::InitCommand;
use crate::config::{self, Faults};
use crate::exit::Exit;
use crate::signals::Signals;

/// How often a backfill says how far it is.
const REPORT: Duration = Duration::from_secs(5);

struct Config {
    source: PgConfig,
    broker: Option<BrokerUrls>,
    mapper: Mapper,
    max_message_bytes: usize,
    options: Options,
}

impl Config {
    fn parse(command: &InitCommand, mut faults: Faults) -> Result<Self, Faults> {
        config::start_logs(&command.log, &mut faults);
        let source = config::source(&command.source, &mut faults);
        let broker = match command.init.backfill || command.init.declare_exchange.is_some() {
            true => config::needed_broker(&command.broker, &mut faults),
            false => config::broker(&command.broker, &mut faults),
        };
        let mapper = config::mapper(&command.message, &command.broker.exchange, &mut faults);
        let max_message_bytes = config::max_message_bytes(&command.message, &mut Faults::default());
        let options = config::options(&command.flow, None, &mut faults);
        if let Some(mapper) = mapper
            .as_ref()
            .filter(|_| command.init.declare_exchange.is_some())
            && mapper.exchange().placeholders().next().is_some()
        {
            let what =
                "the exchange is a template, which names no exchange; declare each of them on the broker";
            faults.take::<(), _>("--declare-exchange", Err(what));
        }
        let config = move || {
            Some(Self {
                source: source?,
                broker,
                mapper: mapper?,
                max_message_bytes: max_message_bytes?,
                options: options?,
            })
        };
        faults.judge(config())
    }
}

pub(super) async fn execute(command: InitCommand, faults: Faults) -> Result<Exit, Error> {
    let config = Config::parse(&command, faults)?;
    let columns = config.mapper.required_columns();
    let wanted = InitOptions {
        create_table: command.init.create_table,
        failover: command.init.failover,
        backfill: command.init.backfill,
        dry_run: command.init.dry_run,
        columns: &columns,
    };
    let session = sql(&config.source).await?;
    let plan = init::plan(&session, &config.source, &wanted).await?;
    let exchange = config.mapper.exchange().to_string();
    if command.init.dry_run {
        print(&plan.render())?;
        if let Some(kind) = &command.init.declare_exchange {
            print(&format!(
                "-- on the broker: declare durable exchange {exchange:?} of type {kind}\n"
            ))?;
        }
        return Ok(Exit::Done);
    }
    // First, so that a backfill has somewhere to go and a wrong broker leaves no slot behind.
    if let (Some(kind), Some(broker)) = (&command.init.declare_exchange, &config.broker) {
        tailpost_rabbitmq::declare_exchange(broker, &exchange, kind).await?;
        print(&format!("exchange {exchange:?} of type {kind} is there\n"))?;
    }
    let mut failed = Ok(());
    init::apply(&session, &config.source, &plan, |step| {
        failed = std::mem::replace(&mut failed, Ok(())).and_then(|()| print(&describe(step)));
    })
    .await?;
    failed?;
    for step in plan.steps.iter().filter(|step| matches!(step, Step::Kept { .. })) {
        tracing::debug!(?step, "kept");
    }
    if plan.has_backfill() {
        return backfill(config, command.init.failover).await;
    }
    Ok(Exit::Done)
}

fn describe(step: &Step) -> String {
    match step {
        Step::Kept { what } => format!("{what} is there and fits\n"),
        Step::Sql { what, .. } | Step::Replication { what, .. } => format!("made {what}\n"),
        Step::Backfill { .. } => String::new(),
    }
}

/// Publishes the rows that are there, and makes the slot when all are confirmed.
async fn backfill(config: Config, failover: bool) -> Result<Exit, Error> {
    let Some(broker) = config.broker else {
        return Ok(Exit::Usage);
    };
    let slot = config.source.slot.clone();
    let signals = Signals::listen()?;
    let sink = RabbitSink::new(
        broker,
        SinkOptions {
            connection_name: config.source.application_name.clone(),
            max_message_bytes: config.max_message_bytes,
            exchange: super::run::fixed_exchange(&config.mapper),
        },
    );
    let backfill = Backfill::begin(config.source, config.max_message_bytes).await?;
    let mut mapper = config.mapper;
    let map = move |row: &tailpost_outbox::Row| mapper.map(row);
    let progress = Arc::new(Progress::default());
    let all_stored = backfill.all_stored();
    let stop = async {
        tokio::select! {
            () = all_stored => {}
            () = signals.stop() => warn!("backfill is broken off: no slot is made, and a second run begins anew"),
        }
    };
    let relay = Box::pin(tailpost_relay::run(
        backfill.source(),
        sink,
        backfill.store(),
        map,
        config.options,
        Arc::clone(&progress),
        stop,
    ));
    let ending = tokio::select! {
        ending = relay => ending,
        never = report(&backfill, &progress) => match never {},
    };
    match ending {
        Ending::Drained => {}
        Ending::Incomplete { why } => {
            warn!("backfill did not end, and no slot was made; run it again: {why}");
            return Ok(Exit::Incomplete);
        }
        Ending::Halted(failure) => return Err(failure.into()),
    }
    let position = match backfill.complete(failover).await.map_err(Failure::from) {
        Ok(position) => position,
        // The server was lost at the last step: nothing is skipped, a second run begins anew.
        Err(failure) if matches!(failure.disposition, Disposition::Retry { .. }) => {
            let hint = tracing::field::display(failure.hint.as_deref().unwrap_or_default());
            warn!(error = %failure, hint, "no slot was made; run it again");
            return Ok(Exit::Incomplete);
        }
        Err(failure) => return Err(failure.into()),
    };
    let confirmed = progress.confirmed.value();
    print(&format!(
        "published {confirmed} rows of the table; made slot {slot} at {position}\n"
    ))?;
    Ok(Exit::Done)
}

async fn report(backfill: &Backfill, progress: &Progress) -> std::convert::Infallible {
    let mut tick = interval(REPORT);
    loop {
        tick.tick().await;
        let (read, estimate) = backfill.rows();
        let confirmed = progress.confirmed.value();
        match estimate {
            Some(estimate) => info!(read, confirmed, "backfill: about {estimate} rows"),
            None => info!(read, confirmed, "backfill"),
        }
    }
}
