//! The time that a thread has computed.

use std::time::{Duration, Instant};

/// A point in the time that this thread has computed; without such a clock, in the time that has passed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ThreadTime {
    Computed(Duration),
    Passed(Instant),
}

impl ThreadTime {
    pub(crate) fn now() -> Self {
        computed().map_or_else(|| Self::Passed(Instant::now()), Self::Computed)
    }

    /// Returns the time since this point, which must be one of this thread.
    pub(crate) fn elapsed(self) -> Duration {
        match self {
            Self::Computed(then) => computed().unwrap_or_default().saturating_sub(then),
            Self::Passed(then) => then.elapsed(),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn computed() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec (clock_gettime(2)).
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    let nanoseconds = u32::try_from(time.tv_nsec).ok()?;
    (failed == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), nanoseconds))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn computed() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_computing() {
        let (computed, passed) = (ThreadTime::now(), Instant::now());
        let mut sum = 0_u64;
        while passed.elapsed() < Duration::from_millis(20) {
            sum = std::hint::black_box(sum + 1);
        }
        std::thread::sleep(Duration::from_millis(200));
        let time = computed.elapsed();
        assert!(time > Duration::ZERO && time <= passed.elapsed(), "{time:?}");
        if matches!(computed, ThreadTime::Computed(_)) {
            assert!(time < Duration::from_millis(100), "{time:?}");
        }
    }
}
