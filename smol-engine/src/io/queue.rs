//! Reads that wait for a thread, most urgent first.

use std::collections::BTreeMap;

/// How urgent a read is. Earlier is more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Urgency {
    /// Something is computed that needs it, or soon will.
    Needed,
    /// Something might need it.
    Predicted,
}

/// The place of a job in a [`Queue`], and its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket {
    urgency: Urgency,
    /// Counts the layers that were begun.
    epoch: u64,
    /// Order of need within a layer.
    stage: u8,
    /// Order of arrival.
    number: u64,
}

/// Jobs in the order in which they are to be done: needed before predicted ones, then by epoch,
/// stage and arrival.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(crate) struct Queue<J> {
    jobs: BTreeMap<Ticket, J>,
    arrived: u64,
}

impl<J> Queue<J> {
    pub(crate) fn new() -> Self {
        Self { jobs: BTreeMap::new(), arrived: 0 }
    }

    pub(crate) fn push(&mut self, urgency: Urgency, epoch: u64, stage: u8, job: J) -> Ticket {
        let ticket = Ticket { urgency, epoch, stage, number: self.arrived };
        self.arrived += 1;
        self.jobs.insert(ticket, job);
        ticket
    }

    /// Takes the most urgent job out, unless it is less urgent than `least`.
    pub(crate) fn pop(&mut self, least: Urgency) -> Option<(Urgency, J)> {
        let first = self.jobs.first_entry()?;
        let urgency = first.key().urgency;
        (urgency <= least).then(|| (urgency, first.remove()))
    }

    /// Takes a job out; `None` if a thread has it already.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        self.jobs.remove(&ticket)
    }

    /// Makes a waiting job needed in `epoch`, unless it is needed earlier. Returns its new ticket,
    /// and whether that is more urgent.
    pub(crate) fn promote(&mut self, ticket: Ticket, epoch: u64) -> (Ticket, bool) {
        let new = Ticket { urgency: Urgency::Needed, epoch, ..ticket };
        if new >= ticket {
            return (ticket, false);
        }
        match self.jobs.remove(&ticket) {
            Some(job) => {
                self.jobs.insert(new, job);
                (new, true)
            }
            None => (ticket, false),
        }
    }

    /// Returns the waiting jobs, most urgent first: urgency, epoch, stage.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Urgency, u64, u8, &J)> {
        self.jobs.iter().map(|(ticket, job)| (ticket.urgency, ticket.epoch, ticket.stage, job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Urgency::{Needed, Predicted};

    fn drain(queue: &mut Queue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop(Predicted).map(|(_, job)| job)).collect()
    }

    #[test]
    fn order_is_urgency_epoch_stage_arrival() {
        let mut queue = Queue::new();
        queue.push(Predicted, 0, 0, "guess");
        queue.push(Needed, 2, 0, "next layer");
        queue.push(Needed, 1, 1, "down");
        queue.push(Needed, 1, 0, "gate 1");
        queue.push(Needed, 1, 0, "gate 2");
        assert_eq!(drain(&mut queue), ["gate 1", "gate 2", "down", "next layer", "guess"]);
    }

    #[test]
    fn predicted_jobs_wait_if_they_must() {
        let mut queue = Queue::new();
        queue.push(Predicted, 0, 0, "guess");
        assert_eq!(queue.pop(Needed), None);
        queue.push(Needed, 9, 9, "need");
        assert_eq!(queue.pop(Needed), Some((Needed, "need")));
        assert_eq!(queue.pop(Predicted), Some((Predicted, "guess")));
        assert_eq!(queue.pop(Predicted), None);
    }

    #[test]
    fn jobs_are_cancelled_and_promoted() {
        let mut queue = Queue::new();
        let guess = queue.push(Predicted, 1, 0, "guess");
        let late = queue.push(Needed, 5, 0, "late");
        let (guess, sooner) = queue.promote(guess, 3);
        assert!(sooner);
        assert!(!queue.promote(guess, 4).1, "needed earlier already");
        let (late, sooner) = queue.promote(late, 2);
        assert!(sooner);
        assert_eq!(queue.cancel(late), Some("late"));
        assert_eq!(queue.cancel(late), None);
        assert!(!queue.promote(late, 1).1, "gone");
        assert_eq!(drain(&mut queue), ["guess"]);
        assert_eq!(queue.cancel(guess), None);
    }
}
