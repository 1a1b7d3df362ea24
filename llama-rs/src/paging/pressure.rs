//! Gives memory back before the system takes it by ending the process.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use smol_engine::expert::Pager;
use smol_engine::machine::Memory;

use crate::error::{Error, Result};

/// How often memory is looked at. The pool can't be filled faster than flash is read, which is far less than the reserve in
/// that time.
const INTERVAL: Duration = Duration::from_millis(250);
/// The part of all memory that is to stay available, at least [`LEAST`] bytes.
const PART: u64 = 32;
const LEAST: u64 = 24 << 20;

/// A thread that shrinks a pager's pool when memory gets short, and lets it grow again afterwards.
pub(super) struct Pressure {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pressure {
    pub(super) fn watch(pager: &Arc<Pager>) -> Result<Self> {
        let reserve = reserve_of(&Memory::probe());
        let (over, told) = mpsc::channel();
        let pager = Arc::downgrade(pager);
        let watch = move || {
            while told.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let available = Memory::probe().usable_ram();
                if let (Some(pager), Some(available)) = (Weak::upgrade(&pager), available) {
                    pager.relieve(available, reserve);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("memory".to_owned())
            .spawn(watch)
            .map_err(|error| Error::io(error, "cannot start a thread", None))?;
        Ok(Self { over: Some(over), thread: Some(thread) })
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook.
            let _ = thread.join();
        }
    }
}

fn reserve_of(memory: &Memory) -> u64 {
    let total = [memory.total, memory.cgroup_limit].into_iter().flatten().min();
    (total.unwrap_or(0) / PART).max(LEAST)
}
