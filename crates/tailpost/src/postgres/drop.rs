//! `tailpost postgres drop`.

use tailpost_postgres::drop;

use super::{Error, agrees, print, sql};
use crate::args::DropCommand;
use crate::config::{self, Faults};
use crate::exit::Exit;

pub(super) async fn execute(command: DropCommand, mut faults: Faults) -> Result<Exit, Error> {
    config::start_logs(&command.log, &mut faults);
    let source = config::source(&command.source, &mut faults);
    let source = faults.judge(source)?;
    let session = sql(&source).await?;
    let plan = drop::plan(&session, &source).await?;
    let mut text: String = plan.kept.iter().map(|kept| format!("{kept}\n")).collect();
    if plan.steps.is_empty() {
        text.push_str("nothing to drop\n");
        print(&text)?;
        return Ok(Exit::Done);
    }
    text.extend(
        plan.steps
            .iter()
            .map(|(what, statement)| format!("drop {what}: {statement};\n")),
    );
    print(&text)?;
    const QUESTION: &str =
        "What was not published yet will not be, unless it is published from the table. Drop?";
    if !command.drop.yes && !agrees(QUESTION)? {
        return Ok(Exit::Unexpected);
    }
    // Each as it happens: what a later step meets does not hide what is gone.
    let mut printed = Ok(());
    let dropped = drop::apply(&session, &plan, |what| {
        if printed.is_ok() {
            printed = print(&format!("dropped {what}\n"));
        }
    });
    dropped.await?;
    printed?;
    Ok(Exit::Done)
}
