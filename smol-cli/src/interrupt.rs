//! Ctrl-C, and other signals that ask the program to end: they stop the work, and the program at the second time.

use crate::running;
use anyhow::{Context as _, Result};
use smolmaxxing::CancelToken;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The signal of Ctrl-C, which has this number everywhere.
const CTRL_C: u8 = 2;
/// The signal that came last.
static LAST: AtomicU8 = AtomicU8::new(CTRL_C);
/// Signals are waited for in a thread of their own, whose stack is what mostly fails.
const NO_THREAD: &str = "cannot start the thread that waits for Ctrl-C, mostly for lack of memory";

/// Exit code of a program that a signal has ended: 130 for Ctrl-C, 143 for SIGTERM.
pub fn exit_code() -> u8 {
    128 + LAST.load(Ordering::SeqCst)
}

/// Whether the program was asked to end, where Ctrl-C would only stop what it does.
pub fn must_end() -> bool {
    LAST.load(Ordering::SeqCst) != CTRL_C
}

/// Whether the program does nothing but wait, so that there is no work to stop.
#[derive(Debug, Clone, Default)]
pub struct Idle(Arc<Waits>);

#[derive(Debug, Default)]
struct Waits {
    for_input: AtomicBool,
    for_terminal: AtomicBool,
}

impl Idle {
    /// Calls `wait`, during which signals end the program.
    pub fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        set_during(&self.0.for_input, wait)
    }

    /// Calls `wait`, which gets Ctrl-C from the terminal; other signals end the program.
    pub fn during_terminal<T>(&self, wait: impl FnOnce() -> T) -> T {
        set_during(&self.0.for_terminal, wait)
    }

    /// Whether a signal that has come ends the program.
    fn ends(&self) -> bool {
        let Waits { for_input, for_terminal } = &*self.0;
        for_input.load(Ordering::SeqCst) || (for_terminal.load(Ordering::SeqCst) && must_end())
    }
}

fn set_during<T>(flag: &AtomicBool, wait: impl FnOnce() -> T) -> T {
    flag.store(true, Ordering::SeqCst);
    let result = wait();
    flag.store(false, Ordering::SeqCst);
    result
}

/// Lets signals set a flag, for work that looks at it often: it isn't ended in any other way, so
/// that it can clean up.
pub fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    handle(move || flag.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

/// Lets signals cancel `token`, and end the program if it is cancelled already or idle.
pub fn cancel_on_ctrl_c(token: &CancelToken) -> Result<Idle> {
    let token = token.clone();
    let idle = Idle::default();
    let waits = idle.clone();
    handle(move || {
        if waits.ends() || token.is_cancelled() {
            running::forget();
            std::process::exit(exit_code().into());
        }
        token.cancel();
    })?;
    Ok(idle)
}

fn handle(mut handler: impl FnMut() + Send + 'static) -> Result<()> {
    signals::handle(move |signal| {
        LAST.store(signal, Ordering::SeqCst);
        handler();
    })
    .context(NO_THREAD)
}

/// Lets writes beyond a limit of files' sizes (`ulimit -f`) fail, where the signal for them would end the program.
pub fn let_large_writes_fail() {
    signals::let_large_writes_fail();
}

#[cfg(unix)]
mod signals {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::iterator::Signals;
    use std::io;
    use std::sync::Arc;
    use std::thread;

    /// Calls `handler` with the number of each signal that comes, in a thread of its own.
    pub(super) fn handle(mut handler: impl FnMut(u8) + Send + 'static) -> io::Result<()> {
        let mut wanted = vec![SIGINT, SIGTERM];
        // `nohup` lets programs outlive their terminal.
        wanted.extend(Some(SIGHUP).filter(|signal| is_ignored(*signal) == Some(false)));
        let mut signals = Signals::new(wanted)?;
        let body = move || {
            let numbers = signals.forever().filter_map(|signal| u8::try_from(signal).ok());
            numbers.for_each(&mut handler);
        };
        thread::Builder::new().name("signals".into()).spawn(body)?;
        Ok(())
    }

    /// Whether the program was started with a signal ignored; `None` where the system doesn't tell.
    fn is_ignored(signal: i32) -> Option<bool> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        Some(u64::from_str_radix(mask.trim(), 16).ok()? >> (signal - 1) & 1 == 1)
    }

    pub(super) fn let_large_writes_fail() {
        // Without a handler the signal keeps its effect.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

#[cfg(not(unix))]
mod signals {
    use std::io;

    pub(super) fn handle(mut handler: impl FnMut(u8) + Send + 'static) -> io::Result<()> {
        ctrlc::set_handler(move || handler(super::CTRL_C)).map_err(io::Error::other)
    }

    pub(super) fn let_large_writes_fail() {}
}
