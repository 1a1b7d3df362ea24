//! whisper.cpp's part: encodes a tone with a model of random weights and decodes a few tokens, as text.

use anyhow::{Context as _, Result};
use std::ffi::CStr;
use whisper_rs::{WhisperContext, WhisperContextParameters};

/// The version that the ggml inside whisper.cpp says it is.
pub fn version() -> String {
    // SAFETY: ggml.h: returns a string literal.
    let text = unsafe { CStr::from_ptr(whisper_rs::whisper_rs_sys::ggml_version()) };
    text.to_string_lossy().into_owned()
}

/// Runs the model: system information, then the greedy tokens and a hash of all logits.
pub fn run() -> Result<String> {
    whisper_rs::install_logging_hooks();
    let model = Tiny::default().file();
    let context =
        WhisperContext::new_from_buffer_with_params(&model, WhisperContextParameters::default())
            .context("whisper.cpp does not load the model")?;
    let mut state = context.create_state()?;
    let tone: Vec<f32> = (0..16_000).map(|i| (i as f32 * 0.17).sin() * 0.4).collect();
    state.pcm_to_mel(&tone, 2)?;
    state.encode(0, 2)?;
    let mut text = format!("ggml {}\n{}\n", version(), whisper_rs::print_system_info());
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut token = 1;
    for position in 0..8 {
        state.decode(&[token], position, 2)?;
        let logits = state.get_logits()?;
        let mut best = 0;
        for (index, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = index;
            }
            hash = (hash ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
        anyhow::ensure!(logits.iter().all(|logit| logit.is_finite()), "logits that are no numbers");
        text.push_str(&format!("{best} "));
        token = best as i32;
    }
    Ok(format!("{text}{hash:016x}\n"))
}

/// A model in the format that `whisper_model_load` reads, with random weights.
struct Tiny {
    file: Vec<u8>,
    state: u64,
}

const VOCAB: i32 = 320;
const WIDTH: i32 = 64;
const HEADS: i32 = 2;
const LAYERS: i32 = 4;
const AUDIO: i32 = 96;
const TEXT: i32 = 32;
const MELS: i32 = 80;
const BINS: i32 = 201;
/// Types by their number in the file; that of the matrices is also the model's.
const F32: i32 = 0;
const F16: i32 = 1;

impl Default for Tiny {
    fn default() -> Self {
        Tiny { file: Vec::new(), state: 1 }
    }
}

impl Tiny {
    fn file(mut self) -> Vec<u8> {
        self.ints(&[0x6767_6d6c]);
        self.ints(&[VOCAB, AUDIO, WIDTH, HEADS, LAYERS, TEXT, WIDTH, HEADS, LAYERS, MELS, F16]);
        self.ints(&[MELS, BINS]);
        for _ in 0..MELS * BINS {
            let value = self.random().abs();
            self.file.extend(value.to_le_bytes());
        }
        self.ints(&[VOCAB]);
        for token in 0..VOCAB {
            let name = format!("<{token}>");
            self.ints(&[name.len() as i32]);
            self.file.extend(name.as_bytes());
        }

        self.tensor("encoder.positional_embedding", &[WIDTH, AUDIO]);
        self.tensor("encoder.conv1.weight", &[3, MELS, WIDTH]);
        self.tensor("encoder.conv1.bias", &[1, WIDTH]);
        self.tensor("encoder.conv2.weight", &[3, WIDTH, WIDTH]);
        self.tensor("encoder.conv2.bias", &[1, WIDTH]);
        self.norm("encoder.ln_post");
        self.tensor("decoder.positional_embedding", &[WIDTH, TEXT]);
        self.tensor("decoder.token_embedding.weight", &[WIDTH, VOCAB]);
        self.norm("decoder.ln");
        for layer in 0..LAYERS {
            for (half, attentions) in
                [("encoder", &["attn"][..]), ("decoder", &["attn", "cross_attn"])]
            {
                let block = format!("{half}.blocks.{layer}");
                self.norm(&format!("{block}.mlp_ln"));
                self.tensor(&format!("{block}.mlp.0.weight"), &[WIDTH, 4 * WIDTH]);
                self.tensor(&format!("{block}.mlp.0.bias"), &[4 * WIDTH]);
                self.tensor(&format!("{block}.mlp.2.weight"), &[4 * WIDTH, WIDTH]);
                self.tensor(&format!("{block}.mlp.2.bias"), &[WIDTH]);
                for attention in attentions {
                    self.norm(&format!("{block}.{attention}_ln"));
                    for part in ["query", "key", "value", "out"] {
                        self.tensor(&format!("{block}.{attention}.{part}.weight"), &[WIDTH, WIDTH]);
                        if part != "key" {
                            self.tensor(&format!("{block}.{attention}.{part}.bias"), &[WIDTH]);
                        }
                    }
                }
            }
        }
        self.file
    }

    fn norm(&mut self, name: &str) {
        self.tensor(&format!("{name}.weight"), &[WIDTH]);
        self.tensor(&format!("{name}.bias"), &[WIDTH]);
    }

    /// Dimensions, the fastest first.
    fn tensor(&mut self, name: &str, dims: &[i32]) {
        let half = name.ends_with("weight") && dims.len() > 1;
        self.ints(&[dims.len() as i32, name.len() as i32, if half { F16 } else { F32 }]);
        self.ints(dims);
        self.file.extend(name.as_bytes());
        for _ in 0..dims.iter().product::<i32>() {
            let value = self.random() * 0.5;
            if half {
                // Sign and mantissa as drawn, the exponent of 1/8 to 1/4.
                let bits = (value.to_bits() >> 16 & 0x83ff) as u16 | 12 << 10;
                self.file.extend(bits.to_le_bytes());
            } else {
                self.file.extend(value.to_le_bytes());
            }
        }
    }

    fn ints(&mut self, values: &[i32]) {
        for value in values {
            self.file.extend(value.to_le_bytes());
        }
    }

    /// From -1 to 1, xorshift.
    fn random(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
