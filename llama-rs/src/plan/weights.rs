//! The weights of a file, in the form in which kernels will read them.

use smol_gguf::{ExpertName, Metadata, Shards, TensorInfo, TensorType, Value};

use crate::ffi::pager::layout_of;

/// What the head is called, and the table of embeddings, which is the head of many small models too.
const HEAD: &str = "output.weight";
const TABLE: &str = "token_embd.weight";

/// Matrices that are used once in a graph, as the left side of a product, in the order in which a layer uses them.
const MATRICES: [&str; 17] = [
    "attn_q_a",
    "attn_q_b",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "ssm_in",
    "ssm_out",
    "shortconv.in_proj",
    "shortconv.out_proj",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_up_shexp",
];

/// The weights of a model. Bytes are those in memory, unless files are named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Weights {
    /// All but the routed experts.
    pub(crate) dense: u64,
    /// Of those, the ones that each token needs: all but a table of embeddings.
    pub(crate) dense_used: u64,
    /// All routed experts.
    pub(crate) experts: u64,
    /// Those that a token uses, in memory and in the file.
    pub(crate) experts_used: (u64, u64),
    /// What could be streamed, in the order of its use; the head last.
    pub(crate) matrices: Vec<Matrix>,
    /// Whether those that are packed are read packed, from a cache.
    pub(crate) packed: bool,
    /// The head, and its rows.
    pub(crate) head: u64,
    pub(crate) head_rows: u64,
    /// A table of embeddings that is nothing else.
    pub(crate) rows: Option<Rows>,
}

/// A matrix that could be streamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) name: String,
    /// What it takes if it stays.
    pub(crate) bytes: u64,
    /// What it takes while it is used, if it does not stay.
    pub(crate) place: u64,
    pub(crate) file_bytes: u64,
    pub(crate) head: bool,
}

/// A table of which single rows are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) row_bytes: u64,
}

impl Weights {
    /// Finds the weights of a model, laid out as this thread has [chosen](crate::ffi::layouts::choose).
    pub(crate) fn find(shards: &Shards, metadata: &Metadata) -> Self {
        let mut found = Self::default();
        let untied = shards.tensor(HEAD).is_some();
        // The last blocks of some models predict further tokens; their experts are not routed to by any graph.
        let number = |key| metadata.arch_get(key).and_then(Value::as_u64).unwrap_or(0);
        let blocks = number("block_count").saturating_sub(number("nextn_predict_layers"));
        let mut order = Vec::new();
        for (_, info) in shards.tensors() {
            if let Some(name) = ExpertName::parse(info.name())
                && info.dims()[2] > 1
                && u64::from(name.block()) < blocks
            {
                found.add_experts(metadata, name.block(), info);
                continue;
            }
            if info.name() == TABLE {
                let head = found.add_table(info, untied);
                order.extend(head.map(|head| ((u32::MAX, 0), head)));
                continue;
            }
            let place = place(info);
            let bytes = if place.is_some() { packed_bytes(info) } else { info.n_bytes() };
            found.dense += bytes;
            found.dense_used += bytes;
            if let Some(place) = place {
                let (name, file_bytes) = (info.name().to_owned(), info.n_bytes());
                let head = name == HEAD;
                if head {
                    (found.head, found.head_rows) = (bytes, info.n_rows());
                }
                order.push((place, Matrix { name, bytes, place: bytes, file_bytes, head }));
            }
        }
        order.sort_by_key(|(place, _)| *place);
        found.matrices = order.into_iter().map(|(_, matrix)| matrix).collect();
        found
    }

    /// Returns the head, if the table is that too.
    fn add_table(&mut self, info: &TensorInfo, untied: bool) -> Option<Matrix> {
        let (name, plain) = (info.name().to_owned(), info.n_bytes());
        if untied {
            self.dense += plain;
            self.rows = Some(Rows { name, bytes: plain, row_bytes: info.row_bytes() });
            return None;
        }
        // A layout of this library gives out rows as well; llama.cpp's needs a plain copy beside it.
        let head = packed_bytes(info);
        let packed = layout_of(info.ty().id(), info.dims()[0]).is_some();
        let copy = if !packed && repacked(info) { plain } else { 0 };
        self.dense += head + copy;
        self.dense_used += head;
        (self.head, self.head_rows) = (head, info.n_rows());
        let bytes = head + copy;
        Some(Matrix { name, bytes, place: head, file_bytes: plain, head: true })
    }

    fn add_experts(&mut self, metadata: &Metadata, block: u32, info: &TensorInfo) {
        let experts = info.dims()[2];
        let one = matrix_bytes(info);
        self.experts += one * experts;
        let used = crate::experts::number(metadata, "expert_used_count", block).unwrap_or(experts);
        let used = used.min(experts);
        self.experts_used.0 += one * used;
        self.experts_used.1 += info.n_bytes() / experts * used;
    }

    /// Bytes that are read for each use of a matrix that does not stay.
    pub(crate) fn read_bytes(&self, matrix: &Matrix) -> u64 {
        if self.packed { matrix.place } else { matrix.file_bytes }
    }

    /// Bytes that a token reads from memory.
    pub(crate) fn used(&self) -> u64 {
        self.dense_used.saturating_add(self.experts_used.0)
    }
}

/// Bytes of one of a tensor's matrices as it will be in memory.
fn matrix_bytes(info: &TensorInfo) -> u64 {
    let [columns, rows, matrices, _] = info.dims();
    match (layout_of(info.ty().id(), columns), usize::try_from(columns), usize::try_from(rows)) {
        (Some(layout), Ok(columns), Ok(rows)) => layout.packed_bytes(columns, rows) as u64,
        _ => info.n_bytes() / matrices.max(1),
    }
}

fn packed_bytes(info: &TensorInfo) -> u64 {
    let [_, _, matrices, _] = info.dims();
    if matrices > 1 { info.n_bytes() } else { matrix_bytes(info) }
}

/// Where a matrix that could be streamed comes in the order of use; `None` for all other tensors.
fn place(info: &TensorInfo) -> Option<(u32, usize)> {
    let [columns, rows, matrices, _] = info.dims();
    if columns < 2 || rows < 2 || matrices > 1 {
        return None;
    }
    if info.name() == HEAD {
        return Some((u32::MAX, 0));
    }
    let (block, name) = info.name().strip_prefix("blk.")?.split_once('.')?;
    let name = name.strip_suffix(".weight")?;
    let part = MATRICES.iter().position(|matrix| *matrix == name)?;
    Some((block.parse().ok()?, part))
}

/// Whether llama.cpp packs a matrix for products on this CPU (repack.cpp:4975, ggml_repack_get_optimal_repack_type).
fn repacked(info: &TensorInfo) -> bool {
    let features = ggml_sys::cpu::check().map_or(&[][..], |level| level.features);
    let has = |feature| features.contains(&feature);
    let [_, rows, _, _] = info.dims();
    let (avx2, dotprod) = (has("avx2"), has("dotprod"));
    match info.ty() {
        TensorType::Q4_0 | TensorType::IQ4_NL | TensorType::MXFP4 => {
            (avx2 && rows.is_multiple_of(8)) || (dotprod && rows.is_multiple_of(4))
        }
        TensorType::Q4_K => (avx2 || dotprod) && rows.is_multiple_of(8),
        TensorType::Q2_K => has("avx512f") && rows.is_multiple_of(8),
        TensorType::Q5_K | TensorType::Q6_K => dotprod && rows.is_multiple_of(8),
        TensorType::Q8_0 => dotprod && rows.is_multiple_of(4),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::tiny::{self, Arch, TinyOptions};

    #[test]
    fn nothing_is_lost_and_order_is_that_of_the_graph() {
        let folder = tempfile::tempdir().unwrap();
        crate::ffi::layouts::choose(&crate::LayoutOptions { enabled: false, ..Default::default() })
            .unwrap();
        for arch in Arch::ALL {
            let path = folder.path().join("model.gguf");
            tiny::write(&path, arch, &TinyOptions::default()).unwrap();
            let shards = Shards::open(&path).unwrap();
            let weights = Weights::find(&shards, shards.metadata());
            let all: u64 = shards.tensors().map(|(_, info)| info.n_bytes()).sum();
            assert_eq!(weights.dense + weights.experts, all, "{arch:?}");
            let heads: Vec<_> = weights.matrices.iter().filter(|matrix| matrix.head).collect();
            assert_eq!(heads.len(), 1, "{arch:?}");
            assert_eq!(heads[0].name == TABLE, weights.rows.is_none(), "{arch:?}");
            assert_eq!(weights.experts > 0, arch.has_experts(), "{arch:?}");
            assert!(weights.experts_used.0 <= weights.experts, "{arch:?}");
            let streamable: u64 = weights.matrices.iter().map(|matrix| matrix.bytes).sum();
            assert!(streamable > weights.dense_used / 2, "{arch:?}: {streamable}");
            let place = |matrix: &Matrix| {
                place(shards.tensor(&matrix.name).unwrap().1).unwrap_or((u32::MAX, 0))
            };
            assert!(weights.matrices.is_sorted_by_key(place), "{arch:?}");
        }
    }
}
