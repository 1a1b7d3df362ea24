//! Thousands of damaged headers: each is read or refused, none panics or takes memory.

mod common;

use common::Model;
use smol_gguf::{Depth, Gguf, Rewriter, check};

/// A small generator of repeatable numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Values at which arithmetic goes wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    31,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX - 31,
    u64::MAX,
];

fn damage(bytes: &mut Vec<u8>, header: usize, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(header.min(bytes.len()));
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let n = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&edge[..n]);
            }
            3 => bytes.truncate(at + 1),
            4 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, random.next() as u8),
        }
        if bytes.len() < 2 {
            return;
        }
    }
}

#[test]
fn damaged_headers_are_read_or_refused() {
    let models = [Model::llama(), {
        let mut moe = Model::with_arch("qwen3moe");
        moe.set("qwen3moe.expert_count", 8u32).set("qwen3moe.expert_used_count", 2u32);
        moe.set("tokenizer.chat_template", "{% if x %}{{ x }}{% endif %}");
        moe.f32("blk.0.ffn_gate_exps.weight", &[64, 32, 8]).f32("output_norm.weight", &[64]);
        moe
    }];
    let rounds = if cfg!(miri) { 5 } else { 20_000 };
    let mut random = Random(0x5eed_cafe_f00d_0001);
    let (mut read, mut refused, mut usable) = (0, 0, 0);
    for model in &models {
        let original = model.encode();
        let header = Gguf::from_bytes(original.clone()).unwrap().data_offset() as usize;
        for _ in 0..rounds {
            let mut bytes = original.clone();
            damage(&mut bytes, header, &mut random);
            match Gguf::from_bytes(bytes) {
                Ok(gguf) => {
                    read += 1;
                    let report = check(&gguf, Depth::Header);
                    for finding in report.findings() {
                        let text = finding.to_string();
                        assert!(!text.contains('\n') && text.len() < 2000, "{text}");
                    }
                    if report.is_usable() {
                        usable += 1;
                        // What passes the check can be written again.
                        Rewriter::new(&gguf).write(std::io::sink()).unwrap();
                    }
                }
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    assert!(!text.contains('\n') && text.len() < 2000, "{text}");
                }
            }
        }
    }
    // The damage is neither always harmless nor always fatal.
    if !cfg!(miri) {
        let counts = format!("{refused} refused, {read} read, {usable} usable");
        assert!(refused > rounds / 10 && read > rounds / 10, "{counts}");
        assert!(usable > 0 && usable < read, "{counts}");
    }
}
