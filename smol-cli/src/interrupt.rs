//! Ctrl-C: stops the work, and the program at the second time.

use crate::running;
use anyhow::{Context as _, Result};
use smolmaxxing::CancelToken;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a program that Ctrl-C has ended.
pub const EXIT_CODE: u8 = 130;
/// The handler runs in a thread of its own, whose stack is what mostly fails.
const NO_THREAD: &str = "cannot start the thread that waits for Ctrl-C, mostly for lack of memory";

/// Whether the program does nothing but wait, so that there is no work to stop.
#[derive(Debug, Clone, Default)]
pub struct Idle(Arc<AtomicBool>);

impl Idle {
    /// Calls `wait`, during which Ctrl-C ends the program.
    pub fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::SeqCst);
        let result = wait();
        self.0.store(false, Ordering::SeqCst);
        result
    }
}

/// Lets Ctrl-C set a flag, for work that looks at it often: it isn't ended in any other way, so
/// that it can clean up.
pub fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context(NO_THREAD)?;
    Ok(stop)
}

/// Lets Ctrl-C cancel `token`, and end the program if it is cancelled already or idle.
pub fn cancel_on_ctrl_c(token: &CancelToken) -> Result<Idle> {
    let token = token.clone();
    let idle = Idle::default();
    let Idle(waits) = idle.clone();
    ctrlc::set_handler(move || {
        if waits.load(Ordering::SeqCst) || token.is_cancelled() {
            running::forget();
            std::process::exit(EXIT_CODE.into());
        }
        token.cancel();
    })
    .context(NO_THREAD)?;
    Ok(idle)
}
