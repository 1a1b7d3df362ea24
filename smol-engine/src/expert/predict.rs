//! Predicts which experts the next layers will choose.
//!
//! A layer changes the hidden state only a little, so the router of the layer after the next,
//! applied to what this layer's router got, already names most of the experts that will be
//! chosen there (pre-gated mixtures, Hwang et al. 2023). Their reads start a layer or two early.

mod dot;
mod mailbox;
mod router;
#[cfg(test)]
mod tests;

pub use router::{Router, RouterError};

use super::prefetch::{Governor, Prefetch, Prefetcher};
use super::routing::CacheBias;
use mailbox::{Mail, Mailbox};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

/// Layers ahead for which experts are predicted.
const AHEAD: usize = 2;

/// Hidden states of a graph beyond which nothing is predicted: a batch reaches most experts.
pub const MOST_ROWS: usize = 8;

/// Predicts experts of the next two layers on a thread of its own.
///
/// Whoever computes hands over the input of each router and goes on. There is one place for it:
/// a newer one replaces an older that has not been looked at, so predictions never lag behind.
///
/// # Examples
///
/// ```
/// use smol_engine::expert::predict::{Predictor, Router};
/// use smol_engine::expert::prefetch::{Prefetch, PrefetchCounts, Prefetcher};
/// use smol_engine::expert::routing::{CacheBias, Gating};
/// use std::sync::{Arc, Mutex, mpsc};
///
/// struct Log(Mutex<mpsc::Sender<(usize, Vec<u32>)>>);
/// impl Prefetcher for Log {
///     fn predict(&self, layer: usize, experts: &[u32]) {
///         let _ = self.0.lock().unwrap().send((layer, experts.to_vec()));
///     }
///     fn is_resident(&self, _layer: usize, _expert: u32) -> bool { false }
///     fn prefetch_counts(&self) -> PrefetchCounts { PrefetchCounts::default() }
/// }
///
/// // Two layers of two experts, of which one is used; hidden states have two values.
/// let router = || Router::new(vec![1.0, 0.0, 0.0, 1.0], 2, 1, Gating::Softmax);
/// let routers = vec![Some(router()?), Some(router()?)];
/// let (sender, predictions) = mpsc::channel();
/// let log = Arc::new(Log(Mutex::new(sender)));
/// let predictor = Predictor::new(log, routers, Prefetch::On, CacheBias::OFF)?;
/// predictor.hidden(0, &[0.1, 0.9]);
/// assert_eq!(predictions.recv()?, (1, vec![1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Predictor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    routers: Vec<Option<Router>>,
    mailbox: Mailbox,
    /// Predictions are wanted now.
    active: AtomicBool,
    /// Layer of the last hidden state: the next token begins where it does not grow.
    last: AtomicUsize,
    /// Layers for which experts were predicted.
    predicted: AtomicU64,
    switches: AtomicU64,
}

/// What a [`Predictor`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PredictorStatistics {
    /// Layers for which experts were predicted.
    pub predicted: u64,
    /// Hidden states that a newer one replaced before they were looked at.
    pub replaced: u64,
    /// How often [`Prefetch::Auto`] was switched on or off.
    pub switches: u64,
}

impl Predictor {
    /// Starts the thread, if there is anything to predict.
    ///
    /// `routers[layer]` belongs to the layer of that index in the pager; `None` where experts
    /// are not chosen by a router of that kind. `bias` is the one with which they are chosen.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn new<P: Prefetcher + 'static>(
        prefetcher: Arc<P>,
        routers: Vec<Option<Router>>,
        prefetch: Prefetch,
        bias: CacheBias,
    ) -> std::io::Result<Self> {
        let predictable = routers.iter().skip(1).any(Option::is_some);
        let shared = Arc::new(Shared {
            routers,
            mailbox: Mailbox::default(),
            active: AtomicBool::new(prefetch == Prefetch::On),
            last: AtomicUsize::new(usize::MAX),
            predicted: AtomicU64::new(0),
            switches: AtomicU64::new(0),
        });
        let thread = if prefetch == Prefetch::Off || !predictable {
            None
        } else {
            let governor =
                (prefetch == Prefetch::Auto).then(|| Governor::new(prefetcher.prefetch_counts()));
            let worker = Worker { shared: Arc::clone(&shared), prefetcher, governor, bias };
            Some(thread::Builder::new().name("predict".to_owned()).spawn(move || worker.run())?)
        };
        Ok(Self { shared, thread })
    }

    /// Returns whether hidden states are of any use: not if prefetching is off or no layer can be
    /// predicted.
    ///
    /// While [`Prefetch::Auto`] has it switched off they still are, as the beats of time after
    /// which it is tried again; [`hidden`](Self::hidden) does not copy them then.
    pub fn enabled(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns whether experts are predicted at the moment.
    pub fn is_active(&self) -> bool {
        self.enabled() && self.shared.active.load(Ordering::Relaxed)
    }

    /// Returns what it has done so far.
    pub fn statistics(&self) -> PredictorStatistics {
        PredictorStatistics {
            predicted: self.shared.predicted.load(Ordering::Relaxed),
            replaced: self.shared.mailbox.replaced(),
            switches: self.shared.switches.load(Ordering::Relaxed),
        }
    }

    /// Takes the input of a layer's router: one row of values for each token of the graph.
    ///
    /// To be called for each layer of each graph, prompts too. More than [`MOST_ROWS`] rows
    /// predict nothing, nor do rows of a length that is not the router's. Returns after a copy
    /// of at most [`MOST_ROWS`] rows.
    pub fn hidden(&self, layer: usize, x: &[f32]) {
        let shared = &*self.shared;
        let Some(width) = shared.width(layer) else { return };
        if !self.enabled() || width == 0 || !x.len().is_multiple_of(width) {
            return;
        }
        let last = shared.last.swap(layer, Ordering::Relaxed);
        let begins = last == usize::MAX || layer <= last;
        let is_batch = x.len() / width > MOST_ROWS;
        let wanted = !is_batch
            && shared.active.load(Ordering::Relaxed)
            && shared.targets(layer).next().is_some();
        shared.mailbox.put(wanted.then_some((layer, x)), begins, is_batch);
    }
}

impl Drop for Predictor {
    /// Waits for the thread, which is never more than one prediction away from its end.
    fn drop(&mut self) {
        self.shared.mailbox.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook; it must not become another.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Length of the hidden states of a layer: that of its router, or of one that it predicts.
    fn width(&self, layer: usize) -> Option<usize> {
        let own = self.routers.get(layer)?.as_ref();
        own.or_else(|| self.targets(layer).next().map(|(_, router)| router)).map(Router::width)
    }

    /// Layers to predict from the hidden state of `layer`, the next first.
    fn targets(&self, layer: usize) -> impl Iterator<Item = (usize, &Router)> {
        self.routers
            .iter()
            .enumerate()
            .skip(layer.saturating_add(1))
            .take(AHEAD)
            .filter_map(|(layer, router)| Some((layer, router.as_ref()?)))
    }
}

/// What the thread owns.
struct Worker<P> {
    shared: Arc<Shared>,
    prefetcher: Arc<P>,
    governor: Option<Governor>,
    bias: CacheBias,
}

impl<P: Prefetcher> Worker<P> {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut mail = Mail::default();
        let mut buffers = Buffers::default();
        while shared.mailbox.take(&mut mail) {
            self.govern(&mail);
            if let Some(layer) = mail.layer
                && shared.active.load(Ordering::Relaxed)
            {
                for (target, router) in shared.targets(layer) {
                    self.predict(layer, target, router, &mail.hidden, &mut buffers);
                    // What has come in meanwhile tells more about the layer after that.
                    if shared.mailbox.has_hidden() {
                        break;
                    }
                }
            }
        }
    }

    /// Tells the governor of tokens and batches that have passed.
    fn govern(&mut self, mail: &Mail) {
        let Some(governor) = &mut self.governor else { return };
        if mail.tokens == 0 && !mail.batch {
            return;
        }
        let counts = self.prefetcher.prefetch_counts();
        if mail.batch {
            governor.batch(&counts);
        } else {
            for _ in 0..mail.tokens {
                governor.token(&counts);
            }
        }
        self.shared.active.store(governor.is_on(), Ordering::Relaxed);
        self.shared.switches.store(governor.switches(), Ordering::Relaxed);
    }

    fn predict(
        &self,
        layer: usize,
        target: usize,
        router: &Router,
        hidden: &[f32],
        buffers: &mut Buffers,
    ) {
        let Buffers { x, scores, chosen, experts } = buffers;
        let source = self.shared.routers.get(layer).and_then(Option::as_ref);
        experts.clear();
        for row in hidden.chunks_exact(router.width()) {
            x.clear();
            x.extend_from_slice(row);
            if let Some(source) = source {
                router.renormalize(source, x);
            }
            router.scores(x, scores);
            let resident = |expert| self.prefetcher.is_resident(target, expert);
            router.select(scores, self.bias, resident, chosen);
            for expert in chosen.iter() {
                if !experts.contains(expert) {
                    experts.push(*expert);
                }
            }
        }
        if !experts.is_empty() {
            self.prefetcher.predict(target, experts);
            self.shared.predicted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Memory that predictions use again.
#[derive(Default)]
struct Buffers {
    x: Vec<f32>,
    scores: Vec<f32>,
    chosen: Vec<u32>,
    experts: Vec<u32>,
}
