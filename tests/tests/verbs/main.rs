//! Every verb but `run`, as an operator uses it.

mod check;
mod drop;
mod init;
mod offline;
mod offset;
mod peek;

use anyhow::{Result, ensure};
use tailpost_testkit::servers::unique_name;
use tailpost_testkit::{Ended, Tailpost};
use tailpost_tests::Scene;

/// What a verb printed and said, for the text of an error.
fn said(ended: &Ended) -> String {
    format!("{:?}\n{}{}", ended.code(), ended.stdout, ended.stderr)
}

fn assert_code(ended: &Ended, code: i32, words: &[&str]) -> Result<()> {
    ensure!(ended.code() == Some(code), "wanted {code}: {}", said(ended));
    let all = said(ended);
    let missing: Vec<_> = words.iter().filter(|word| !all.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} not in: {all}");
    Ok(())
}

async fn one_text(scene: &Scene, sql: &str) -> Result<Option<String>> {
    let row = scene.database.connect().await?.query_opt(sql, &[]).await?;
    row.map_or(Ok(None), |row| Ok(row.try_get(0)?))
}

async fn confirmed_flush(scene: &Scene) -> Result<Option<String>> {
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = ";
    one_text(scene, &format!("{sql}'{}'", scene.slot)).await
}

/// Slots, publications and tables of the scene's database.
async fn inventory(scene: &Scene) -> Result<Vec<String>> {
    let sql = "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()
               UNION ALL SELECT 'publication ' || pubname FROM pg_publication
               UNION ALL SELECT 'table ' || tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1";
    let rows = scene.database.connect().await?.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Makes a role with these attributes for `test`, which gets its name.
async fn with_role(
    scene: &Scene,
    attributes: &str,
    test: impl AsyncFnOnce(&str) -> Result<()>,
) -> Result<()> {
    let role = unique_name();
    let make = format!("CREATE ROLE {role} LOGIN {attributes}");
    scene.database.execute(&make).await?;
    let result = test(&role).await;
    // The server is shared: a role outlives its database.
    let remove = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    scene.database.execute(&remove).await?;
    result
}

/// A verb of this role.
async fn verb_as(scene: &Scene, role: &str, verb: &str, extra: &[&str]) -> Result<Ended> {
    let url = scene.database.url().replace("postgres@", &format!("{role}@"));
    let mut args = vec!["postgres", verb, "--source", &url, "--slot", &scene.slot];
    args.extend(extra);
    Tailpost::command(&args).await
}

fn event(kind: &str) -> String {
    format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '7', '{kind}', '{{\"a\": 1.50}}');"
    )
}

/// The table and nothing else.
async fn bare() -> Result<Scene> {
    let scene = Scene::shared().await?;
    let schema = Tailpost::command(&["postgres", "schema"]).await?.success()?;
    scene.database.execute(&schema.stdout).await?;
    Ok(scene)
}

async fn prepared() -> Result<Scene> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    Ok(scene)
}
