//! Engines that outlive the code that installed them, because C may call `exit`.

use std::panic::catch_unwind;
use std::sync::{Mutex, Once, PoisonError};

use crate::engines::Engines;
use crate::error::{Error, ErrorKind, Result};

static HELD: Mutex<Option<Engines>> = Mutex::new(None);

/// Keeps the engines until [`release`], or until the process exits: then their report is written.
pub(crate) fn hold(engines: Engines) -> Result<()> {
    static REGISTERED: Once = Once::new();
    let mut outcome = Ok(());
    REGISTERED.call_once(|| outcome = ggml_sys::tools::at_exit(on_exit));
    outcome.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(engines);
    Ok(())
}

/// Takes the engines back.
pub(crate) fn release() -> Option<Engines> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).take()
}

extern "C" fn on_exit() {
    // The process is ending with a code of its own; all that can be done about an error is to show it.
    let _ = catch_unwind(|| {
        if let Some(Err(error)) = release().map(Engines::finish_at_exit) {
            eprintln!("{error}");
        }
    });
}
