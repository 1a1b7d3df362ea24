//! Budgets: what is refused, what is shared, what shrinks and grows.

use crate::fixture::{Fake, Random, Shape, eventually, layer};
use smol_engine::expert::{Error, Pager, PagerConfig, Scope};
use smol_engine::io::ReadAt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_budget_below_the_floor_is_refused_with_both_numbers() {
    for scope in Scope::ALL {
        let config = PagerConfig { scope, ..PagerConfig::default() };
        let floor = Shape::SMALL.floor(&config, 512);
        let (layers, len) = Shape::SMALL.layers();
        let make = |budget| {
            let file: Arc<dyn ReadAt> = Fake::new(len, 512);
            let config = PagerConfig { budget, ..config.clone() };
            Pager::new(vec![file], layers.clone(), &config)
        };
        let error = make(floor - 1).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Budget { .. }), "{error:?}");
        assert!(text.contains(&floor.to_string()), "{text}");
        assert!(text.contains(&(floor - 1).to_string()), "{text}");
        assert_eq!(make(floor).unwrap().held(), floor);
    }
}

#[test]
fn layers_that_make_no_sense_are_refused() {
    let (good, len) = Shape::SMALL.layers();
    let make = |change: &dyn Fn(&mut Vec<smol_engine::expert::ExpertLayer>)| {
        let mut layers = good.clone();
        change(&mut layers);
        let file: Arc<dyn ReadAt> = Fake::new(len, 512);
        Pager::new(vec![file], layers, &PagerConfig::default()).map(|_| ())
    };
    make(&|_| {}).unwrap();
    type Change = dyn Fn(&mut Vec<smol_engine::expert::ExpertLayer>);
    let wrong: [&Change; 9] = [
        &|layers| layers.clear(),
        &|layers| layers[0].used = 9,
        &|layers| layers[0].used = 0,
        &|layers| layers[1].tensors.clear(),
        &|layers| layers[1].tensors[0].file = 1,
        &|layers| layers[1].tensors[0].bytes += 1,
        &|layers| layers[1].tensors[0].stride = 0,
        &|layers| layers[2].tensors[2].offset = u64::MAX - 5,
        &|layers| layers[2].tensors[2].offset += 10_000,
    ];
    for change in wrong {
        let error = make(change).unwrap_err();
        assert!(matches!(error, Error::Layers(_) | Error::Io(_)), "{error:?}");
    }
}

#[test]
fn each_layer_gets_an_even_share() {
    let shape = Shape { layers: 5, experts: 20, used: 2, packed: false };
    let config = PagerConfig { readers: 2, ..PagerConfig::default() };
    let (layers, len) = shape.layers();
    let file = || -> Vec<Arc<dyn ReadAt>> { vec![Fake::new(len, 512)] };
    for slots in [2, 3, 7, 20] {
        let budget = Pager::budget_of_slots(&file(), &layers, &config, slots).unwrap();
        let config = PagerConfig { budget, ..config.clone() };
        let pager = Pager::new(file(), layers.clone(), &config).unwrap();
        let have = pager.statistics().slots;
        assert!(
            have >= u64::from(slots) * 5 && have < (u64::from(slots) + 2) * 5,
            "{slots} {have}"
        );
        assert!(pager.held() <= budget);
    }
}

#[test]
fn a_prompt_larger_than_the_pool_is_one_pass_over_its_experts() {
    let shape = Shape { layers: 2, experts: 32, used: 2, packed: false };
    let config = PagerConfig::default();
    let budget = shape.floor(&config, 1);
    let (pager, file) = shape.pager(&PagerConfig { budget, ..config }, 1);
    let all: Vec<u32> = (0..32).collect();
    for number in 0..2 {
        pager.want(1, number, &all);
        assert!(layer(&pager, &file.data, 1, number, &all));
    }
    pager.end(1).unwrap();
    let once = 2 * 32 * crate::fixture::SIZES.iter().sum::<usize>() as u64;
    let statistics = pager.statistics();
    assert_eq!(statistics.bytes_read, once, "{statistics:?}");
    assert_eq!((statistics.misses, statistics.streamed), (64, 60));
}

#[test]
fn two_prompts_stream_at_once_on_the_floor() {
    for readers in [1, 4] {
        let shape = Shape { layers: 2, experts: 24, used: 2, packed: readers == 4 };
        let config = PagerConfig { readers, ..PagerConfig::default() };
        let budget = shape.floor(&config, 512);
        let (pager, file) = shape.pager(&PagerConfig { budget, ..config }, 512);
        std::thread::scope(|scope| {
            for run in 1..=3 {
                let (pager, file) = (&pager, &file);
                scope.spawn(move || {
                    let mut random = Random(run as u64 * 31);
                    for _ in 0..15 {
                        for number in 0..2 {
                            let experts = random.choose(24, 24);
                            assert!(layer(pager, &file.data, run, number, &experts));
                        }
                        pager.end(run).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn repeated_rows_of_one_batch_are_hits() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    file.set_delay(std::time::Duration::from_millis(5));
    for tensor in 0..3 {
        pager.begin(1, 0, tensor, &[4, 6], &[30, 10]);
        for index in 0..2 {
            pager.wait(1, index);
            pager.done(1, index);
        }
    }
    pager.end(1).unwrap();
    let statistics = pager.statistics();
    assert_eq!((statistics.hits, statistics.misses), (38, 2));
    assert_eq!(statistics.tokens, 20);
    assert!((statistics.miss_rate - 0.05).abs() < 1e-9);
    assert!(statistics.mb_per_token > 0.0 && statistics.wait_ms_per_token > 0.0);
}

#[test]
fn the_pool_shrinks_and_grows_while_it_is_used() {
    for scope in Scope::ALL {
        let shape = Shape { layers: 3, experts: 16, used: 3, packed: false };
        let config = PagerConfig { scope, ..PagerConfig::default() };
        let (pager, file) = shape.pager(&config, 512);
        let (floor, most) = (pager.floor(), pager.held());
        assert!(floor < most / 2);
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for run in 1..=2 {
                let (pager, file, over) = (&pager, &file, &over);
                threads.spawn(move || {
                    let mut random = Random(run as u64 * 7 + 1);
                    while !over.load(Ordering::SeqCst) {
                        for number in 0..3 {
                            let count = if random.below(5) == 0 { 16 } else { 3 };
                            let experts = random.choose(count, 16);
                            assert!(layer(pager, &file.data, run, number, &experts));
                        }
                        pager.end(run).unwrap();
                    }
                });
            }
            let mut random = Random(3);
            for _ in 0..300 {
                let budget = floor + random.next() % (most - floor + 1);
                pager.set_budget(budget);
                std::thread::yield_now();
            }
            pager.set_budget(0);
            eventually(|| pager.held() == floor);
            assert_eq!(pager.set_budget(u64::MAX), most);
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(pager.held(), most);
    }
}

#[test]
fn what_a_run_holds_stays_when_the_pool_shrinks() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    let all: Vec<u32> = (0..8).collect();
    pager.begin(1, 0, 0, &all, &[1; 8]);
    let most = pager.held();
    let held = pager.set_budget(0);
    assert!(held > pager.floor() && held < most);
    for (index, &expert) in all.iter().enumerate() {
        assert!(crate::fixture::check(&pager, &file.data, (1, 0, 0), index, expert));
    }
    pager.end(1).unwrap();
    assert_eq!(pager.held(), pager.floor());
}

#[test]
fn pressure_takes_and_gives_back() {
    let shape = Shape { layers: 3, experts: 32, used: 2, packed: false };
    let (pager, _) = shape.pager(&PagerConfig::default(), 512);
    let most = pager.held();
    let reserve = 1 << 20;
    assert_eq!(pager.relieve(reserve, reserve), most, "enough is left");
    let less = pager.relieve(reserve - 300_000, reserve);
    assert!(less <= most - 300_000 && less > most - 400_000, "{most} {less}");
    assert_eq!(pager.relieve(0, u64::MAX), pager.floor());
    assert_eq!(pager.relieve(reserve + 1000, reserve), pager.floor(), "not enough to bother");
    let more = pager.relieve(reserve + 600_000, reserve);
    assert!(more > pager.floor() && more <= pager.floor() + 300_000, "{more}");
    pager.relieve(1 << 40, reserve);
    assert_eq!(pager.held(), most);
    // Never more than the budget.
    let budget = pager.floor() + 100_000;
    let held = pager.set_budget(budget);
    assert_eq!(pager.relieve(1 << 40, reserve), held);
}

#[test]
fn memory_is_given_back_to_the_system() {
    if smol_engine::machine::rss().is_none() {
        return;
    }
    // Again if other tests took or gave back as much meanwhile.
    let is_back = (0..8).any(|_| {
        let (took, gave) = memory_of_a_pager();
        took.min(gave) > 40 << 20
    });
    assert!(is_back);
}

/// The bytes by which this process grows and shrinks with 64 slots of a megabyte.
fn memory_of_a_pager() -> (i64, i64) {
    let resident = || smol_engine::machine::rss().unwrap_or(0) as i64;
    let before = resident();
    let mut layers = Shape { layers: 1, experts: 64, used: 2, packed: false }.layers().0;
    layers[0].tensors.truncate(1);
    layers[0].tensors[0].stride = 1 << 20;
    layers[0].tensors[0].bytes = 1 << 20;
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let file = tempfile::NamedTempFile::new_in(folder).unwrap();
    file.as_file().set_len(65 << 20).unwrap();
    let pager = Pager::open([file.path()], layers, &PagerConfig::default()).unwrap();
    let all: Vec<u32> = (0..64).collect();
    pager.begin(1, 0, 0, &all, &[1; 64]);
    for index in 0..64 {
        assert!(pager.wait(1, index).is_some());
        pager.done(1, index);
    }
    pager.end(1).unwrap();
    let full = resident();
    pager.set_budget(0);
    (full - before, full - resident())
}

#[test]
#[cfg(target_os = "linux")]
fn slots_ask_for_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let (pager, _) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    pager.begin(1, 0, 0, &[0], &[1]);
    let place = pager.wait(1, 0).unwrap().addr();
    let areas = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let flags = areas.lines().find_map(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(first), Some(end))) = range.map(|(a, b)| (hex(a), hex(b))) {
            inside = (first..end).contains(&place);
        }
        line.strip_prefix("VmFlags:").filter(|_| inside)
    });
    let flags = flags.unwrap();
    assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
    pager.done(1, 0);
    pager.end(1).unwrap();
}
