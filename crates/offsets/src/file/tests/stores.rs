//! What a store promises while nothing goes wrong.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::task::{Context, Waker};

use super::*;

#[tokio::test]
async fn a_stored_position_is_loaded_by_the_next_process_and_the_one_before_is_kept() {
    let (folder, path) = folder();
    assert_eq!(load(&path).await.unwrap(), None);
    assert_eq!(names(&folder), ["offset.lock"], "open creates nothing else");
    stored_twice(&path).await;
    assert_eq!(load(&path).await.unwrap(), Some(200));
    assert_eq!(names(&folder), ["offset", "offset.lock", "offset.previous"]);
    let inspection = crate::inspect(&path);
    let (current, previous) = (
        inspection.current.unwrap().unwrap(),
        inspection.previous.unwrap().unwrap(),
    );
    assert_eq!((current.generation, current.position.as_str()), (2, "200"));
    assert_eq!((previous.generation, previous.position.as_str()), (1, "100"));
    assert_eq!(current.identity, identity());
    assert!(current.stored_at().unwrap().elapsed().unwrap().as_secs() < 60);
    for name in names(&folder) {
        let mode = fs::metadata(folder.path().join(&name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn law_3_a_store_refuses_to_move_backward_and_names_both_positions() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let mut store = open(&path);
    let failure = store.store(&199).await.unwrap_err();
    assert_eq!(failure.disposition, Disposition::Halt(Cause::Unexpected));
    assert!(
        failure.to_string().ends_with("backward, from 200 to 199"),
        "{failure}"
    );
    store.store(&200).await.unwrap();
    assert_eq!(store.load().await.unwrap(), Some(200));
}

#[tokio::test]
async fn law_3_a_position_that_cannot_be_compared_with_the_stored_one_is_refused() {
    let (_folder, path) = folder();
    let mut store = FileStore::<f64>::open(&path, identity()).unwrap();
    store.store(&1.5).await.unwrap();
    let failure = store.store(&f64::NAN).await.unwrap_err();
    assert!(matches!(offset_error(&failure), OffsetError::Backward { .. }));
    assert_eq!(store.load().await.unwrap(), Some(1.5));
}

#[tokio::test]
async fn law_5_a_second_store_is_a_standby_that_names_the_holder_and_takes_over() {
    let (_folder, path) = folder();
    let mut first = open(&path);
    first.store(&100).await.unwrap();
    let failure = Failure::from(Store::open(&path, identity()).err().unwrap());
    let holder = format!("process {} on host ", std::process::id());
    assert!(matches!(&failure.disposition, Disposition::Standby { holder: who } if who.starts_with(&holder)));
    assert!(failure.to_string().contains(&holder), "{failure}");
    first.store(&200).await.unwrap();
    drop(first);
    assert_eq!(load(&path).await.unwrap(), Some(200));
}

#[test]
fn a_store_whose_future_was_dropped_completes_before_the_lock_is_freed() {
    // One blocking thread: what is asked for later runs later.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let (_folder, path) = folder();
    runtime.block_on(async {
        let mut store = open(&path);
        let position = 100;
        let mut begun = Box::pin(store.store(&position));
        assert!(
            begun
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        drop(begun);
        assert_eq!(store.load().await.unwrap(), Some(100));
        let position = 200;
        let mut begun = Box::pin(store.store(&position));
        assert!(
            begun
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        drop(begun);
        drop(store);
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert_eq!(load(&path).await.unwrap(), Some(200));
    });
}

#[tokio::test]
async fn the_timeline_is_stamped_on_each_store_and_given_back_to_be_judged() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    store.store(&100).await.unwrap();
    let timeline = store.timeline();
    assert_eq!(timeline.current(), Some(1));
    timeline.set(2);
    store.store(&200).await.unwrap();
    drop(store);
    let mut older = Store::open(&path, identity().with_timeline(1)).unwrap();
    assert_eq!(older.load().await.unwrap(), Some(200));
    assert_eq!(older.record().await.unwrap().unwrap().identity.timeline, Some(2));
}

#[tokio::test]
async fn a_symlink_planted_in_the_place_of_the_new_file_is_not_followed() {
    let (folder, path) = folder();
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, beside(&path, ".new")).unwrap();
    stored_twice(&path).await;
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(load(&path).await.unwrap(), Some(200));
}
