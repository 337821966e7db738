//! `drop`: what is ours, after a yes.

use anyhow::{Result, ensure};
use tailpost_tests::LONG;

use crate::{assert_code, inventory, prepared, verb_as, with_role};

#[tokio::test(flavor = "multi_thread")]
async fn drop_refuses_without_a_terminal_and_while_a_relay_runs_and_then_drops_all_but_the_table()
-> Result<()> {
    let scene = prepared().await?;
    let things = inventory(&scene).await?;
    assert_code(
        &scene.verb("drop", &[]).await?,
        2,
        &[
            "error: What was not",
            "--yes",
            "pg_drop_replication_slot",
            "DROP PUBLICATION",
        ],
    )?;
    ensure!(inventory(&scene).await? == things, "dropped without a yes");
    let mut tailpost = scene.run_ready(&[]).await?;
    let busy = scene.verb("drop", &["--yes"]).await?;
    assert_code(
        &busy,
        1,
        &[
            "in use by",
            &format!("tailpost/{}@", scene.slot),
            "stop the relay first",
        ],
    )?;
    ensure!(
        inventory(&scene).await? == things,
        "dropped under a running relay"
    );
    tailpost.sigterm()?;
    ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());
    assert_code(
        &scene.verb("drop", &["--yes"]).await?,
        0,
        &["dropped slot", "dropped publication"],
    )?;
    ensure!(inventory(&scene).await? == ["table outbox_event"]);
    assert_code(&scene.verb("drop", &["--yes"]).await?, 0, &["nothing to drop"])?;
    // From here `init` begins anew.
    scene.verb("init", &[]).await?.success().map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_keeps_a_publication_that_covers_other_tables_and_a_slot_that_is_not_ours() -> Result<()> {
    let scene = prepared().await?;
    scene
        .database
        .execute(&format!(
            "CREATE TABLE other (id int); ALTER PUBLICATION {} ADD TABLE other",
            scene.slot
        ))
        .await?;
    assert_code(
        &scene.verb("drop", &["--yes"]).await?,
        0,
        &["stays", "public.other", "dropped slot"],
    )?;
    ensure!(
        inventory(&scene)
            .await?
            .contains(&format!("publication {}", scene.slot))
    );
    let foreign = format!(
        "SELECT pg_create_logical_replication_slot('{}', 'test_decoding')",
        scene.slot
    );
    scene.database.execute(&foreign).await?;
    assert_code(&scene.verb("drop", &["--yes"]).await?, 78, &["test_decoding"])?;
    ensure!(
        inventory(&scene).await?.contains(&format!("slot {}", scene.slot)),
        "a foreign slot was dropped"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_by_a_role_that_may_not_drop_all_of_it_drops_nothing_and_names_who_may() -> Result<()> {
    let scene = prepared().await?;
    let things = inventory(&scene).await?;
    with_role(&scene, "", async |role| {
        let refused = verb_as(&scene, role, "drop", &["--yes"]).await?;
        assert_code(&refused, 78, &[role, "REPLICATION"])?;
        ensure!(inventory(&scene).await? == things);
        Ok(())
    })
    .await?;
    with_role(&scene, "REPLICATION", async |role| {
        let refused = verb_as(&scene, role, "drop", &["--yes"]).await?;
        let statement = format!("DROP PUBLICATION \"{}\"", scene.slot);
        let words = [
            role,
            "belongs to role \"postgres\"",
            "nothing was dropped",
            &statement,
        ];
        assert_code(&refused, 78, &words)?;
        ensure!(
            !refused.stderr.contains("ALTER ROLE") && inventory(&scene).await? == things,
            "{}",
            refused.stderr
        );
        // What it names works: the owner's statement, and the rest by this role.
        scene.database.execute(&statement).await?;
        let dropped = verb_as(&scene, role, "drop", &["--yes"]).await?;
        assert_code(&dropped, 0, &["dropped slot"])
    })
    .await
}
