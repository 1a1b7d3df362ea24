//! Progress of long work, shown on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar over `total` bytes on standard error; invisible unless that is a terminal.
pub fn bytes(what: impl Into<String>, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    )
    .expect("the template is valid")
    .progress_chars("=> ");
    ProgressBar::new(total).with_style(style).with_message(what.into())
}

/// A bar over `total` steps on standard error; invisible unless that is a terminal.
pub fn steps(what: impl Into<String>, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta}")
        .expect("the template is valid")
        .progress_chars("=> ");
    ProgressBar::new(total).with_style(style).with_message(what.into())
}

/// A spinner on standard error for work of unknown length; invisible unless that is a terminal.
pub fn spinner(what: impl Into<String>) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(what.into());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}
