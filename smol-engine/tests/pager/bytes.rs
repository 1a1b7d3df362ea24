//! What kernels see is what the files hold, whatever the order of events.

use crate::fixture::{Fake, Random, Shape, check};
use smol_engine::expert::{Pager, PagerConfig, Policy, Scope};
use smol_engine::io::{DirectFile, IoChoice};
use std::io::Write as _;
use std::sync::{Arc, Barrier, Mutex};

/// Computes `graphs` graphs with random experts by `threads` threads.
fn run(pager: &Pager, data: &[u8], run: usize, graphs: usize, threads: usize) {
    let (barrier, shared_order) = (Barrier::new(threads), Mutex::new(Vec::new()));
    let layers = pager.layers();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (barrier, shared_order) = (&barrier, &shared_order);
            scope.spawn(move || {
                // All threads of a run draw the same numbers.
                let mut random = Random(run as u64 * 977 + 13);
                for _ in 0..graphs {
                    for (number, layer) in layers.iter().enumerate() {
                        let is_prompt = random.below(6) == 0;
                        let count = if is_prompt {
                            1 + random.below(layer.experts as usize)
                        } else {
                            layer.used as usize
                        };
                        let experts = random.choose(count, layer.experts);
                        let (wants, predicts) = (random.below(3) > 0, random.below(3) == 0);
                        let in_order = random.below(2) == 0;
                        let next = (number + 1 + random.below(2)) % layers.len();
                        let guess = random.choose(3, layers[next].experts);
                        barrier.wait();
                        if thread == 0 {
                            if predicts {
                                pager.predict(next, &guess);
                            }
                            if wants {
                                pager.want(run, number, &experts);
                            }
                        }
                        for tensor in 0..layer.tensors.len() {
                            // One order for all threads of the run.
                            if thread == 0 {
                                pager.begin(run, number, tensor, &experts, &vec![1; count]);
                                let mut order: Vec<u32> = (0..count as u32).collect();
                                if !in_order {
                                    pager.order(run, &mut order);
                                }
                                *shared_order.lock().unwrap() = order;
                            }
                            barrier.wait();
                            let order = shared_order.lock().unwrap().clone();
                            for index in order {
                                let expert = experts[index as usize];
                                let at = (run, number, tensor);
                                assert!(check(pager, data, at, index as usize, expert));
                                if barrier.wait().is_leader() {
                                    pager.done(run, index as usize);
                                }
                            }
                            barrier.wait();
                        }
                    }
                    if barrier.wait().is_leader() {
                        pager.end(run).unwrap();
                    }
                    barrier.wait();
                }
            });
        }
    });
}

fn runs(pager: &Pager, data: &[u8], runs: usize, graphs: usize, threads: usize) {
    std::thread::scope(|scope| {
        for number in 0..runs {
            scope.spawn(move || run(pager, data, 100 + number, graphs, threads));
        }
    });
}

#[test]
fn every_policy_from_the_floor_to_all() {
    for packed in [false, true] {
        let shape = Shape { packed, ..Shape::SMALL };
        for policy in Policy::ALL {
            for scope in Scope::ALL {
                let config = PagerConfig { policy, scope, ..PagerConfig::default() };
                let floor = shape.floor(&config, 512);
                for budget in [floor, floor * 3 / 2, floor * 3, u64::MAX] {
                    let config = PagerConfig { budget, ..config.clone() };
                    let (pager, file) = shape.pager(&config, 512);
                    runs(&pager, &file.data, 2, 12, 2);
                    let statistics = pager.statistics();
                    let chosen: u64 = statistics.hits + statistics.misses;
                    assert!(chosen >= 2 * 12 * 3 * 2, "{statistics:?}");
                    assert!(pager.held() <= budget, "{} {budget}", pager.held());
                    if budget == u64::MAX {
                        // Each of 24 experts is read once, and none leaves.
                        assert!(statistics.bytes_read <= 24 * 3 * 8192, "{statistics:?}");
                        assert_eq!(statistics.streamed, 0);
                    }
                }
            }
        }
    }
}

#[test]
fn four_runs_of_three_threads_verified() {
    let shape = Shape { layers: 4, experts: 16, used: 4, packed: true };
    let config = PagerConfig { verify: true, readers: 3, ..PagerConfig::default() };
    let floor = shape.floor(&config, 64);
    let config = PagerConfig { budget: floor + 40_000, ..config };
    let (pager, file) = shape.pager(&config, 64);
    runs(&pager, &file.data, 4, 40, 3);
    assert!(file.bytes.load(std::sync::atomic::Ordering::SeqCst) > pager.statistics().bytes_read);
}

#[test]
fn thousands_of_evictions() {
    let shape = Shape { layers: 2, experts: 16, used: 2, packed: false };
    for scope in Scope::ALL {
        let config = PagerConfig { scope, ..PagerConfig::default() };
        let config = PagerConfig { budget: shape.floor(&config, 64), ..config };
        let (pager, file) = shape.pager(&config, 64);
        run(&pager, &file.data, 1, 1000, 1);
        assert!(pager.statistics().misses > 3000, "{:?}", pager.statistics());
    }
}

#[test]
fn one_reader_and_odd_tensors() {
    let shape = Shape { layers: 2, experts: 5, used: 5, packed: false };
    let config = PagerConfig { readers: 1, ..PagerConfig::default() };
    let config = PagerConfig { budget: shape.floor(&config, 1), ..config };
    let (pager, file) = shape.pager(&config, 1);
    runs(&pager, &file.data, 1, 30, 1);
}

#[test]
fn a_real_file_with_direct_and_buffered_reads() {
    let (layers, len) = Shape::SMALL.layers();
    let data = Fake::new(len, 1).data.clone();
    // Beside the build's outputs, which lie on a disk more often than /tmp does.
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    file.write_all(&data).unwrap();
    file.as_file().sync_all().unwrap();
    for io in IoChoice::ALL {
        let config = PagerConfig { io, ..PagerConfig::default() };
        let opened: Arc<dyn smol_engine::io::ReadAt> =
            Arc::new(DirectFile::open_with(file.path(), io).unwrap());
        let floor = Pager::least_budget(&[opened], &layers, &config).unwrap();
        let config = PagerConfig { budget: floor + 20_000, ..config };
        let pager = Pager::open([file.path()], layers.clone(), &config).unwrap();
        runs(&pager, &data, 2, 20, 2);
        let mode = pager.statistics().io_mode;
        assert!(mode.starts_with("direct") || mode.starts_with("buffered: "), "{mode}");
        assert!(io == IoChoice::Auto || mode == "buffered: it was asked for", "{mode}");
    }
}

#[test]
fn two_pagers_of_one_file_at_once() {
    let (layers, len) = Shape::SMALL.layers();
    let file = Fake::new(len, 512);
    let config = PagerConfig::default();
    let files = || vec![Arc::clone(&file) as Arc<dyn smol_engine::io::ReadAt>];
    let floor = Pager::least_budget(&files(), &layers, &config).unwrap();
    let pagers: Vec<_> = [floor, floor * 2]
        .map(|budget| {
            let config = PagerConfig { budget, ..config.clone() };
            Pager::new(files(), layers.clone(), &config).unwrap()
        })
        .into();
    std::thread::scope(|scope| {
        for pager in &pagers {
            let data = &file.data;
            scope.spawn(move || runs(pager, data, 2, 20, 2));
        }
    });
}
