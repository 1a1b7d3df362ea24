//! Routers choose what the graph chooses, given what the graph gave to its own.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use smol_engine::expert::routing::CacheBias;
use testkit::tiny::{self, Arch, TinyOptions};

use super::*;
use crate::ffi::pager::Watcher;
use crate::{Batch, ExpertPager, Model, PoolBudget, SeqId, Token};

thread_local! {
    /// What the models that this thread loads are watched by.
    static WATCHER: RefCell<Option<Arc<Comparison>>> = const { RefCell::new(None) };
}

/// Compares the choices of each layer with those of its router.
#[derive(Default)]
struct Comparison {
    routers: Mutex<Vec<Option<Router>>>,
    hidden: Mutex<Vec<(usize, Vec<f32>)>>,
    tokens: Mutex<Tokens>,
}

#[derive(Debug, Default)]
struct Tokens {
    equal: usize,
    /// Experts whose scores rounding cannot tell apart have changed places.
    close: usize,
    different: usize,
}

/// Returns what watches a model that a test loads.
pub(in super::super) fn watcher(
    shards: &Shards,
    metadata: &Metadata,
    layers: &[RoutedLayer],
) -> Option<Arc<dyn Watcher>> {
    let comparison = WATCHER.with_borrow(Clone::clone)?;
    *comparison.routers.lock().unwrap() = read(shards, metadata, layers);
    Some(comparison)
}

impl Watcher for Comparison {
    fn hidden(&self, layer: usize, x: &[f32]) {
        self.hidden.lock().unwrap().push((layer, x.to_vec()));
    }

    fn chosen(&self, _run: usize, layer: usize, used: usize, ids: &[i32]) {
        let (of, x) = self.hidden.lock().unwrap().pop().unwrap();
        assert_eq!(of, layer, "no router's input before its choice");
        let routers = self.routers.lock().unwrap();
        let router = routers[layer].as_ref().expect("a router that is understood");
        let mut tokens = self.tokens.lock().unwrap();
        let (mut scores, mut chosen) = (Vec::new(), Vec::new());
        assert_eq!(x.len() / router.width(), ids.len() / used);
        for (x, ids) in x.chunks(router.width()).zip(ids.chunks(used)) {
            router.scores(x, &mut scores);
            router.select(&scores, CacheBias::OFF, |_| false, &mut chosen);
            let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            let close = |(a, b): (&u32, &u32)| {
                let (a, b) = (scores[*a as usize], scores[*b as usize]);
                (a - b).abs() <= 1e-4 * a.abs().max(1e-3)
            };
            if ids == chosen {
                tokens.equal += 1;
            } else if ids.len() == chosen.len() && ids.iter().zip(&chosen).all(close) {
                tokens.close += 1;
            } else {
                tokens.different += 1;
            }
        }
    }
}

#[test]
fn choose_what_the_graph_chooses() {
    for arch in Arch::ALL.into_iter().filter(|arch| arch.has_experts()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mixture.gguf");
        let options = TinyOptions { experts: 32, ..TinyOptions::default() };
        tiny::write(&path, arch, &options).unwrap();

        let comparison = Arc::new(Comparison::default());
        WATCHER.set(Some(Arc::clone(&comparison)));
        let pager = ExpertPager { budget: PoolBudget::Slots(32), ..ExpertPager::default() };
        let model = Model::builder(&path).expert_pager(pager).load().unwrap();
        WATCHER.set(None);

        let mut context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
        let prompt: Vec<_> = (0..40).map(|n| Token(n * 37 % 600)).collect();
        context.decode(&Batch::sequence(&prompt, 0, SeqId(0))).unwrap();
        for n in 0..40 {
            let token = [Token(n * 53 % 600)];
            context.decode(&Batch::sequence(&token, 40 + n, SeqId(0))).unwrap();
        }
        let tokens = comparison.tokens.lock().unwrap();
        assert!(tokens.equal > 100, "{arch:?} {tokens:?}");
        assert!(tokens.different == 0 && tokens.close < tokens.equal / 20, "{arch:?} {tokens:?}");
    }
}
