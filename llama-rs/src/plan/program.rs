//! What a process takes beside weights and context, and how much RAM it may fill.

use smol_engine::machine::{Memory, rss};
use smol_gguf::{Array, Metadata, Value};

use super::context::vocab_len;
use crate::guard::reserve_of;

/// Bytes of a program that has not computed yet: code, and what it has read so far.
const START_BYTES: u64 = 14 << 20;
/// Bytes that computing with any model adds: the rest of the code, stacks, work buffers of threads.
const AT_WORK_BYTES: u64 = 4 << 20;
/// Bytes for each tensor of a model: its names, and the nodes of the graph that it is part of.
const TENSOR_BYTES: u64 = 18 << 10;
/// Bytes of a token in a loaded vocabulary: its text, twice, and lookup tables.
const TOKEN_BYTES: u64 = 170;
/// Bytes of a merge of two tokens: both texts, and their place in a table.
const MERGE_BYTES: u64 = 112;
/// Where nothing says how much RAM to use, this part of what is available stays for the rest of the machine.
const LEFT_ALONE: u64 = 10;

/// Returns the bytes that this process will have with a model, beside weights and context.
pub(crate) fn program_bytes(metadata: &Metadata, n_tensors: u64) -> u64 {
    from_used(rss().unwrap_or(0), metadata, n_tensors)
}

/// `used`: what the process has now, with the metadata.
fn from_used(used: u64, metadata: &Metadata, n_tensors: u64) -> u64 {
    let merges = match metadata.get("tokenizer.ggml.merges") {
        Some(Value::Array(merges)) => merges.len() as u64,
        _ => 0,
    };
    let own = metadata_bytes(metadata);
    let vocabulary = vocab_len(metadata)
        .saturating_mul(TOKEN_BYTES)
        .saturating_add(merges.saturating_mul(MERGE_BYTES));
    used.saturating_sub(own)
        .max(START_BYTES)
        .saturating_add(AT_WORK_BYTES)
        .saturating_add(n_tensors.saturating_mul(TENSOR_BYTES))
        .saturating_add(own)
        .saturating_add(vocabulary)
}

/// Bytes of the metadata that this process keeps of a file.
fn metadata_bytes(metadata: &Metadata) -> u64 {
    let arrays = metadata.iter().map(|(_, value)| match value {
        Value::Array(Array::String(texts)) => texts.total_bytes() as u64 + 8 * texts.len() as u64,
        Value::Array(array) => 4 * array.len() as u64,
        _ => 64,
    });
    arrays.sum()
}

/// Returns the RAM that this process may fill: what was asked for, but no more than there is beside a reserve for the rest of
/// the machine, or of the process's control group; without a wish nine tenths of what is available, if that is less. `None`
/// if nothing was asked for and nothing is known.
///
/// The reserve is what the guard of a model keeps available, by taking memory from weights that are read: at least 24 MiB.
pub fn usable_ram(asked: Option<u64>) -> Option<u64> {
    let memory = Memory::probe();
    within(asked, memory.usable_ram(), reserve_of(&memory), rss().unwrap_or(0))
}

/// `available` is what can be had beside the `used` bytes that the process has.
fn within(asked: Option<u64>, available: Option<u64>, reserve: u64, used: u64) -> Option<u64> {
    let beside = |left_alone: u64| {
        available.map(|available| used.saturating_add(available.saturating_sub(left_alone)))
    };
    match asked {
        None => beside(reserve.max(available.unwrap_or(0) / LEFT_ALONE)),
        Some(asked) => Some(asked.min(beside(reserve).unwrap_or(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_limits_what_is_asked_for() {
        assert_eq!(within(Some(900), None, 24, 10), Some(900));
        assert_eq!(within(Some(900), Some(2000), 24, 10), Some(900));
        assert_eq!(within(Some(900), Some(500), 24, 10), Some(486));
        assert_eq!(within(Some(900), Some(20), 24, 10), Some(10));
        assert_eq!(within(None, Some(500), 24, 10), Some(460));
        assert_eq!(within(None, Some(500), 80, 10), Some(430));
        assert_eq!(within(None, None, 24, 10), None);
        assert_eq!(within(Some(u64::MAX), Some(u64::MAX), 0, 10), Some(u64::MAX));
    }

    #[test]
    fn a_program_counts_its_vocabulary_and_tensors() {
        let mut metadata = Metadata::new();
        let empty = from_used(0, &metadata, 0);
        assert_eq!(empty, START_BYTES + AT_WORK_BYTES);
        assert_eq!(from_used(START_BYTES + 7, &metadata, 0), empty + 7);
        assert_eq!(from_used(0, &metadata, 10), empty + 10 * TENSOR_BYTES);
        metadata.set("tokenizer.ggml.tokens", Array::String(["ab"; 1000].into_iter().collect()));
        metadata.set("tokenizer.ggml.merges", Array::String(["a b"; 500].into_iter().collect()));
        let own = 1000 * 10 + 500 * 11;
        let whole = empty + own + 1000 * TOKEN_BYTES + 500 * MERGE_BYTES;
        assert_eq!(from_used(0, &metadata, 0), whole);
        // The metadata are in what is used already.
        assert_eq!(from_used(START_BYTES + own, &metadata, 0), whole);
        assert!(program_bytes(&metadata, 0) >= whole);
        assert_eq!(from_used(u64::MAX, &metadata, u64::MAX), u64::MAX);
    }
}
