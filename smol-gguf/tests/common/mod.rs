//! A small valid model, and ways to damage it.

#![allow(dead_code)] // each test binary uses a part

use smol_gguf::{Depth, Gguf, Report, TensorType, Value, Writer, check};

pub const N_EMBD: u64 = 64;
pub const TOKENS: [&str; 6] = ["<unk>", "<s>", "</s>", "a", "b", "c"];

/// A model as data: edit it, then encode it.
#[derive(Clone)]
pub struct Model {
    pub writer: Writer,
    pub data: Vec<(String, Vec<u8>)>,
}

impl Model {
    /// A llama with one layer, as llama.cpp would load it.
    pub fn llama() -> Self {
        let mut model = Self::with_arch("llama");
        let n = N_EMBD;
        model.f32("token_embd.weight", &[n, TOKENS.len() as u64]);
        model.f32("output_norm.weight", &[n]);
        model.f32("blk.0.attn_norm.weight", &[n]);
        model.f32("blk.0.attn_q.weight", &[n, n]);
        model.f32("blk.0.attn_k.weight", &[n, n / 2]);
        model.f32("blk.0.attn_v.weight", &[n, n / 2]);
        model.f32("blk.0.attn_output.weight", &[n, n]);
        model.f32("blk.0.ffn_norm.weight", &[n]);
        model.tensor("blk.0.ffn_gate.weight", &[n, 128], TensorType::Q4_0);
        model.tensor("blk.0.ffn_up.weight", &[n, 128], TensorType::F16);
        model.tensor("blk.0.ffn_down.weight", &[128, n], TensorType::Q8_0);
        model
    }

    /// Metadata of one layer, four heads and a vocabulary; no tensors.
    pub fn with_arch(arch: &str) -> Self {
        let mut writer = Writer::new();
        writer.set("general.architecture", arch);
        let mut model = Self { writer, data: Vec::new() };
        model.set(&format!("{arch}.context_length"), 512u32);
        model.set(&format!("{arch}.embedding_length"), N_EMBD as u32);
        model.set(&format!("{arch}.block_count"), 1u32);
        model.set(&format!("{arch}.feed_forward_length"), 128u32);
        model.set(&format!("{arch}.attention.head_count"), 4u32);
        model.set(&format!("{arch}.attention.head_count_kv"), 2u32);
        model.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
        model.set(&format!("{arch}.rope.freq_base"), 10000f32);
        model.set("tokenizer.ggml.model", "llama");
        model.set("tokenizer.ggml.tokens", TOKENS.to_vec());
        model.set("tokenizer.ggml.scores", vec![0f32; TOKENS.len()]);
        model.set("tokenizer.ggml.token_type", vec![2i32, 3, 3, 1, 1, 1]);
        model.set("tokenizer.ggml.bos_token_id", 1u32);
        model.set("tokenizer.ggml.eos_token_id", 2u32);
        model
    }

    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.writer.set(key, value);
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.writer.metadata_mut().remove(key);
        self
    }

    /// Adds a tensor of ones.
    pub fn f32(&mut self, name: &str, shape: &[u64]) -> &mut Self {
        self.tensor(name, shape, TensorType::F32);
        let bytes = &mut self.data.last_mut().unwrap().1;
        *bytes = 1f32.to_le_bytes().repeat(bytes.len() / 4);
        self
    }

    /// Adds a tensor of zeros.
    pub fn tensor(&mut self, name: &str, shape: &[u64], ty: TensorType) -> &mut Self {
        self.writer.tensor(name, shape, ty).unwrap();
        let n_bytes = self.writer.tensors().last().unwrap().n_bytes();
        self.data.push((name.into(), vec![0; n_bytes as usize]));
        self
    }

    pub fn data_of(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.data.iter_mut().find(|(n, _)| n == name).unwrap().1
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut data = self.writer.start(Vec::new()).unwrap();
        for (name, bytes) in &self.data {
            data.write_tensor(name, bytes).unwrap();
        }
        data.finish().unwrap()
    }

    pub fn check(&self) -> Report {
        check(&Gguf::from_bytes(self.encode()).unwrap(), Depth::Full)
    }
}

/// Encodes a header by hand, for what the writer refuses to write.
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn new(version: u32, n_tensors: u64, n_pairs: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(n_tensors).u64(n_pairs)
    }

    pub fn u32(mut self, v: u32) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }

    pub fn u64(mut self, v: u64) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }

    pub fn str(self, s: &str) -> Self {
        self.bytes(s.as_bytes())
    }

    pub fn bytes(self, s: &[u8]) -> Self {
        let mut raw = self.u64(s.len() as u64);
        raw.0.extend(s);
        raw
    }

    pub fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let mut raw = self.str(name).u32(shape.len() as u32);
        for &dim in shape {
            raw = raw.u64(dim);
        }
        raw.u32(ty).u64(offset)
    }

    pub fn pad(mut self, data: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 0);
        self
    }
}

/// Returns the message of the error that a header gives.
pub fn parse_error(bytes: impl Into<std::sync::Arc<[u8]>>) -> String {
    let message = Gguf::from_bytes(bytes).expect_err("the header should be refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

/// Returns the messages of all errors that a check finds.
pub fn errors(report: &Report) -> Vec<String> {
    report.errors().map(|f| f.error().to_string()).collect()
}

pub fn warnings(report: &Report) -> Vec<String> {
    report.warnings().map(|f| f.error().to_string()).collect()
}
