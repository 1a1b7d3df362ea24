//! How much memory a context needs.

use smol_gguf::{Array, Metadata, Value};

use crate::kv::KvType;

/// The memory that a context takes, estimated before anything is allocated. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// The key-value cache of attention layers.
    pub kv_cache: u64,
    /// The states of recurrent layers.
    pub recurrent: u64,
    /// Buffers for activations and for the logits of a whole batch. They are reserved, but a use that asks for the
    /// logits of one token at a time touches a small part of them.
    pub compute: u64,
    /// Of [`compute`](Self::compute), what any use of a full batch touches: activations and one token's logits.
    pub activations: u64,
    /// Tables for computation graphs and what comes on top while the context works: thread stacks, work buffers. Most
    /// of it is address space that is never touched, but ggml ends the process where it cannot have it (ggml.c:1663).
    pub graphs: u64,
}

impl MemoryEstimate {
    /// Returns what is filled in any use: the cache and the states.
    pub fn resident(&self) -> u64 {
        self.kv_cache.saturating_add(self.recurrent)
    }

    /// Returns what is filled when long prompts are computed and the logits of one token at a time are asked for.
    pub fn in_use(&self) -> u64 {
        self.resident().saturating_add(self.activations)
    }

    /// Returns the sum of everything that is allocated.
    pub fn total(&self) -> u64 {
        self.resident().saturating_add(self.compute).saturating_add(self.graphs)
    }
}

/// Bytes a node of the largest graph: the scheduler makes room for 60 copies of tensors a node and for their hash slots
/// (ggml-backend.cpp:2241-2260), three graphs keep 400 bytes each.
const NODE_BYTES: u64 = 60 * (368 + 24) + 3 * 400;

/// Bytes that a context takes while it works, beside everything else.
const AT_WORK: u64 = 24 << 20;

/// What the estimate depends on besides the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryRequest {
    pub(crate) n_ctx: u64,
    pub(crate) n_ubatch: u64,
    pub(crate) n_seq_max: u64,
    pub(crate) n_vocab: u64,
    pub(crate) n_tensors: u64,
    pub(crate) type_k: KvType,
    pub(crate) type_v: KvType,
    pub(crate) swa_full: bool,
    pub(crate) kv_unified: bool,
    /// Attention without a matrix of all scores.
    pub(crate) flash_attention: bool,
}

/// The hyperparameters of a file, as far as they decide memory.
pub(crate) struct Layers<'a> {
    metadata: &'a Metadata,
    count: u64,
}

impl<'a> Layers<'a> {
    pub(crate) fn new(metadata: &'a Metadata) -> Self {
        let count = metadata.arch_get("block_count").and_then(Value::as_u64).unwrap_or(0);
        // Files with more layers are refused at load; the bound keeps the loops below short in any case.
        Self { metadata, count: count.min(4096) }
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.metadata.arch_get(key).and_then(Value::as_u64)
    }

    /// A value that may differ from layer to layer.
    fn per_layer(&self, key: &str, layer: u64) -> Option<u64> {
        match self.metadata.arch_get(key)? {
            Value::Array(array) => element(array, usize::try_from(layer).ok()?),
            value => value.as_u64(),
        }
    }

    /// Elements of the cached keys and values of one token in one layer; 0 for recurrent layers.
    fn kv_elements(&self, layer: u64) -> (u64, u64) {
        let n_embd = self.number("embedding_length").unwrap_or(0);
        let heads = self.per_layer("attention.head_count", layer).unwrap_or(0);
        let kv_heads = self.per_layer("attention.head_count_kv", layer).unwrap_or(heads);
        let by_default = n_embd.checked_div(heads.max(1)).unwrap_or(0);
        let key = self.number("attention.key_length").unwrap_or(by_default);
        let value = self.number("attention.value_length").unwrap_or(by_default);
        if self.number("attention.key_length_mla").is_some() {
            // Latent attention caches one row a token that stands for keys and values.
            return (key, 0);
        }
        if self.is_recurrent_layer(layer) {
            return (0, 0);
        }
        (key.saturating_mul(kv_heads), value.saturating_mul(kv_heads))
    }

    fn is_recurrent_layer(&self, layer: u64) -> bool {
        // qwen35 and its kin: every n-th layer is full attention, the others are recurrent.
        match self.number("full_attention_interval") {
            Some(interval) if interval > 0 => !(layer + 1).is_multiple_of(interval),
            _ => false,
        }
    }

    /// Layers whose cache is as long as the context, given a sliding window in the others.
    fn is_windowed(&self, layer: u64) -> bool {
        match self.metadata.arch_get("attention.sliding_window_pattern") {
            Some(Value::Array(array)) => {
                usize::try_from(layer).ok().and_then(|layer| element(array, layer)) == Some(1)
            }
            // Of each n layers the last one is full. 6 is the largest pattern of models that don't write it.
            value => {
                let pattern = value.and_then(Value::as_u64).unwrap_or(6);
                pattern > 0 && !(layer + 1).is_multiple_of(pattern)
            }
        }
    }

    /// Bytes of the states of recurrent layers for one sequence, as 32-bit floats.
    fn recurrent_bytes(&self) -> u64 {
        let inner = self.number("ssm.inner_size").unwrap_or(0);
        let state = self.number("ssm.state_size").unwrap_or(0);
        let conv = self.number("ssm.conv_kernel").unwrap_or(1).saturating_sub(1);
        let groups = self.number("ssm.group_count").unwrap_or(0);
        let layers = (0..self.count).filter(|layer| self.kv_elements(*layer) == (0, 0)).count();
        let conv_rows = inner.saturating_add(groups.saturating_mul(2).saturating_mul(state));
        let elements = conv.saturating_mul(conv_rows).saturating_add(state.saturating_mul(inner));
        elements.saturating_mul(4).saturating_mul(layers as u64)
    }

    pub(crate) fn estimate(&self, request: &MemoryRequest) -> MemoryEstimate {
        let window = self.number("attention.sliding_window").unwrap_or(0);
        let streams = if request.kv_unified { 1 } else { request.n_seq_max.max(1) };
        let cells = request.n_ctx.div_ceil(streams).next_multiple_of(256);
        let window_cells = if window == 0 || request.swa_full {
            cells
        } else {
            let sequences = if request.kv_unified { request.n_seq_max.max(1) } else { 1 };
            let wanted = window.saturating_mul(sequences).saturating_add(request.n_ubatch);
            wanted.min(cells).next_multiple_of(256)
        };
        let (mut kv_cache, mut windowed) = (0_u64, false);
        for layer in 0..self.count {
            windowed |= self.is_windowed(layer) && self.kv_elements(layer) != (0, 0);
            let (keys, values) = self.kv_elements(layer);
            let token =
                row_bytes(request.type_k, keys).saturating_add(row_bytes(request.type_v, values));
            let cells = if self.is_windowed(layer) { window_cells } else { cells };
            kv_cache = kv_cache.saturating_add(token.saturating_mul(cells).saturating_mul(streams));
        }
        let n_tokens = request.n_ubatch.min(request.n_ctx);
        let row = self.activations_of_a_token().saturating_mul(4);
        // The mask of attention has a number for each pair of a new token and a cached one; there is a second one for
        // layers with a window.
        let masked =
            if window > 0 && windowed { cells.saturating_add(window_cells) } else { cells };
        let scores = self.score_bytes(cells, request.flash_attention);
        let mask = masked.saturating_mul(if request.flash_attention { 2 } else { 4 });
        let row = row.saturating_add(mask).saturating_add(scores);
        let activations = row.saturating_mul(n_tokens);
        let logits = request.n_vocab.saturating_mul(4);
        MemoryEstimate {
            kv_cache,
            recurrent: self.recurrent_bytes().saturating_mul(request.n_seq_max.max(1)),
            compute: activations.saturating_add(logits.saturating_mul(n_tokens)),
            activations: activations.saturating_add(logits),
            graphs: self.graph_nodes(request).saturating_mul(NODE_BYTES).saturating_add(AT_WORK),
        }
    }

    /// Bytes of the scores of a token's attention to so many others in one layer.
    fn score_bytes(&self, cells: u64, flash_attention: bool) -> u64 {
        if flash_attention {
            return 0;
        }
        let heads =
            (0..self.count).filter_map(|layer| self.per_layer("attention.head_count", layer));
        heads.max().unwrap_or(0).saturating_mul(cells).saturating_mul(4)
    }

    /// Numbers that are alive at once for a token, where they are most: in a layer's network of gate and up, or in that of
    /// all experts that the token uses.
    fn activations_of_a_token(&self) -> u64 {
        let n_embd = self.number("embedding_length").unwrap_or(0);
        let widest = |key: &str| {
            let widths = (0..self.count).filter_map(|layer| self.per_layer(key, layer));
            widths.max().unwrap_or(0)
        };
        // Gate and up, and one of them once more as a product's input: in 8 bits and scales.
        let inner = |width: u64| width.saturating_mul(2).saturating_add(width.div_ceil(3));
        let dense = inner(widest("feed_forward_length"));
        // Without a width of their own experts are as wide as a dense layer.
        let of_expert = match widest("expert_feed_forward_length") {
            0 => n_embd.saturating_add(dense),
            width => n_embd.saturating_add(inner(width)),
        };
        let experts = widest("expert_used_count").saturating_mul(of_expert);
        dense.max(experts).saturating_add(n_embd.saturating_mul(4))
    }

    /// The most nodes of a graph (llama-context.cpp:2529, llama_context::graph_max_nodes).
    fn graph_nodes(&self, request: &MemoryRequest) -> u64 {
        let n_tokens = request.n_ubatch.min(request.n_ctx);
        let (per_token, per_tensor) = match self.metadata.architecture().unwrap_or_default() {
            "kimi-k3" | "glm5-next" => (160, 64),
            "hrm_text" => (80, 64),
            "qwen3next" | "kimi-linear" | "bailingmoe3" | "qwen35" | "qwen35moe" | "clef"
            | "qwen4exp" | "deepseek4" | "deepseek41" | "dflash" | "nanbeige" | "minimax-01"
            | "minimax-m3" | "hy_v4" => (40, 32),
            _ => (0, 8),
        };
        let by_tokens = n_tokens.saturating_mul(per_token);
        by_tokens.max(request.n_tensors.saturating_mul(per_tensor)).max(1024)
    }
}

fn row_bytes(ty: KvType, elements: u64) -> u64 {
    let (block, bytes) = ty.block();
    elements.div_ceil(block).saturating_mul(bytes)
}

pub(crate) fn element(array: &Array, index: usize) -> Option<u64> {
    match array {
        Array::U32(values) => values.get(index).map(|value| u64::from(*value)),
        Array::I32(values) => u64::try_from(*values.get(index)?).ok(),
        Array::U64(values) => values.get(index).copied(),
        Array::I64(values) => u64::try_from(*values.get(index)?).ok(),
        Array::U8(values) => values.get(index).map(|value| u64::from(*value)),
        Array::Bool(values) => values.get(index).map(|value| u64::from(*value)),
        _ => None,
    }
}

/// A size for people, such as `1.5 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n_ctx: u64) -> MemoryRequest {
        MemoryRequest {
            n_ctx,
            n_ubatch: 512,
            n_seq_max: 1,
            n_vocab: 1000,
            n_tensors: 272,
            type_k: KvType::F16,
            type_v: KvType::F16,
            swa_full: false,
            kv_unified: false,
            flash_attention: true,
        }
    }

    fn dense() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.block_count", 30u32);
        metadata.set("llama.embedding_length", 576u32);
        metadata.set("llama.attention.head_count", 9u32);
        metadata.set("llama.attention.head_count_kv", 3u32);
        metadata
    }

    #[test]
    fn a_dense_model_caches_keys_and_values_of_all_layers() {
        let metadata = dense();
        let estimate = Layers::new(&metadata).estimate(&request(2048));
        assert_eq!(estimate.kv_cache, 2048 * 30 * 2 * 2 * 3 * 64);
        assert_eq!(estimate.recurrent, 0);
        let quantized = MemoryRequest { type_k: KvType::Q8_0, ..request(2048) };
        let estimate = Layers::new(&metadata).estimate(&quantized);
        assert_eq!(estimate.kv_cache, 2048 * 30 * (192 / 32 * 34 + 2 * 192));
    }

    #[test]
    fn windowed_layers_stay_small() {
        let mut metadata = dense();
        metadata.set("llama.attention.sliding_window", 512u32);
        let full = MemoryRequest { swa_full: true, ..request(32768) };
        let windowed = Layers::new(&metadata).estimate(&request(32768)).kv_cache;
        let all = Layers::new(&metadata).estimate(&full).kv_cache;
        assert_eq!(windowed, all / 30 * 5 + all / 30 / 32768 * 1024 * 25);
    }

    #[test]
    fn what_is_in_use_grows_with_the_experts_of_a_token() {
        let mut metadata = dense();
        metadata.set("llama.feed_forward_length", 1536u32);
        let of_dense = Layers::new(&metadata).estimate(&request(2048));
        assert_eq!(
            of_dense.activations,
            512 * (4 * (1536 * 7 / 3 + 4 * 576) + 2 * 2048) + 4 * 1000
        );
        assert_eq!(of_dense.compute, of_dense.activations + 511 * 4 * 1000);
        assert_eq!(of_dense.in_use(), of_dense.kv_cache + of_dense.activations);
        metadata.set("llama.expert_used_count", 4u32);
        let wide = Layers::new(&metadata).estimate(&request(2048)).activations;
        let more = 4 * (576 + 1536 * 7 / 3) - 1536 * 7 / 3;
        assert_eq!(wide, of_dense.activations + 512 * 4 * more);
        metadata.set("llama.expert_feed_forward_length", 768u32);
        let of_mixture = Layers::new(&metadata).estimate(&request(2048));
        let more = 4 * (576 + 768 * 7 / 3) - 1536 * 7 / 3;
        assert_eq!(of_mixture.activations, of_dense.activations + 512 * 4 * more);
    }

    #[test]
    fn attention_has_masks_and_without_flash_attention_scores() {
        let mut metadata = dense();
        let estimate = |metadata: &Metadata, flash_attention| {
            let request = MemoryRequest { flash_attention, ..request(2048) };
            Layers::new(metadata).estimate(&request).activations
        };
        let with = estimate(&metadata, true);
        // A mask of twice the width, and nine heads.
        assert_eq!(estimate(&metadata, false) - with, 512 * 2048 * (2 + 9 * 4));
        metadata.set("llama.attention.sliding_window", 512u32);
        assert_eq!(estimate(&metadata, true) - with, 512 * 1024 * 2);
    }

    #[test]
    fn absurd_contexts_do_not_overflow() {
        let metadata = dense();
        let huge = MemoryRequest { n_seq_max: u64::MAX, ..request(u64::MAX / 2) };
        assert_eq!(Layers::new(&metadata).estimate(&huge).total(), u64::MAX);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(human(512), "512 bytes");
        assert_eq!(human(3 << 29), "1.5 GiB");
    }
}
