//! How fast the machine is at this moment: the clock of a core, and reading from memory.

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Measures the clock of the core that runs this thread, in Hz; takes about 10 ms.
///
/// It times a chain of additions, of which each waits for the one before: they take a cycle each on any core that this
/// runs on. Under an emulator the result means nothing.
pub fn clock_hz() -> f64 {
    const ROUNDS: u64 = 20_000;
    let best = (0..20)
        .map(|_| {
            let start = Instant::now();
            black_box(chain(black_box(ROUNDS)));
            start.elapsed()
        })
        .min();
    let seconds = best.unwrap_or_default().as_secs_f64().max(1e-9);
    (ROUNDS * CHAIN) as f64 / seconds
}

/// Steps of a round of [`chain`].
const CHAIN: u64 = 64;

#[inline(never)]
fn chain(rounds: u64) -> u64 {
    let (mut a, mut b) = (black_box(1_u64), black_box(2_u64));
    for _ in 0..rounds {
        // Addition and exclusive or by turns cannot be contracted.
        macro_rules! steps {
            ($($step:tt)*) => {
                $(
                    let _: u8 = $step;
                    a = a.wrapping_add(b);
                    b ^= a;
                )*
            };
        }
        steps!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    }
    a
}

/// Measures how fast `threads` threads together read a block of `bytes` over and over, in bytes a second.
///
/// A block that fits a cache is read from there; `time` is what the measurement takes. The block is shared out among
/// the threads, each of which reads its own part.
pub fn read_bandwidth(bytes: usize, threads: usize, time: Duration) -> f64 {
    let threads = threads.max(1);
    let part = (bytes / size_of::<u64>() / threads).max(64);
    // Not zeros, which the system could serve from a single page.
    let block: Vec<u64> = (0..(part * threads) as u64).collect();
    let start = Mutex::new(());
    thread::scope(|scope| {
        let mut parts = block.chunks_exact(part);
        let own = parts.next();
        // None starts before all are there; where the system allows fewer, memory is read by fewer.
        let closed = start.lock();
        let others: Vec<_> = parts
            .map_while(|part| {
                let start = &start;
                let work = move || {
                    drop(start.lock());
                    best_rate(part, time)
                };
                thread::Builder::new().spawn_scoped(scope, work).ok()
            })
            .collect();
        drop(closed);
        let own = own.map_or(0.0, |part| best_rate(part, time));
        own + others.into_iter().filter_map(|thread| thread.join().ok()).sum::<f64>()
    })
}

/// Bytes a second of the fastest of several passes.
fn best_rate(part: &[u64], time: Duration) -> f64 {
    // So long that the clock's own time does not count.
    let passes = (1 << 20) / size_of_val(part) + 1;
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < time || best == Duration::MAX {
        let start = Instant::now();
        for _ in 0..passes {
            black_box(sum(black_box(part)));
        }
        best = best.min(start.elapsed());
    }
    (passes * size_of_val(part)) as f64 / best.as_secs_f64().max(1e-9)
}

fn sum(values: &[u64]) -> u64 {
    let mut sums = [0_u64; 16];
    let (blocks, rest) = values.as_chunks::<16>();
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*value);
        }
    }
    let tail = rest.iter().fold(0, |sum, value| value.wrapping_add(sum));
    sums.iter().fold(tail, |sum, value| value.wrapping_add(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read() {
        let values: Vec<u64> = (1..=1003).collect();
        assert_eq!(sum(&values), 1003 * 1004 / 2);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures time")]
    fn speeds_are_those_of_a_computer() {
        let clock = clock_hz();
        // The lower ends are an emulator's.
        assert!((1e6..2e10).contains(&clock), "{clock} Hz");
        let speed = read_bandwidth(1 << 20, 2, Duration::from_millis(20));
        assert!((1e6..1e13).contains(&speed), "{speed} bytes a second");
    }
}
