//! llama.cpp's own sampler chain, to compare with in results and in time.

#![allow(dead_code, reason = "the test and the benchmark use different parts")]

use ggml_sys as sys;
use std::ptr;

/// Settings of a chain: penalties, top-k, top-p, min-p, temperature, distribution.
#[derive(Debug, Clone)]
pub struct Settings {
    pub n_vocab: usize,
    pub last_n: usize,
    pub repeat: f32,
    pub frequency: f32,
    pub presence: f32,
    pub bias: Vec<(i32, f32)>,
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    /// 0 ends the chain with the greedy sampler.
    pub temp: f32,
}

impl Settings {
    /// The settings of the benchmark: top-k 40 and penalties over 256 tokens.
    pub fn usual(n_vocab: usize) -> Self {
        Self {
            n_vocab,
            last_n: 256,
            repeat: 1.1,
            frequency: 0.0,
            presence: 0.0,
            bias: Vec::new(),
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            temp: 0.8,
        }
    }

    /// The same settings for this crate's sampler.
    pub fn ours(&self) -> llama_rs::sampler::Sampler {
        let mut builder = llama_rs::sampler::SamplerBuilder::new()
            .repeat_last_n(self.last_n)
            .repeat_penalty(self.repeat)
            .frequency_penalty(self.frequency)
            .presence_penalty(self.presence)
            .top_k(self.top_k)
            .top_p(self.top_p)
            .min_p(self.min_p)
            .temp(self.temp)
            .seed(1);
        for &(token, bias) in &self.bias {
            builder = builder.logit_bias(llama_rs::Token(token), bias);
        }
        builder.build_for_vocab(self.n_vocab).expect("the settings are in range")
    }
}

/// A chain of llama.cpp's samplers.
pub struct Chain {
    chain: *mut sys::llama_sampler,
    candidates: Vec<sys::llama_token_data>,
    len: usize,
}

impl Chain {
    pub fn new(settings: &Settings) -> Self {
        // SAFETY: a pure function (llama.h, llama_sampler_chain_default_params).
        let params = unsafe { sys::llama_sampler_chain_default_params() };
        // SAFETY: `params` is initialized; the result is freed in `drop`.
        let chain = unsafe { sys::llama_sampler_chain_init(params) };
        let this = Self { chain, candidates: Vec::new(), len: 0 };
        let n_vocab = settings.n_vocab as i32;
        if !settings.bias.is_empty() {
            let bias: Vec<_> = settings
                .bias
                .iter()
                .map(|&(token, bias)| sys::llama_logit_bias { token, bias })
                .collect();
            // SAFETY: `bias` has the length given and is copied (llama-sampler.cpp, init_logit_bias).
            this.add(unsafe {
                sys::llama_sampler_init_logit_bias(n_vocab, bias.len() as i32, bias.as_ptr())
            });
        }
        // SAFETY: takes numbers only, as the following ones.
        this.add(unsafe {
            sys::llama_sampler_init_penalties(
                n_vocab,
                settings.last_n as i32,
                settings.repeat,
                settings.frequency,
                settings.presence,
            )
        });
        if settings.temp == 0.0 {
            // SAFETY: no arguments.
            this.add(unsafe { sys::llama_sampler_init_greedy() });
            return this;
        }
        // SAFETY: takes a number.
        this.add(unsafe { sys::llama_sampler_init_top_k(settings.top_k as i32) });
        // SAFETY: takes numbers.
        this.add(unsafe { sys::llama_sampler_init_top_p(settings.top_p, 1) });
        // SAFETY: takes numbers.
        this.add(unsafe { sys::llama_sampler_init_min_p(settings.min_p, 1) });
        // SAFETY: takes a number.
        this.add(unsafe { sys::llama_sampler_init_temp(settings.temp) });
        // SAFETY: takes a number.
        this.add(unsafe { sys::llama_sampler_init_dist(1) });
        this
    }

    fn add(&self, sampler: *mut sys::llama_sampler) {
        // SAFETY: the chain takes ownership of a sampler that was made just now.
        unsafe { sys::llama_sampler_chain_add(self.chain, sampler) };
    }

    pub fn accept(&mut self, token: i32) {
        // SAFETY: the chain is alive.
        unsafe { sys::llama_sampler_accept(self.chain, token) };
    }

    /// Fills the candidates as llama.cpp does and applies the chain; returns the selected token.
    pub fn sample(&mut self, logits: &[f32]) -> i32 {
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0..).map(|(&logit, id)| sys::llama_token_data {
            id,
            logit,
            p: 0.0,
        }));
        let mut array = sys::llama_token_data_array {
            data: self.candidates.as_mut_ptr(),
            size: self.candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: `array` describes a live, exclusive vector; samplers only shrink it.
        unsafe { sys::llama_sampler_apply(self.chain, ptr::from_mut(&mut array)) };
        self.len = array.size;
        self.candidates[array.selected as usize].id
    }

    /// The candidates that the last draw chose from, as id and probability.
    pub fn candidates(&self) -> Vec<(i32, f32)> {
        self.candidates[..self.len].iter().map(|c| (c.id, c.p)).collect()
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by llama_sampler_chain_init and freed once.
        unsafe { sys::llama_sampler_free(self.chain) };
    }
}

/// Logits in the shape of a model's: most around zero, a few high.
pub fn logits(n_vocab: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n_vocab)
        .map(|_| {
            let bell: f32 = (0..6).map(|_| uniform()).sum::<f32>() - 3.0;
            bell * 4.0 + if uniform() < 3e-4 { 10.0 * uniform() } else { 0.0 }
        })
        .collect()
}

/// A history of `n` tokens, some of them repeated and some with high logits.
pub fn history(n: usize, logits: &[f32]) -> Vec<i32> {
    let mut best: Vec<i32> = (0..logits.len() as i32).collect();
    best.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    (0..n)
        .map(|i| if i % 3 == 0 { best[i % 20] } else { (i * 7919 % logits.len()) as i32 })
        .collect()
}
