//! `tailpost postgres check`.

use tailpost_postgres::check::{self, Finding, MappedColumns, Status};
use tailpost_rabbitmq::{BrokerUrls, ExchangeState};

use super::{Error, print, sql};
use crate::args::CheckCommand;
use crate::config::{self, Faults};
use crate::exit::Exit;

pub(super) async fn execute(command: CheckCommand, mut faults: Faults) -> Result<Exit, Error> {
    config::start_logs(&command.log, &mut faults);
    let source = config::source(&command.source, &mut faults);
    let broker = config::broker(&command.broker, &mut faults);
    let mapper = config::mapper(&command.message, &command.broker.exchange, &mut faults);
    let (source, mapper) = faults.judge(source.zip(mapper))?;
    let required = mapper.required_columns();
    let headers: Vec<String> = mapper.header_columns().map(str::to_owned).collect();
    let columns = MappedColumns {
        required: &required,
        headers: &headers,
        payload: mapper.payload_column(),
    };
    let mut findings = check::check(&sql(&source).await?, &source, columns).await?;
    if let Some(broker) = broker {
        findings.push(exchange(&broker, &mapper.exchange().to_string()).await);
    }
    print(&check::render_text(&findings))?;
    Ok(if check::has_fault(&findings) {
        Exit::Unexpected
    } else {
        Exit::Done
    })
}

/// The broker, and the exchange where its name does not depend on the row.
async fn exchange(broker: &BrokerUrls, exchange: &str) -> Finding {
    let finding = |status, value: String, mend: Option<String>| Finding {
        what: "broker".into(),
        value,
        needed: "reachable, with the exchange".into(),
        status,
        mend,
    };
    // A template names no exchange; the default exchange is always there: then only the login is tried.
    let (name, fixed) = if exchange.contains('{') {
        ("amq.topic", false)
    } else {
        (exchange, true)
    };
    match tailpost_rabbitmq::check_exchange(broker, name).await {
        Ok(ExchangeState::Present) if fixed => {
            finding(Status::Ok, format!("exchange {exchange:?} exists"), None)
        }
        Ok(ExchangeState::Missing) if fixed => finding(
            Status::Fault,
            format!("exchange {exchange:?} does not exist"),
            Some("tailpost postgres init --declare-exchange topic".into()),
        ),
        Ok(ExchangeState::Present | ExchangeState::Missing) => finding(
            Status::Ok,
            format!("reachable; the exchanges of {exchange:?} are not looked up"),
            None,
        ),
        Err(failure) => finding(Status::Fault, failure.to_string(), failure.hint),
    }
}
