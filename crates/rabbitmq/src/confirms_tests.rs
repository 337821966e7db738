//! Goal: for every order in which the broker may send and lapin may hand out, exactly the unroutable events are returned.
//! Method: a model of lapin's FIFO of returns, driven by random choices, with the truth beside it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

fn returned(position: &str) -> Option<Returned> {
    Some(Returned {
        position: Some(position.to_owned()),
        reason: "NO_ROUTE".into(),
    })
}

fn returned_outcome(seq: Seq) -> Outcome {
    Outcome::Returned {
        seq,
        reason: "NO_ROUTE".into(),
    }
}

#[test]
fn ack_alone_is_not_believed_before_a_pass_found_nothing() {
    let (mut confirms, mut outcomes) = (Confirms::default(), Vec::new());
    let index = confirms.published(7, "0/1:0").unwrap();
    confirms
        .completed(index, Verdict::Ack, None, &mut outcomes)
        .unwrap();
    assert_eq!(outcomes, []);
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, [Outcome::Confirmed(7)]);
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes.len(), 1);
}

#[test]
fn return_on_a_later_seen_confirm_unmakes_an_ack_without_a_return() {
    let (mut confirms, mut outcomes) = (Confirms::default(), Vec::new());
    let lost = confirms.published(1, "a").unwrap();
    let fine = confirms.published(2, "b").unwrap();
    confirms
        .completed(lost, Verdict::Ack, None, &mut outcomes)
        .unwrap();
    confirms
        .completed(fine, Verdict::Ack, returned("a"), &mut outcomes)
        .unwrap();
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, [returned_outcome(1), Outcome::Confirmed(2)]);
}

#[test]
fn ack_with_a_strangers_return_waits_for_everything_published_before() {
    let (mut confirms, mut outcomes) = (Confirms::default(), Vec::new());
    let first = confirms.published(1, "a").unwrap();
    let third = confirms.published(3, "c").unwrap();
    // return(a), return(c), ack(c), ack(a): the confirm of c carries the return of a, and its own comes with a's.
    confirms
        .completed(third, Verdict::Ack, returned("a"), &mut outcomes)
        .unwrap();
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, []);
    confirms
        .completed(first, Verdict::Ack, returned("c"), &mut outcomes)
        .unwrap();
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, [returned_outcome(1), returned_outcome(3)]);
}

#[test]
fn returned_event_is_answered_only_when_its_own_confirm_has_completed() {
    let (mut confirms, mut outcomes) = (Confirms::default(), Vec::new());
    let lost = confirms.published(1, "a").unwrap();
    let fine = confirms.published(2, "b").unwrap();
    confirms
        .completed(fine, Verdict::Ack, returned("a"), &mut outcomes)
        .unwrap();
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, []);
    assert_eq!(confirms.published(1, "a"), Err(Taken));
    confirms
        .completed(lost, Verdict::Ack, None, &mut outcomes)
        .unwrap();
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, [returned_outcome(1), Outcome::Confirmed(2)]);
    assert_eq!(confirms.published(1, "a"), Ok(2));
}

#[test]
fn nack_that_carries_anothers_return_is_nacked_and_the_other_returned() {
    let (mut confirms, mut outcomes) = (Confirms::default(), Vec::new());
    let nacked = confirms.published(1, "a").unwrap();
    let lost = confirms.published(2, "b").unwrap();
    confirms
        .completed(nacked, Verdict::Nack, returned("b"), &mut outcomes)
        .unwrap();
    confirms
        .completed(lost, Verdict::Ack, None, &mut outcomes)
        .unwrap();
    confirms.settle(&mut outcomes);
    assert_eq!(outcomes, [returned_outcome(2), Outcome::Nacked(1)]);
}

#[test]
fn return_of_nobody_is_stray() {
    let (mut confirms, mut outcomes) = (Confirms::default(), Vec::new());
    let index = confirms.published(1, "a").unwrap();
    let nameless = Some(Returned {
        position: None,
        reason: "NO_ROUTE".into(),
    });
    assert_eq!(
        confirms.completed(index, Verdict::Ack, returned("z"), &mut outcomes),
        Err(Stray)
    );
    let index = confirms.published(2, "b").unwrap();
    assert_eq!(
        confirms.completed(index, Verdict::Ack, nameless, &mut outcomes),
        Err(Stray)
    );
    assert_eq!(outcomes, []);
}

/// What the broker does with one publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Routed,
    Refused,
    Unroutable,
}

/// Broker, lapin and sink in one, stepped by choices.
#[derive(Default)]
struct Model {
    confirms: Confirms,
    /// By index; `seq` is the event, an event is published again after it was returned or refused.
    fates: Vec<(Seq, Fate)>,
    /// Unroutable, return not sent yet; the broker sends returns in any order here.
    unsent: BTreeSet<Index>,
    unconfirmed: BTreeSet<Index>,
    fifo: VecDeque<Index>,
    /// Completed, in lapin's order, not seen by the sink.
    unseen: Vec<(Index, Verdict, Option<Index>)>,
    answers: BTreeMap<Index, Outcome>,
    again: Vec<Seq>,
    next_seq: Seq,
}

fn position(seq: Seq) -> String {
    format!("0/1:{seq}")
}

impl Model {
    fn publish(&mut self, fate: Fate) {
        let seq = self.again.pop().unwrap_or_else(|| {
            self.next_seq += 1;
            self.next_seq
        });
        let index = self
            .confirms
            .published(seq, &position(seq))
            .expect("answered before it is published again");
        assert_eq!(index as usize, self.fates.len());
        self.fates.push((seq, fate));
        self.unconfirmed.insert(index);
        if fate == Fate::Unroutable {
            self.unsent.insert(index);
        }
    }

    fn send_return(&mut self, choice: usize) {
        let picked = self.unsent.iter().nth(choice % self.unsent.len().max(1)).copied();
        if let Some(index) = picked {
            self.unsent.remove(&index);
            self.fifo.push_back(index);
        }
    }

    /// One confirm, or all of the same kind up to it, in an order that `choice` shuffles.
    fn send_confirm(&mut self, choice: usize, multiple: bool) {
        let Some(&last) = self
            .unconfirmed
            .iter()
            .nth(choice % self.unconfirmed.len().max(1))
        else {
            return;
        };
        let nack = self.fates[last as usize].1 == Fate::Refused;
        let covered = |index: Index| (self.fates[index as usize].1 == Fate::Refused) == nack;
        let mut tags: Vec<Index> = self
            .unconfirmed
            .range(..=last)
            .copied()
            .filter(|&i| i == last || (multiple && covered(i)))
            .collect();
        tags.retain(|tag| !self.unsent.contains(tag));
        let len = tags.len().max(1);
        tags.rotate_left(choice / 7 % len);
        if choice % 2 == 1 {
            tags.reverse();
        }
        for tag in tags {
            self.unconfirmed.remove(&tag);
            let verdict = if nack { Verdict::Nack } else { Verdict::Ack };
            self.unseen.push((tag, verdict, self.fifo.pop_front()));
        }
    }

    /// A pass sees all that completed before it began, in any order, and any of what completes meanwhile.
    fn pass(&mut self, choice: usize, meanwhile: &[(u8, usize)]) {
        let before = self.unseen.len();
        for &(kind, pick) in meanwhile {
            self.broker(kind, pick);
        }
        let mut seen: Vec<_> = self.unseen.drain(..before).collect();
        let mut position = 0;
        self.unseen.retain(|&completion| {
            position += 1;
            let late = before > 0 && (choice >> (position % 8)) & 1 == 1;
            if late {
                seen.push(completion);
            }
            !late
        });
        let len = seen.len().max(1);
        seen.rotate_left(choice % len);
        let mut outcomes = Vec::new();
        for (index, verdict, carried) in seen {
            let carried = carried.map(|of| Returned {
                position: Some(position_of(&self.fates, of)),
                reason: "NO_ROUTE".into(),
            });
            self.confirms
                .completed(index, verdict, carried, &mut outcomes)
                .expect("every return has an owner");
        }
        if before == 0 {
            self.confirms.settle(&mut outcomes);
        }
        for outcome in outcomes {
            self.check(outcome);
        }
    }

    fn check(&mut self, outcome: Outcome) {
        let (seq, said) = match &outcome {
            Outcome::Confirmed(seq) => (*seq, Fate::Routed),
            Outcome::Nacked(seq) => (*seq, Fate::Refused),
            Outcome::Returned { seq, .. } => (*seq, Fate::Unroutable),
            Outcome::Blocked { .. } | Outcome::Unblocked => panic!("no confirm says {outcome:?}"),
        };
        let index = self
            .fates
            .iter()
            .rposition(|&(of, _)| of == seq)
            .expect("published") as Index;
        assert_eq!(said, self.fates[index as usize].1, "event {seq}");
        assert_eq!(self.answers.insert(index, outcome), None, "answered twice");
        if said != Fate::Routed {
            self.again.push(seq);
        }
    }

    fn broker(&mut self, kind: u8, pick: usize) {
        match kind % 3 {
            0 => self.send_return(pick),
            1 => self.send_confirm(pick, false),
            _ => self.send_confirm(pick, true),
        }
    }

    fn finish(&mut self) {
        while !self.unsent.is_empty() {
            self.send_return(0);
        }
        while !self.unconfirmed.is_empty() {
            self.send_confirm(self.unconfirmed.len() - 1, true);
        }
        while !self.unseen.is_empty() {
            self.pass(0, &[]);
        }
        self.pass(0, &[]);
    }
}

fn position_of(fates: &[(Seq, Fate)], index: Index) -> String {
    position(fates[index as usize].0)
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Routed), 1 => Just(Fate::Refused), 2 => Just(Fate::Unroutable)]
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Fate),
    Broker(u8, usize),
    Pass(usize, Vec<(u8, usize)>),
}

fn step() -> impl Strategy<Value = Step> {
    let broker = (any::<u8>(), any::<usize>());
    prop_oneof![
        3 => fate().prop_map(Step::Publish),
        4 => broker.prop_map(|(kind, pick)| Step::Broker(kind, pick)),
        3 => (any::<usize>(), prop::collection::vec(broker, 0..4)).prop_map(|(choice, meanwhile)| Step::Pass(choice, meanwhile)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn exactly_the_unroutable_are_returned_and_nothing_is_answered_twice(steps in prop::collection::vec(step(), 0..120)) {
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Publish(fate) => model.publish(fate),
                Step::Broker(kind, pick) => model.broker(kind, pick),
                Step::Pass(choice, meanwhile) => model.pass(choice, &meanwhile),
            }
        }
        model.finish();
        prop_assert_eq!(model.answers.len(), model.fates.len(), "every publish is answered");
        prop_assert!(model.confirms.positions.is_empty());
    }
}
