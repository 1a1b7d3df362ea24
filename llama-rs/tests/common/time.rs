//! Time that other programs on the machine don't lengthen.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time that this thread has computed.
pub fn computed() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}
