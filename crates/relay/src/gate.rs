//! The order gate (law 4): an aggregate with an event on its way holds its next.
//!
//! Each aggregate with unsettled events is a chain: its head may be published, the rest wait in commit order. The chain's
//! links live in the events themselves, so that a held event costs no memory here.

use std::collections::HashMap;

use tailpost_outbox::AggregateKey;

use crate::Seq;

#[derive(Debug)]
struct Chain {
    head: Seq,
    tail: Seq,
}

/// What the gate says of a new event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is the head of its aggregate: it may go.
    Go,
    /// It waits behind `previous`, which must remember it as its next.
    Hold { previous: Seq },
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    chains: HashMap<AggregateKey, Chain>,
}

impl Gate {
    /// Appends an event to its aggregate's chain.
    pub(crate) fn admit(&mut self, aggregate: AggregateKey, seq: Seq) -> Admission {
        match self.chains.get_mut(&aggregate) {
            Some(chain) => Admission::Hold {
                previous: std::mem::replace(&mut chain.tail, seq),
            },
            None => {
                self.chains.insert(aggregate, Chain { head: seq, tail: seq });
                Admission::Go
            }
        }
    }

    /// The head is settled; `next` is what it remembered. Returns the event that may go now.
    pub(crate) fn release(
        &mut self,
        aggregate: AggregateKey,
        settled: Seq,
        next: Option<Seq>,
    ) -> Option<Seq> {
        let chain = self.chains.get_mut(&aggregate)?;
        debug_assert_eq!(
            chain.head, settled,
            "only the head of an aggregate is ever published"
        );
        match next {
            Some(next) => chain.head = next,
            None => {
                self.chains.remove(&aggregate);
            }
        }
        next
    }

    /// Forgets every chain.
    pub(crate) fn clear(&mut self) {
        self.chains.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_4_an_aggregate_lets_one_go_and_holds_the_rest_in_order() {
        let mut gate = Gate::default();
        let (a, b) = (AggregateKey(1), AggregateKey(2));
        assert_eq!(gate.admit(a, 10), Admission::Go);
        assert_eq!(gate.admit(a, 11), Admission::Hold { previous: 10 });
        assert_eq!(gate.admit(b, 12), Admission::Go);
        assert_eq!(gate.admit(a, 13), Admission::Hold { previous: 11 });
        assert_eq!(gate.release(a, 10, Some(11)), Some(11));
        assert_eq!(gate.release(a, 11, Some(13)), Some(13));
        assert_eq!(gate.release(a, 13, None), None);
        assert_eq!(gate.admit(a, 14), Admission::Go);
    }
}
