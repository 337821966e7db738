//! Which event was confirmed, returned or refused (law 9). A plain value: completions go in, outcomes come out.
//!
//! # Why an ack alone proves nothing
//!
//! The broker sends `basic.return` for an unroutable message before the confirm that covers it. lapin (4.12.3,
//! `returned_messages.rs`, `acknowledgement.rs`) puts each return at the end of one FIFO per channel, and each confirm
//! that completes takes the return at its head, whichever message it belongs to; the confirms that one
//! `multiple = true` covers complete in the random order of a `HashMap`. So the return of event n may sit on the confirm
//! of any other event, and n's own confirm may carry nothing, or a stranger's return. There is no other way to get at
//! the FIFO: `wait_for_confirms` hands out only what confirms that were *dropped* had taken.
//!
//! A return is therefore matched by the header `tailpost_position`, never by the confirm that carried it, and an event
//! is answered only when it is certain that no return of it can still appear:
//!
//! - **The confirm of n carried no return.** Then the FIFO was empty when it completed. The return of n, had there been
//!   one, was in the FIFO before, so an *earlier* completed confirm took it. lapin completes confirms one after the
//!   other on its I/O thread and wakes each one's waiter before it completes the next, so that a full pass over what was
//!   woken, begun after n's confirm was seen, sees all that completed before it. Hence: n is settled by the first such
//!   pass that finds nothing new ([`Confirms::settle`]).
//! - **The confirm of n carried the return of another event.** Then n's own may still be in the FIFO. But each return in
//!   there belongs to a message whose confirm had not completed yet, so there are never more returns waiting than
//!   confirms outstanding; each of those takes one away when it completes. Hence: once every message published before
//!   n's confirm was seen has completed, and a pass has found nothing new, the return of n is not there.
//! - **A return of n was seen.** Then n is returned; it is answered when its own confirm has completed too, so that
//!   nothing of it is left on the channel when the relay publishes it again.
//!
//! A confirm that is never awaited would take returns away unseen; the sink drops none while the generation lives.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tailpost_relay::{Outcome, Seq};

/// Number of a publish on its channel, from 0.
pub(crate) type Index = u64;

/// What the broker said about one publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ack,
    Nack,
}

/// A returned message, reduced to what tells whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// The header `tailpost_position`; `None` when it is missing or no text.
    pub(crate) position: Option<String>,
    /// The broker's words.
    pub(crate) reason: String,
}

/// A return that belongs to no unanswered event: the argument above is broken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stray;

/// An event of this position is unanswered already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken;

/// All unanswered events of a generation.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    next: Index,
    /// Published, confirm not completed.
    waiting: BTreeMap<Index, Waiting>,
    /// Confirm completed, no answer yet.
    completed: HashMap<Index, Completed>,
    /// Completed without a return, to be settled by the next pass.
    clear: Vec<Index>,
    /// Completed with a stranger's return, to be settled when all publishes below the first number have completed.
    clouded: VecDeque<(Index, Index)>,
    positions: HashMap<Arc<str>, Index>,
}

#[derive(Debug)]
struct Waiting {
    seq: Seq,
    position: Arc<str>,
    returned: Option<String>,
}

#[derive(Debug)]
struct Completed {
    seq: Seq,
    position: Arc<str>,
    verdict: Verdict,
}

impl Confirms {
    /// Notes a publish.
    pub(crate) fn published(&mut self, seq: Seq, position: &str) -> Result<Index, Taken> {
        let position: Arc<str> = position.into();
        if self.positions.contains_key(&position) {
            return Err(Taken);
        }
        let index = self.next;
        self.next += 1;
        self.positions.insert(position.clone(), index);
        self.waiting.insert(
            index,
            Waiting {
                seq,
                position,
                returned: None,
            },
        );
        Ok(index)
    }

    /// Notes a completed confirm and the return that it carried, whosesoever.
    pub(crate) fn completed(
        &mut self,
        index: Index,
        verdict: Verdict,
        carried: Option<Returned>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Stray> {
        let clouded = carried.is_some();
        if let Some(Waiting {
            seq,
            position,
            returned,
        }) = self.waiting.remove(&index)
        {
            if let Some(reason) = returned {
                self.positions.remove(&position);
                outcomes.push(Outcome::Returned { seq, reason });
            } else {
                self.completed.insert(
                    index,
                    Completed {
                        seq,
                        position,
                        verdict,
                    },
                );
                if clouded {
                    self.clouded.push_back((self.next, index));
                } else {
                    self.clear.push(index);
                }
            }
        }
        match carried {
            Some(carried) => self.returned(carried, outcomes),
            None => Ok(()),
        }
    }

    /// Answers what is certain by now. To be called when a full pass over what was woken has found nothing new, and at
    /// no other time.
    pub(crate) fn settle(&mut self, outcomes: &mut Vec<Outcome>) {
        while let Some(index) = self.clear.pop() {
            self.answer(index, outcomes);
        }
        let oldest = self
            .waiting
            .first_key_value()
            .map_or(self.next, |(&index, _)| index);
        while let Some(&(all_below, index)) = self.clouded.front()
            && all_below <= oldest
        {
            self.clouded.pop_front();
            self.answer(index, outcomes);
        }
    }

    fn returned(&mut self, carried: Returned, outcomes: &mut Vec<Outcome>) -> Result<(), Stray> {
        let position = carried.position.ok_or(Stray)?;
        let index = *self.positions.get(position.as_str()).ok_or(Stray)?;
        if let Some(waiting) = self.waiting.get_mut(&index) {
            waiting.returned = Some(carried.reason);
        } else if let Some(Completed { seq, .. }) = self.completed.remove(&index) {
            self.positions.remove(position.as_str());
            outcomes.push(Outcome::Returned {
                seq,
                reason: carried.reason,
            });
        }
        Ok(())
    }

    fn answer(&mut self, index: Index, outcomes: &mut Vec<Outcome>) {
        // Absent when a return has answered it meanwhile.
        if let Some(Completed {
            seq,
            position,
            verdict,
        }) = self.completed.remove(&index)
        {
            self.positions.remove(&position);
            outcomes.push(match verdict {
                Verdict::Ack => Outcome::Confirmed(seq),
                Verdict::Nack => Outcome::Nacked(seq),
            });
        }
    }
}

#[cfg(test)]
#[path = "confirms_tests.rs"]
mod tests;
