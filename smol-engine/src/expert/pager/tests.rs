//! What memory is read and written by whom, small enough for Miri.

use super::*;
use crate::expert::{Packer, PoolSize};
use crate::io::in_memory::{InMemory, Inverts};

const LEN: usize = 48;

/// Makes a pager of one layer of 6 experts with a plain and a packed tensor, on the floor.
fn pager() -> (Arc<Pager>, Vec<u8>) {
    let data: Vec<u8> = (0..12 * LEN + 5).map(|i| (i * 7) as u8).collect();
    let tensor = |number: usize| ExpertTensor {
        name: number.to_string(),
        file: 0,
        offset: (number * 6 * LEN + 5) as u64,
        stride: LEN as u64,
        bytes: LEN,
        packer: (number == 1).then(|| Arc::new(Inverts) as Arc<dyn Packer>),
    };
    let tensors = vec![tensor(0), tensor(1)];
    let layers = vec![ExpertLayer { block: 0, experts: 6, used: 2, tensors }];
    let files: Vec<Arc<dyn ReadAt>> = vec![Arc::new(InMemory(data.clone(), Mode::Direct))];
    let config = PagerConfig { readers: 2, verify: true, ..PagerConfig::default() };
    let budget = Pager::least_budget(&files, &layers, &config).unwrap();
    let config = PagerConfig { budget, ..config };
    let foreseen = PoolSize::new(&files, &layers, &config).unwrap();
    let pager = Pager::new(files, layers, &config).unwrap();
    assert_eq!((foreseen.bytes, foreseen.experts), (pager.held(), 6));
    assert_eq!(foreseen.slots, pager.statistics().slots);
    (pager, data)
}

/// Returns the bytes of an expert as a kernel sees them.
fn weights(pager: &Pager, run: usize, index: usize) -> Vec<u8> {
    let weights = pager.wait(run, index).expect("no read fails");
    // Byte by byte, as a kernel: through the address alone.
    // SAFETY: so many bytes stay there until done() is called.
    (0..LEN).map(|at| unsafe { weights.wrapping_add(at).read() }).collect()
}

#[test]
fn readers_write_beside_what_kernels_read() {
    let (pager, data) = pager();
    std::thread::scope(|scope| {
        for run in 1..=2_usize {
            let (pager, data) = (&pager, &data);
            scope.spawn(move || {
                for round in 0..3_u32 {
                    // The first two have slots, the others come through the ring.
                    let experts: Vec<u32> = (0..4).map(|i| (i + round + run as u32) % 6).collect();
                    pager.predict(0, &experts[2..]);
                    pager.want(run, 0, &experts[..2]);
                    for tensor in 0..2 {
                        pager.begin(run, 0, tensor, &experts, &[1; 4]);
                        for (index, &expert) in experts.iter().enumerate() {
                            let start = 5 + (tensor * 6 + expert as usize) * LEN;
                            let mut expected = data[start..start + LEN].to_vec();
                            if tensor == 1 {
                                expected.iter_mut().for_each(|byte| *byte = !*byte);
                            }
                            assert_eq!(weights(pager, run, index), expected);
                            pager.done(run, index);
                        }
                    }
                    pager.end(run).unwrap();
                }
            });
        }
    });
}

#[test]
fn memory_that_goes_back_is_nobodys() {
    let (pager, _) = pager();
    pager.set_budget(u64::MAX);
    pager.begin(1, 0, 0, &[0, 1, 2, 3, 4, 5], &[1; 6]);
    let first = weights(&pager, 1, 0);
    pager.set_budget(0);
    assert_eq!(weights(&pager, 1, 0), first, "it is held");
    pager.end(1).unwrap();
    assert_eq!(pager.held(), pager.floor());
}
