//! A place for one letter: the newest hidden state, and what has passed since the last look.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is found in the mailbox.
#[derive(Debug, Default)]
pub(super) struct Mail {
    /// Layer of the hidden state in `hidden`, if there is one.
    pub layer: Option<usize>,
    pub hidden: Vec<f32>,
    /// Tokens that have begun.
    pub tokens: u32,
    /// There was a batch among them.
    pub batch: bool,
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    mail: Mail,
    closed: bool,
    replaced: u64,
}

impl Mailbox {
    /// Puts a hidden state in place of the one that lies there, notes that a token began, or
    /// both; never waits for the reader.
    pub(super) fn put(&self, hidden: Option<(usize, &[f32])>, begins: bool, batch: bool) {
        if hidden.is_none() && !begins {
            return;
        }
        let mut state = self.lock();
        if let Some((layer, x)) = hidden {
            state.replaced += u64::from(state.mail.layer.is_some());
            state.mail.layer = Some(layer);
            state.mail.hidden.clear();
            state.mail.hidden.extend_from_slice(x);
        }
        if begins {
            state.mail.tokens += 1;
            state.mail.batch |= batch;
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits until there is something and exchanges it for `mail`; false once closed.
    pub(super) fn take(&self, mail: &mut Mail) -> bool {
        let mut state = self.lock();
        while !state.closed && state.mail.layer.is_none() && state.mail.tokens == 0 {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return false;
        }
        mail.layer = None;
        mail.tokens = 0;
        mail.batch = false;
        std::mem::swap(mail, &mut state.mail);
        true
    }

    /// Returns whether a hidden state lies there.
    pub(super) fn has_hidden(&self) -> bool {
        let state = self.lock();
        state.closed || state.mail.layer.is_some()
    }

    /// Ends [`take`](Self::take) now and for good.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn replaced(&self) -> u64 {
        self.lock().replaced
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be left half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_newest_only() {
        let mailbox = Mailbox::default();
        mailbox.put(Some((0, &[1.0])), true, false);
        mailbox.put(Some((1, &[2.0, 3.0])), false, false);
        mailbox.put(Some((2, &[4.0])), false, false);
        let mut mail = Mail::default();
        assert!(mailbox.take(&mut mail));
        assert_eq!((mail.layer, &*mail.hidden, mail.tokens), (Some(2), &[4.0][..], 1));
        assert_eq!(mailbox.replaced(), 2);
        assert!(!mailbox.has_hidden());
    }

    #[test]
    fn tokens_add_up_and_a_batch_is_remembered() {
        let mailbox = Mailbox::default();
        mailbox.put(None, true, true);
        mailbox.put(None, true, false);
        mailbox.put(None, false, false);
        let mut mail = Mail { layer: Some(7), hidden: vec![1.0], tokens: 9, batch: false };
        assert!(mailbox.take(&mut mail));
        assert_eq!((mail.layer, mail.tokens, mail.batch), (None, 2, true));
        mailbox.put(Some((3, &[1.0])), false, false);
        assert!(mailbox.take(&mut mail));
        assert_eq!((mail.layer, mail.tokens, mail.batch), (Some(3), 0, false));
    }

    #[test]
    fn closing_ends_a_wait() {
        let mailbox = Mailbox::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| mailbox.take(&mut Mail::default()));
            std::thread::sleep(std::time::Duration::from_millis(20));
            mailbox.close();
            assert!(!reader.join().unwrap());
        });
        mailbox.put(Some((0, &[1.0])), true, false);
        assert!(!mailbox.take(&mut Mail::default()), "closed, whatever lies there");
    }
}
