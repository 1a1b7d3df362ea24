//! A model that computes, flash that reads, and predictions, in simulated time.

use super::super::PrefetchCounts;
use std::collections::VecDeque;
use std::time::Duration;

/// What is simulated; times in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub layers: usize,
    /// Experts that a token's layer needs and that are not in memory, on average.
    pub misses: f64,
    /// Part of those that are predicted.
    pub recall: f64,
    /// Wrong predictions for each layer.
    pub wrong: f64,
    /// Computation of one layer.
    pub compute: f64,
    /// One read by one reader.
    pub read: f64,
    pub readers: usize,
    /// All readers share the speed of one.
    pub shared: bool,
    /// Later misses for each wasted read: what it has put out of memory.
    pub put_out: f64,
}

/// A predicted expert whose read has not begun.
struct Queued {
    /// Number of the layer since the start.
    layer: usize,
    right: bool,
    since: f64,
}

/// A predicted expert whose read has begun.
struct Early {
    layer: usize,
    right: bool,
    begins: f64,
    done: f64,
}

pub(super) struct Flash {
    setting: Setting,
    pub counts: PrefetchCounts,
    /// Simulated time since the start.
    pub time: f64,
    passed: usize,
    /// When each reader is free.
    readers: Vec<f64>,
    /// The last time that the computation stood still, and predicted reads until then.
    stood: (f64, f64),
    reading_ahead: Vec<(f64, f64)>,
    queue: VecDeque<Queued>,
    early: Vec<Early>,
    /// Misses of the layers to come, and how many of them are predicted.
    needs: VecDeque<(usize, usize)>,
    /// Misses caused by wasted reads.
    debt: f64,
    random: u64,
}

impl Flash {
    pub(super) fn new(setting: Setting, seed: u64) -> Self {
        Self {
            setting,
            counts: PrefetchCounts::default(),
            time: 0.0,
            passed: 0,
            readers: vec![0.0; setting.readers],
            stood: (0.0, 0.0),
            reading_ahead: Vec::new(),
            queue: VecDeque::new(),
            early: Vec::new(),
            needs: VecDeque::new(),
            debt: 0.0,
            random: seed,
        }
    }

    pub(super) fn change(&mut self, setting: Setting) {
        assert_eq!(setting.readers, self.setting.readers);
        self.setting = setting;
    }

    /// Computes one token.
    pub(super) fn token(&mut self, prefetch: bool) {
        for _ in 0..self.setting.layers {
            self.layer(prefetch);
        }
    }

    fn layer(&mut self, prefetch: bool) {
        let layer = self.passed;
        self.passed += 1;
        let (misses, mut predicted) = match self.needs.pop_front() {
            Some(need) => need,
            None => self.draw(),
        };
        // A router has chosen: what was predicted for this layer and has not begun is needed
        // now, or never.
        self.advance();
        self.queue.retain(|queued| queued.layer != layer);
        let mut until = self.time;
        let mut needed = misses;
        for early in std::mem::take(&mut self.early) {
            if early.layer != layer {
                self.early.push(early);
            } else if early.right && predicted > 0 {
                predicted -= 1;
                needed -= 1;
                until = until.max(early.done);
                // What it stands still for is this read itself.
                self.reading_ahead.retain(|read| *read != (early.begins, early.done));
                if early.done <= self.time {
                    self.counts.useful += 1;
                } else {
                    self.counts.late += 1;
                    self.counts.late_wait += milliseconds(early.done - self.time);
                }
            } else {
                self.counts.wasted += 1;
                self.debt += self.setting.put_out;
            }
        }
        let repaid = self.debt.floor();
        self.debt -= repaid;
        for _ in 0..needed + repaid as usize {
            let reader = self.next_reader();
            let begins = self.readers[reader].max(self.time);
            until = until.max(self.start(reader, begins));
        }
        self.stand_still(until);
        if prefetch {
            self.predict(layer + 1);
        }
        self.time += self.setting.compute;
    }

    fn stand_still(&mut self, until: f64) {
        self.stood = (self.time, until);
        self.counts.wait += milliseconds(until - self.time);
        for read in &self.reading_ahead {
            self.counts.behind += overlap(*read, self.stood);
        }
        self.reading_ahead.retain(|read| read.1 > until);
        self.time = until;
    }

    /// Draws what a layer will need.
    fn draw(&mut self) -> (usize, usize) {
        let misses = self.count(self.setting.misses);
        let predicted = (0..misses).filter(|_| self.uniform() < self.setting.recall).count();
        (misses, predicted)
    }

    fn predict(&mut self, layer: usize) {
        let need = self.draw();
        self.needs.push_back(need);
        let right = need.1;
        let wrong = self.count(self.setting.wrong);
        for i in 0..right + wrong {
            self.queue.push_back(Queued { layer, right: i < right, since: self.time });
        }
    }

    /// Lets idle readers take what is queued, up to now.
    fn advance(&mut self) {
        while let Some(queued) = self.queue.front() {
            let reader = self.next_reader();
            let begins = self.readers[reader].max(queued.since);
            if begins >= self.time {
                break;
            }
            let Some(queued) = self.queue.pop_front() else { break };
            let done = self.start(reader, begins);
            // It may have begun while the computation stood still.
            self.counts.behind += overlap((begins, done), self.stood);
            self.reading_ahead.push((begins, done));
            self.early.push(Early { layer: queued.layer, right: queued.right, begins, done });
        }
    }

    fn start(&mut self, reader: usize, begins: f64) -> f64 {
        let busy = self.readers.iter().filter(|free| **free > begins).count();
        let slowed = if self.setting.shared { 1.0 + busy as f64 } else { 1.0 };
        let read = self.setting.read * slowed;
        self.counts.reads += 1;
        self.counts.read_time += milliseconds(read);
        self.readers[reader] = begins + read;
        begins + read
    }

    fn next_reader(&self) -> usize {
        (0..self.readers.len())
            .min_by(|a, b| self.readers[*a].total_cmp(&self.readers[*b]))
            .unwrap_or_default()
    }

    /// Draws a number with the given mean: of twice as many tries, or of 8.
    fn count(&mut self, mean: f64) -> usize {
        let most = (mean * 2.0).ceil().max(8.0) as usize;
        (0..most).filter(|_| self.uniform() < mean / most as f64).count()
    }

    fn uniform(&mut self) -> f64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0xda3e_39cb_94b9_5bdb);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn overlap(a: (f64, f64), b: (f64, f64)) -> Duration {
    milliseconds(a.1.min(b.1) - a.0.max(b.0))
}

fn milliseconds(time: f64) -> Duration {
    Duration::from_secs_f64(time.max(0.0) / 1e3)
}
