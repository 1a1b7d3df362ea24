//! Decides by measurement whether predicted experts are read.

#[cfg(test)]
mod flash;
#[cfg(test)]
mod tests;

use super::PrefetchCounts;

/// Switches prefetching on and off by what comes of it.
///
/// It is off for a few tokens, which tells how long the computation waits without it, then
/// on for a trial. It stays on after that
///
/// - if a token waits less than without, or
/// - if it waits about as long, and the time that predictions saved is more than what it waited
///   while they were read.
///
/// The balance of time saved and lost is watched from then on, and the comparison is made again
/// now and then, more seldom each time it passes. After a failure the next trial comes after a pause, twice as long each time.
///
/// A value without a clock or thread: tokens are its time.
#[derive(Debug, Clone)]
pub struct Governor {
    phase: Phase,
    /// Tokens left of the phase.
    left: u32,
    /// Counts when the window began, and its tokens so far.
    start: PrefetchCounts,
    tokens: u32,
    /// Wait for a token without prefetching, in seconds.
    without: f64,
    /// Length of the next pause in tokens.
    pause: u32,
    /// Tokens for which it stays on after the next trial that it passes.
    steady: u32,
    /// Cost for each gain with which it stays on.
    limit: f64,
    /// The last window in which it was on cost more.
    doubt: bool,
    /// A batch has begun: what is counted until the next token is its own.
    in_batch: bool,
    switches: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Off.
    Pause,
    /// Off, to learn how long a token waits.
    Measure,
    /// On, to be compared with that.
    Trial,
    /// On.
    On,
}

/// Tokens over which is counted.
const WINDOW: u32 = 16;
/// Tokens of a trial.
const TRIAL: u32 = 2 * WINDOW;
/// Tokens after which a trial may end early.
const EARLY: u32 = 4;
/// It does if a token waits this many times as long as without, or if it waits longer at all and
/// predictions cost this many times what they gain.
const HOPELESS: (f64, f64) = (1.5, 2.0);
/// Tokens of the first pause, and of the longest.
const PAUSES: (u32, u32) = (64, 2048);
/// Tokens after which the comparison is made again, at first and at most: what made a token wait
/// while it was off may have been something else, and then it is on by mistake.
const STEADY: (u32, u32) = (128, 1024);
/// What a wasted read costs later, in reads: some of the experts it put out are needed again.
const PUT_OUT: f64 = 0.125;
/// Wait, as part of that without prefetching, up to which a trial passes and from which it fails:
/// misses of a few tokens vary.
const CLEAR: (f64, f64) = (0.97, 1.02);
/// Cost, as part of that of the trial it passed, from which it has failed.
const WORSE: f64 = 1.5;

impl Governor {
    /// Creates one that is off and begins to measure; `now` are the counts up to here.
    pub fn new(now: PrefetchCounts) -> Self {
        Self {
            phase: Phase::Measure,
            left: WINDOW,
            start: now,
            tokens: 0,
            without: 0.0,
            pause: PAUSES.0,
            steady: STEADY.0,
            limit: 1.0,
            doubt: false,
            in_batch: false,
            switches: 0,
        }
    }

    /// Returns whether predicted experts are to be read.
    pub fn is_on(&self) -> bool {
        matches!(self.phase, Phase::Trial | Phase::On)
    }

    /// Returns how often it was switched on or off.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Takes note that a token begins, and the one before it is over, and returns
    /// [`is_on`](Self::is_on).
    pub fn token(&mut self, now: &PrefetchCounts) -> bool {
        if std::mem::take(&mut self.in_batch) {
            self.restart(now);
            return self.is_on();
        }
        self.tokens += 1;
        self.left = self.left.saturating_sub(1);
        match self.phase {
            Phase::Pause => {
                if self.left == 0 {
                    self.enter(Phase::Measure, WINDOW, now);
                }
            }
            Phase::Measure => {
                if self.left == 0 {
                    self.without = self.window(now).wait;
                    self.doubt = false;
                    self.enter(Phase::Trial, TRIAL, now);
                }
            }
            Phase::Trial => {
                let window = self.window(now);
                let without = self.without;
                // Waits of all tokens of the trial with which it could not pass any more.
                let most = CLEAR.1 * without * f64::from(TRIAL) + window.read;
                let is_hopeless = self.tokens >= EARLY
                    && window.wait > without
                    && (window.wait > HOPELESS.0 * without
                        || window.cost > HOPELESS.1 * window.gain);
                if is_hopeless || window.wait * f64::from(self.tokens) > most {
                    self.fail(now);
                } else if self.left == 0 {
                    if window.wait <= CLEAR.0 * without || window.cost <= window.gain {
                        self.limit = (WORSE * window.cost / window.gain.max(window.read)).max(1.0);
                        self.enter(Phase::On, self.steady, now);
                        self.steady = (self.steady * 2).min(STEADY.1);
                    } else {
                        self.fail(now);
                    }
                }
            }
            Phase::On => {
                if self.left == 0 {
                    // On for that long: what failed before is no measure any more.
                    self.pause = PAUSES.0;
                    self.enter(Phase::Measure, WINDOW, now);
                } else if self.tokens >= WINDOW {
                    let window = self.window(now);
                    let doubt = window.cost > self.limit * window.gain;
                    if doubt && self.doubt {
                        self.fail(now);
                    } else {
                        self.doubt = doubt;
                        self.restart(now);
                    }
                }
            }
        }
        self.is_on()
    }

    /// Takes note that a batch begins, for instance a prompt: it waits for other reasons than a
    /// token, so what is counted until its end is forgotten and the phase begins again.
    pub fn batch(&mut self, now: &PrefetchCounts) {
        self.left += match self.phase {
            Phase::Measure | Phase::Trial => self.tokens,
            Phase::Pause | Phase::On => 0,
        };
        self.in_batch = true;
        self.restart(now);
    }

    fn restart(&mut self, now: &PrefetchCounts) {
        self.start = *now;
        self.tokens = 0;
    }

    fn enter(&mut self, phase: Phase, tokens: u32, now: &PrefetchCounts) {
        let was = self.is_on();
        self.phase = phase;
        self.left = tokens;
        self.switches += u64::from(was != self.is_on());
        self.restart(now);
    }

    fn fail(&mut self, now: &PrefetchCounts) {
        self.enter(Phase::Pause, self.pause, now);
        self.pause = (self.pause * 2).min(PAUSES.1);
        self.steady = STEADY.0;
    }

    fn window(&self, now: &PrefetchCounts) -> Window {
        Window::new(&self.start, now, self.tokens)
    }
}

/// What some tokens brought, in seconds.
struct Window {
    /// Saved by predictions.
    gain: f64,
    /// Lost by them.
    cost: f64,
    /// One read.
    read: f64,
    /// Wait for each token.
    wait: f64,
}

impl Window {
    fn new(start: &PrefetchCounts, now: &PrefetchCounts, tokens: u32) -> Self {
        let since = |now: u64, start: u64| now.saturating_sub(start) as f64;
        let reads = since(now.reads, start.reads);
        let read_time = now.read_time.saturating_sub(start.read_time).as_secs_f64();
        let read = if reads > 0.0 { read_time / reads } else { 0.0 };
        let chosen = since(now.useful, start.useful) + since(now.late, start.late);
        let late_wait = now.late_wait.saturating_sub(start.late_wait).as_secs_f64();
        let behind = now.behind.saturating_sub(start.behind).as_secs_f64();
        let wasted = since(now.wasted, start.wasted);
        Self {
            // A late read saves what of it was over when it was needed.
            gain: (chosen * read - late_wait).max(0.0),
            cost: behind + PUT_OUT * wasted * read,
            read,
            wait: now.wait.saturating_sub(start.wait).as_secs_f64() / f64::from(tokens.max(1)),
        }
    }
}
