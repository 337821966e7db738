//! A checker that cannot find a fault is worthless: each fault is planted and has to be found, and nothing else.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

fn committed(aggregate: u8, seq: usize) -> Committed {
    let id = format!("{aggregate}-{seq}");
    Committed {
        digest: Some(digest(id.as_bytes())),
        id,
        aggregate: Some(format!("order/{aggregate}")),
    }
}

fn delivered(event: &Committed) -> Delivery {
    Delivery::of(
        &event.id,
        Some(&format!("0/16:{}", event.id)),
        event.id.as_bytes(),
    )
}

fn ledger(aggregates: &[u8]) -> Ledger {
    let mut seqs = HashMap::new();
    let next = |aggregate: &u8| {
        let seq = seqs.entry(*aggregate).or_insert(0);
        *seq += 1;
        committed(*aggregate, *seq)
    };
    Ledger(aggregates.iter().map(next).collect())
}

fn all(ledger: &Ledger) -> Vec<Delivery> {
    ledger.0.iter().map(delivered).collect()
}

/// A ledger with at least two events, over at most four aggregates.
fn ledgers() -> impl Strategy<Value = Ledger> {
    proptest::collection::vec(0u8..4, 2..40).prop_map(|aggregates| ledger(&aggregates))
}

proptest! {
    #[test]
    fn complete_deliveries_are_clean_with_any_suffix_repeated(
        ledger in ledgers(),
        repeats in proptest::collection::vec((any::<Index>(), any::<Index>()), 0..4),
    ) {
        // A crash repeats what came before it, from some earlier place on.
        let once = all(&ledger);
        let mut deliveries = Vec::new();
        let mut sent = 0;
        for (stop, back) in &repeats {
            let stop = sent + stop.index(once.len() - sent + 1);
            deliveries.extend_from_slice(&once[sent..stop]);
            sent = back.index(stop + 1);
        }
        deliveries.extend_from_slice(&once[sent..]);
        let verdict = check(&ledger, &deliveries);
        prop_assert!(verdict.assert_clean().is_ok(), "{}", verdict);
        prop_assert_eq!(verdict.duplicates, deliveries.len() - once.len());
        prop_assert_eq!(verdict.delivered_unique, once.len());
        prop_assert_eq!(verdict.inversions_overall, 0);
    }

    #[test]
    fn aggregates_may_overtake_each_other(ledger in ledgers()) {
        let mut deliveries = all(&ledger);
        // Stable: the order within an aggregate, the first letter of the id, stays.
        deliveries.sort_by_key(|delivery| delivery.message_id.as_bytes()[0]);
        prop_assert!(check(&ledger, &deliveries).assert_clean().is_ok());
    }

    #[test]
    fn a_planted_loss_is_found(ledger in ledgers(), which in any::<Index>()) {
        let mut deliveries = all(&ledger);
        let gone = deliveries.remove(which.index(deliveries.len()));
        let verdict = check(&ledger, &deliveries);
        prop_assert!(verdict.assert_clean().is_err());
        prop_assert_eq!(verdict.lost, vec![gone.message_id.to_string()]);
        prop_assert_eq!(verdict.delivered_unique, ledger.0.len() - 1);
        prop_assert!(verdict.inversions.is_empty() && verdict.phantom.is_empty());
    }

    #[test]
    fn a_planted_phantom_is_found_once(ledger in ledgers(), at in any::<Index>()) {
        let mut deliveries = all(&ledger);
        let phantom = delivered(&committed(9, 1));
        deliveries.insert(at.index(deliveries.len() + 1), phantom.clone());
        deliveries.push(phantom);
        let verdict = check(&ledger, &deliveries);
        prop_assert!(verdict.assert_clean().is_err());
        prop_assert_eq!(verdict.phantom, vec!["9-1".to_owned()]);
        prop_assert_eq!(verdict.duplicates, 1);
        prop_assert!(verdict.lost.is_empty());
    }

    #[test]
    fn a_planted_inversion_is_found(ledger in ledgers(), which in any::<Index>()) {
        let mut deliveries = all(&ledger);
        let early = which.index(deliveries.len() - 1);
        let late = early + 1;
        deliveries.swap(early, late);
        let same = ledger.0[early].aggregate == ledger.0[late].aggregate;
        let verdict = check(&ledger, &deliveries);
        prop_assert_eq!(verdict.inversions.len(), usize::from(same), "{}", verdict);
        prop_assert_eq!(verdict.assert_clean().is_err(), same);
        prop_assert_eq!(verdict.inversions_overall, 1);
    }

    #[test]
    fn a_planted_change_of_a_body_is_found(ledger in ledgers(), which in any::<Index>()) {
        let mut deliveries = all(&ledger);
        let which = which.index(deliveries.len());
        deliveries[which].digest ^= 1;
        let verdict = check(&ledger, &deliveries);
        prop_assert!(verdict.assert_clean().is_err());
        prop_assert_eq!(verdict.altered, vec![ledger.0[which].id.clone()]);
    }

    #[test]
    fn two_events_at_one_position_are_found(ledger in ledgers(), which in any::<Index>()) {
        let mut deliveries = all(&ledger);
        let which = which.index(deliveries.len() - 1);
        deliveries[which + 1].position = deliveries[which].position.clone();
        let verdict = check(&ledger, &deliveries);
        prop_assert!(verdict.assert_clean().is_err());
        prop_assert_eq!(verdict.misplaced.len(), 1);
    }
}

#[test]
fn an_event_repeated_at_another_position_is_found() {
    let ledger = ledger(&[1]);
    let mut deliveries = all(&ledger);
    deliveries.push(Delivery::of("1-1", Some("0/17:0"), b"1-1"));
    let verdict = check(&ledger, &deliveries);
    assert_eq!(verdict.misplaced, ["1-1 at 0/16:1-1 and 0/17:0"]);
    assert!(verdict.assert_clean().is_err());
}

#[test]
fn a_redelivered_first_delivery_counts_for_order() {
    let ledger = ledger(&[1, 1]);
    let mut deliveries = all(&ledger);
    deliveries.swap(0, 1);
    deliveries
        .iter_mut()
        .for_each(|delivery| delivery.redelivered = true);
    assert_eq!(
        check(&ledger, &deliveries).inversions,
        ["1-1 after 1-2 (order/1)"]
    );
}

#[test]
fn a_late_duplicate_is_no_inversion_and_one_late_event_is_one() {
    let ledger = ledger(&[1, 1, 1, 1]);
    let once = all(&ledger);
    let order = [0, 3, 0, 1, 1, 2];
    let deliveries: Vec<_> = order.iter().map(|&place| once[place].clone()).collect();
    let verdict = check(&ledger, &deliveries);
    assert_eq!(
        verdict.inversions,
        ["1-2 after 1-4 (order/1)", "1-3 after 1-4 (order/1)"]
    );
    assert_eq!(verdict.duplicates, 2);
}

#[test]
fn events_without_an_aggregate_have_no_order() {
    let mut ledger = ledger(&[1, 1]);
    ledger.0.iter_mut().for_each(|event| event.aggregate = None);
    let mut deliveries = all(&ledger);
    deliveries.reverse();
    assert!(check(&ledger, &deliveries).assert_clean().is_ok());
}

#[test]
fn a_run_that_committed_nothing_is_not_clean() {
    assert!(check(&Ledger::default(), &[]).assert_clean().is_err());
}
