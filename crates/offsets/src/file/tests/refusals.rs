//! Whatever is no offset of ours is refused, and never taken for "nothing was ever stored" (O2).

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::{Fault, inspect, set, take_previous};

fn fault(failure: &Failure) -> &Fault {
    match offset_error(failure) {
        OffsetError::Unusable { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

fn hint(failure: &Failure) -> &str {
    failure.hint.as_deref().unwrap()
}

/// The refusal names the file and the way out.
fn assert_names_the_generation_before(failure: &Failure) {
    assert!(failure.to_string().starts_with("offset file \"/"), "{failure}");
    assert!(hint(failure).contains("1 at 100"), "{}", hint(failure));
    assert!(
        hint(failure).contains("`tailpost postgres offset set --previous --offsets file:"),
        "{}",
        hint(failure)
    );
}

#[tokio::test]
async fn a_file_truncated_at_any_byte_is_refused() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_names_the_generation_before(&refused(&path).await);
    }
    fs::write(&path, [whole.as_slice(), b"\0"].concat()).unwrap();
    assert_names_the_generation_before(&refused(&path).await);
    fs::write(&path, &whole).unwrap();
    assert_eq!(load(&path).await.unwrap(), Some(200));
}

#[tokio::test]
async fn a_file_with_any_bit_flipped_is_refused() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &flipped).unwrap();
        assert_names_the_generation_before(&refused(&path).await);
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(load(&path).await.unwrap(), Some(200));
}

#[tokio::test]
async fn an_offset_of_another_relay_is_refused_naming_the_field() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    for name in ["system_id", "database", "slot", "name"] {
        let fields = identity()
            .fields()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect::<Vec<_>>();
        let fields = fields.into_iter().map(|(key, value)| {
            if key == name {
                (key, "an\nother".into())
            } else {
                (key, value)
            }
        });
        let other = Identity::new("postgres", fields);
        let failure = Store::open(&path, other).unwrap().load().await.unwrap_err();
        assert_eq!(failure.disposition, Disposition::Halt(Cause::Offsets));
        let text = failure.to_string();
        assert!(
            text.contains(&format!("its {name} is \"")) && text.contains("\"an\\nother\""),
            "{text}"
        );
        assert!(
            !hint(&failure).contains("--previous"),
            "the generation before is foreign too"
        );
    }
    let mysql = Identity::new(
        "mysql",
        identity().fields().filter(|(key, _)| *key != "connector"),
    );
    let failure = Store::open(&path, mysql).unwrap().load().await.unwrap_err();
    assert!(
        failure.to_string().contains("its connector is \"postgres\""),
        "{failure}"
    );
    assert_eq!(load(&path).await.unwrap(), Some(200));
}

#[tokio::test]
async fn a_deleted_offset_is_no_first_start() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    fs::remove_file(&path).unwrap();
    let failure = refused(&path).await;
    assert!(matches!(fault(&failure), Fault::Gone), "{failure}");
    assert_names_the_generation_before(&failure);
    let failure = open(&path).store(&300).await.unwrap_err();
    assert!(matches!(fault(&failure), Fault::Gone), "{failure}");
    // The lock file alone still tells.
    fs::remove_file(beside(&path, ".previous")).unwrap();
    let failure = refused(&path).await;
    assert!(
        hint(&failure).contains("no generation before is intact"),
        "{}",
        hint(&failure)
    );
    // And so does the generation before alone, even a damaged one.
    fs::write(beside(&path, ".previous"), "").unwrap();
    fs::remove_file(beside(&path, ".lock")).unwrap();
    assert!(matches!(fault(&refused(&path).await), Fault::Gone));
}

#[tokio::test]
async fn what_is_no_regular_file_is_refused() {
    let (folder, path) = folder();
    stored_twice(&path).await;
    let moved = folder.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &path).unwrap();
    let failure = refused(&path).await;
    assert!(matches!(fault(&failure), Fault::Symlink), "{failure}");
    assert_names_the_generation_before(&failure);
    assert!(open(&path).store(&300).await.is_err());
    assert!(
        fs::symlink_metadata(&path).unwrap().is_symlink(),
        "the store left it alone"
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(fault(&refused(&path).await), Fault::NotAFile));
}

#[tokio::test]
async fn a_file_that_others_may_write_is_refused() {
    let (folder, path) = folder();
    stored_twice(&path).await;
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o602, 0o666, 0o620, 0o660] {
        chmod(&path, mode);
        let failure = refused(&path).await;
        assert!(
            matches!(fault(&failure), Fault::Writable { mode: found } if *found == mode),
            "{failure}"
        );
        assert_names_the_generation_before(&failure);
    }
    // Who may write the folder can replace the file whatever its mode: Kubernetes' fsGroup sets both.
    chmod(folder.path(), 0o2770);
    chmod(&path, 0o660);
    assert_eq!(load(&path).await.unwrap(), Some(200));
    chmod(&path, 0o662);
    refused(&path).await;
    // Readable is no harm; the next store closes it.
    chmod(&path, 0o644);
    let mut store = open(&path);
    assert_eq!(store.load().await.unwrap(), Some(200));
    store.store(&300).await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_position_of_another_kind_is_refused() {
    let (_folder, path) = folder();
    FileStore::<f64>::open(&path, identity())
        .unwrap()
        .store(&1.5)
        .await
        .unwrap();
    let failure = refused(&path).await;
    assert!(matches!(fault(&failure), Fault::Position(_)), "{failure}");
    assert!(matches!(
        fault(&open(&path).store(&2).await.unwrap_err()),
        Fault::Position(_)
    ));
}

#[tokio::test]
async fn an_offset_changed_by_somebody_else_is_noticed_before_the_next_store() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    store.store(&100).await.unwrap();
    let before = fs::read(&path).unwrap();
    store.store(&200).await.unwrap();
    fs::write(&path, before).unwrap();
    let failure = store.store(&300).await.unwrap_err();
    assert!(
        failure.to_string().ends_with("(from generation 2 to 1)"),
        "{failure}"
    );
    assert_eq!(failure.disposition, Disposition::Halt(Cause::Offsets));
}

#[tokio::test]
async fn a_store_without_its_lock_is_refused() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    store.store(&100).await.unwrap();
    fs::remove_file(beside(&path, ".lock")).unwrap();
    let mut second = open(&path);
    second.store(&200).await.unwrap();
    let failure = store.store(&300).await.unwrap_err();
    assert!(
        matches!(offset_error(&failure), OffsetError::LockLost { .. }),
        "{failure}"
    );
    assert_eq!(failure.disposition, Disposition::Halt(Cause::Offsets));
    assert_eq!(second.load().await.unwrap(), Some(200));
}

#[test]
fn a_folder_that_is_not_there_is_named_with_the_remedy() {
    let (folder, _) = folder();
    let error = Store::open(&folder.path().join("absent/offset"), identity())
        .err()
        .unwrap();
    assert_eq!(error.disposition(), Disposition::Halt(Cause::Offsets));
    assert!(error.hint().unwrap().starts_with("create folder "), "{error}");
}

#[tokio::test]
async fn offset_set_moves_backward_and_the_relay_goes_on_from_there() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let record = set(&path, identity(), &50).unwrap();
    assert_eq!((record.generation, record.position.as_str()), (3, "50"));
    assert_eq!(load(&path).await.unwrap(), Some(50));
    let record = take_previous(&path).unwrap();
    assert_eq!((record.generation, record.position.as_str()), (4, "200"));
    assert_eq!(load(&path).await.unwrap(), Some(200));
}

#[tokio::test]
async fn offset_set_mends_a_damaged_or_deleted_file_and_keeps_the_intact_generation() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    fs::write(&path, "").unwrap();
    assert_eq!(take_previous(&path).unwrap().position, "100");
    assert_eq!(load(&path).await.unwrap(), Some(100));
    assert_eq!(inspect(&path).previous.unwrap().unwrap().position, "100");
    fs::remove_file(&path).unwrap();
    assert_eq!(set(&path, identity(), &150).unwrap().generation, 2);
    assert_eq!(load(&path).await.unwrap(), Some(150));
    assert_eq!(inspect(&path).previous.unwrap().unwrap().generation, 1);
}

#[tokio::test]
async fn offset_set_refuses_a_foreign_file_and_a_running_relay() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let other = Identity::new("postgres", [("slot", "other")]);
    assert!(matches!(
        set(&path, other, &1),
        Err(OffsetError::Unusable {
            fault: Fault::Foreign(_),
            ..
        })
    ));
    let running = open(&path);
    assert!(matches!(
        set(&path, identity(), &1),
        Err(OffsetError::Locked { .. })
    ));
    assert!(matches!(take_previous(&path), Err(OffsetError::Locked { .. })));
    assert_eq!(
        inspect(&path).current.unwrap().unwrap().position,
        "200",
        "looking needs no lock"
    );
    drop(running);
    fs::remove_file(beside(&path, ".previous")).unwrap();
    let error = take_previous(&path).unwrap_err();
    assert!(
        matches!(&error, OffsetError::Unusable { path, fault: Fault::Absent, .. } if path.ends_with("offset.previous"))
    );
    assert_eq!(load(&path).await.unwrap(), Some(200));
}

#[tokio::test]
async fn inspection_shows_each_generation_for_itself() {
    let (_folder, path) = folder();
    let inspection = inspect(&path);
    assert!(matches!(
        (inspection.current, inspection.previous),
        (Ok(None), Ok(None))
    ));
    stored_twice(&path).await;
    fs::write(&path, "TPOFF").unwrap();
    let error = inspect(&path).current.unwrap_err();
    assert!(error.hint().unwrap().contains("1 at 100"));
    let inspection = inspect(&path);
    assert_eq!(inspection.previous.unwrap().unwrap().position, "100");
}
