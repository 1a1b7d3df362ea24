//! Ctrl-C: stops the work, and the program at the second time.

use anyhow::{Context as _, Result};
use smolmaxxing::CancelToken;

/// Exit code of a program that Ctrl-C has ended.
pub const EXIT_CODE: u8 = 130;

/// Lets Ctrl-C cancel `token`, and end the program if it is cancelled already.
pub fn cancel_on_ctrl_c(token: &CancelToken) -> Result<()> {
    let token = token.clone();
    ctrlc::set_handler(move || {
        if token.is_cancelled() {
            std::process::exit(EXIT_CODE.into());
        }
        token.cancel();
    })
    .context("cannot handle Ctrl-C")
}
