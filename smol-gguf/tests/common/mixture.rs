//! Small mixtures of experts.

#![allow(dead_code, reason = "each test file uses a part of it")]

use smol_gguf::{Gguf, TensorType, Writer};

/// A file with routed experts.
#[derive(Clone, Copy, Debug)]
pub enum Mixture {
    /// Gate, up and down apart, layers out of order, shared experts and biases.
    Separate,
    /// Gate and up in one tensor.
    Fused,
    /// Gate, up and down of 5 MB and some bytes each.
    Large,
    /// Experts of whole blocks of 4096 bytes, odd tensors in between.
    Blocks,
}

impl Mixture {
    pub const ALL: [Self; 4] = [Self::Separate, Self::Fused, Self::Large, Self::Blocks];

    /// Names and numbers of F32 elements, in the file's order.
    fn tensors(self) -> Vec<(String, u64)> {
        let list: &[(&str, u64)] = match self {
            Self::Separate => &[
                ("blk.10.ffn_down_exps.weight", 100),
                ("token_embd.weight", 33),
                ("blk.2.ffn_gate_exps.weight", 1500),
                ("blk.2.ffn_gate_exps.bias", 5),
                ("blk.2.ffn_down_exps.weight", 1024),
                ("blk.2.ffn_gate_shexp.weight", 9),
                ("blk.2.ffn_up_exps.weight", 1),
                ("blk.10.ffn_up_exps.weight", 2048),
                ("output.weight", 33),
            ],
            Self::Fused => &[
                ("token_embd.weight", 7),
                ("blk.0.ffn_down_exps.weight", 64),
                ("blk.0.ffn_gate_up_exps.weight", 128),
                ("blk.1.ffn_gate_up_exps.weight", 128),
                ("blk.1.ffn_down_exps.weight", 64),
            ],
            Self::Large => &[
                ("token_embd.weight", 300_000),
                ("blk.0.ffn_gate_exps.weight", 1_250_001),
                ("blk.0.ffn_up_exps.weight", 1_250_003),
                ("blk.0.ffn_down_exps.weight", 1_250_005),
                ("output_norm.weight", 2000),
            ],
            Self::Blocks => &[
                ("token_embd.weight", 333),
                ("blk.0.ffn_gate_exps.weight", 3072),
                ("blk.0.ffn_up_exps.weight", 3072),
                ("blk.0.ffn_down_exps.weight", 1024),
                ("blk.1.attn_norm.weight", 5),
                ("blk.1.ffn_gate_exps.weight", 2048),
                ("blk.1.ffn_up_exps.weight", 2048),
                ("blk.1.ffn_down_exps.weight", 1024),
            ],
        };
        list.iter().map(|&(name, n)| (name.to_owned(), n)).collect()
    }

    /// The order after experts were put last.
    pub fn expected_order(self) -> Vec<&'static str> {
        match self {
            Self::Separate => vec![
                "token_embd.weight",
                "blk.2.ffn_gate_exps.bias",
                "blk.2.ffn_gate_shexp.weight",
                "output.weight",
                "blk.2.ffn_up_exps.weight",
                "blk.2.ffn_gate_exps.weight",
                "blk.2.ffn_down_exps.weight",
                "blk.10.ffn_up_exps.weight",
                "blk.10.ffn_down_exps.weight",
            ],
            Self::Fused => vec![
                "token_embd.weight",
                "blk.0.ffn_gate_up_exps.weight",
                "blk.0.ffn_down_exps.weight",
                "blk.1.ffn_gate_up_exps.weight",
                "blk.1.ffn_down_exps.weight",
            ],
            Self::Large => vec![
                "token_embd.weight",
                "output_norm.weight",
                "blk.0.ffn_up_exps.weight",
                "blk.0.ffn_gate_exps.weight",
                "blk.0.ffn_down_exps.weight",
            ],
            Self::Blocks => vec![
                "token_embd.weight",
                "blk.1.attn_norm.weight",
                "blk.0.ffn_up_exps.weight",
                "blk.0.ffn_gate_exps.weight",
                "blk.0.ffn_down_exps.weight",
                "blk.1.ffn_up_exps.weight",
                "blk.1.ffn_gate_exps.weight",
                "blk.1.ffn_down_exps.weight",
            ],
        }
    }

    pub fn gguf(self) -> Gguf {
        Gguf::from_bytes(self.bytes(None, 1)).unwrap()
    }

    pub fn with_alignment(self, alignment: u32) -> Gguf {
        Gguf::from_bytes(self.bytes(Some(alignment), 1)).unwrap()
    }

    /// The file's bytes; another seed gives other weights.
    pub fn bytes(self, alignment: Option<u32>, seed: u32) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.set("general.architecture", "llama").set("general.name", format!("{self:?}"));
        if let Some(alignment) = alignment {
            writer.set("general.alignment", alignment);
        }
        writer.set("llama.block_count", 11u32);
        for (name, n) in self.tensors() {
            writer.tensor(name, &[n], TensorType::F32).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        for (name, n) in self.tensors() {
            let mut state = name.bytes().fold(seed, |s, b| s.wrapping_mul(31) + u32::from(b)) | 1;
            let bytes: Vec<u8> = (0..n * 4)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Without zeros, which look like freed room.
                    (state >> 24) as u8 | 1
                })
                .collect();
            data.write_tensor(&name, &bytes).unwrap();
        }
        data.finish().unwrap()
    }
}

pub fn names_in(gguf: &Gguf) -> Vec<&str> {
    gguf.tensors().iter().map(smol_gguf::TensorInfo::name).collect()
}

pub fn data_of(gguf: &Gguf, name: &str) -> Vec<u8> {
    gguf.data(gguf.tensor(name).unwrap()).unwrap().into_owned()
}
