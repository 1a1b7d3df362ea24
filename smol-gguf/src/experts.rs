//! Routed experts: which tensors hold their weights, and where these lie in a file.

use std::fmt;

use crate::error::Result;
use crate::{Array, Gguf, Metadata, TensorInfo, Writer};

/// The metadata key of files whose routed experts lie behind everything else: where they start,
/// in bytes from the start of the file, as `u64`.
///
/// A program that reads experts on its own needs only the bytes before that in memory. Programs
/// that rewrite files without knowing the key leave it behind with a wrong value, so
/// [`Gguf::experts_offset`] takes the place from the tensors; the key says that it was meant.
pub const EXPERTS_OFFSET_KEY: &str = "smolmaxxing.experts_offset";

/// The metadata key of bytes without meaning that put the start of the experts at a multiple of
/// [`EXPERT_ALIGNMENT`]: an array of `u8`.
///
/// A larger `general.alignment` would do so for every tensor, but llama.cpp writes broken files
/// from such ones: its tools copy the key and align as without it.
pub const PADDING_KEY: &str = "smolmaxxing.padding";

/// Experts that lie behind all else start at a multiple of this in the file, in bytes: what direct
/// reads need on every common device.
///
/// Tensors whose sizes are multiples of it follow each other at multiples of it, as those of most
/// models do; others need one more block read at either end of an expert.
pub const EXPERT_ALIGNMENT: u64 = 4096;

/// A matrix of a routed expert, in the order in which a layer's computation needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ExpertPart {
    /// Gate and up projection in one tensor.
    GateUp,
    /// The up projection.
    Up,
    /// The gate projection.
    Gate,
    /// The down projection.
    Down,
}

impl ExpertPart {
    const ALL: [Self; 4] = [Self::GateUp, Self::Up, Self::Gate, Self::Down];

    /// Returns the part's name in tensor names, such as `gate_up`.
    pub fn name(self) -> &'static str {
        match self {
            Self::GateUp => "gate_up",
            Self::Up => "up",
            Self::Gate => "gate",
            Self::Down => "down",
        }
    }
}

/// The name of a tensor with one matrix of all routed experts of a layer.
///
/// Ordered by need: layer by layer, and [by part](ExpertPart) in each.
///
/// # Examples
///
/// ```
/// use smol_gguf::{ExpertName, ExpertPart};
///
/// let name = ExpertName::parse("blk.7.ffn_down_exps.weight").unwrap();
/// assert_eq!((name.block(), name.part()), (7, ExpertPart::Down));
/// assert_eq!(ExpertName::parse("blk.7.ffn_down_shexp.weight"), None); // a shared expert
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertName {
    block: u32,
    part: ExpertPart,
}

impl ExpertName {
    /// Parses `blk.N.ffn_PART_exps.weight`, with PART one of `gate_up`, `up`, `gate` and `down`;
    /// `None` for every other tensor, shared experts and biases included.
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("blk.")?;
        let (block, rest) = rest.split_once('.')?;
        let part = rest.strip_prefix("ffn_")?.strip_suffix("_exps.weight")?;
        let part = ExpertPart::ALL.into_iter().find(|p| p.name() == part)?;
        let digits = block.bytes().all(|b| b.is_ascii_digit());
        let canonical = block == "0" || !block.starts_with('0');
        Some(Self { block: (digits && canonical).then(|| block.parse().ok())??, part })
    }

    /// Returns the layer's number.
    pub fn block(self) -> u32 {
        self.block
    }

    /// Returns which matrix it is.
    pub fn part(self) -> ExpertPart {
        self.part
    }
}

impl fmt::Display for ExpertName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blk.{}.ffn_{}_exps.weight", self.block, self.part.name())
    }
}

/// Whether a tensor holds routed experts.
pub(crate) fn is_expert(tensor: &TensorInfo) -> bool {
    ExpertName::parse(tensor.name()).is_some()
}

impl Gguf {
    /// Iterates over the tensors of routed experts in the file's order.
    pub fn experts(&self) -> impl Iterator<Item = (ExpertName, &TensorInfo)> + '_ {
        self.tensors().iter().filter_map(|t| Some((ExpertName::parse(t.name())?, t)))
    }

    /// Returns where the routed experts start, in bytes from the start of the file, if nothing
    /// else lies behind them: the rest of the model is before that.
    ///
    /// `None` for files without experts, or with others of their tensors in between.
    pub fn experts_offset(&self) -> Option<u64> {
        Some(self.data_offset() + first_of_experts(self.tensors())?)
    }
}

/// Returns the offset in the data section from which on there are only experts.
fn first_of_experts(tensors: &[TensorInfo]) -> Option<u64> {
    let first = tensors.iter().filter(|t| is_expert(t)).map(TensorInfo::offset).min()?;
    let ends_before = |t: &TensorInfo| t.offset().saturating_add(t.n_bytes()) <= first;
    tensors.iter().filter(|t| !is_expert(t)).all(ends_before).then_some(first)
}

/// Sets the keys of a file with its experts last; their values come when all else is known.
pub(crate) fn mark(metadata: &mut Metadata) {
    metadata.set(EXPERTS_OFFSET_KEY, 0u64);
    metadata.set(PADDING_KEY, Array::U8(Vec::new()));
}

/// Makes the marker true and the padding right for a file that is about to be written, or removes
/// both.
pub(crate) fn settle_marker(writer: &mut Writer) -> Result<()> {
    if !writer.metadata().contains(EXPERTS_OFFSET_KEY) {
        return Ok(());
    }
    // Of the right types first: the header's size depends on them.
    mark(writer.metadata_mut());
    let (tensors, data_offset) = writer.places()?;
    let Some(first) = first_of_experts(&tensors) else {
        writer.metadata_mut().remove(EXPERTS_OFFSET_KEY);
        writer.metadata_mut().remove(PADDING_KEY);
        return Ok(());
    };
    // A multiple of the file's alignment, if that is smaller: all places are. So the data section
    // moves by just that.
    let start = data_offset + first;
    let padding = start.next_multiple_of(EXPERT_ALIGNMENT) - start;
    writer.set(PADDING_KEY, Array::U8(vec![0; padding as usize]));
    writer.set(EXPERTS_OFFSET_KEY, start + padding);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorType;

    #[test]
    fn exact_names_only() {
        for (name, block, part) in [
            ("blk.0.ffn_gate_exps.weight", 0, ExpertPart::Gate),
            ("blk.12.ffn_up_exps.weight", 12, ExpertPart::Up),
            ("blk.3.ffn_gate_up_exps.weight", 3, ExpertPart::GateUp),
            ("blk.4294967295.ffn_down_exps.weight", u32::MAX, ExpertPart::Down),
        ] {
            let parsed = ExpertName::parse(name).unwrap();
            assert_eq!((parsed.block(), parsed.part()), (block, part));
            assert_eq!(parsed.to_string(), name);
        }
        for name in [
            "blk.0.ffn_gate_shexp.weight",
            "blk.0.ffn_gate_exps.bias",
            "blk.0.ffn_gate_exps.scale",
            "blk.0.ffn_gate_chexps.weight",
            "blk.0.ffn_gate.weight",
            "blk.0.ffn_norm_exps.weight",
            "blk.0.ffn__exps.weight",
            "blk.00.ffn_gate_exps.weight",
            "blk.+1.ffn_gate_exps.weight",
            "blk..ffn_gate_exps.weight",
            "blk.4294967296.ffn_gate_exps.weight",
            "mtp.blk.0.ffn_gate_exps.weight",
            "blk.0.ffn_gate_exps.weight2",
            "",
        ] {
            assert_eq!(ExpertName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn need_order() {
        let mut names: Vec<_> = [
            "blk.10.ffn_up_exps.weight",
            "blk.2.ffn_down_exps.weight",
            "blk.2.ffn_gate_exps.weight",
            "blk.2.ffn_up_exps.weight",
            "blk.1.ffn_down_exps.weight",
            "blk.1.ffn_gate_up_exps.weight",
        ]
        .map(|name| ExpertName::parse(name).unwrap())
        .into();
        names.sort();
        let parts: Vec<_> = names.iter().map(|n| (n.block(), n.part().name())).collect();
        let expected =
            [(1, "gate_up"), (1, "down"), (2, "up"), (2, "gate"), (2, "down"), (10, "up")];
        assert_eq!(parts, expected);
    }

    #[test]
    fn a_tensor_behind_the_experts_counts() {
        let tensor = |name: &str, offset| {
            TensorInfo::new(name, &[8], TensorType::F32, 0).unwrap().with_offset(offset)
        };
        let (up, down) = ("blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight");
        let place = |tensors: &[TensorInfo]| first_of_experts(tensors);
        assert_eq!(place(&[tensor("a", 0), tensor(up, 32), tensor(down, 64)]), Some(32));
        assert_eq!(place(&[tensor(up, 32), tensor("a", 0)]), Some(32));
        assert_eq!(place(&[tensor("a", 0), tensor(up, 32), tensor("b", 64)]), None);
        assert_eq!(place(&[tensor("a", 0), tensor(up, 31)]), None, "they overlap");
        assert_eq!(place(&[tensor("a", 0)]), None);
        assert_eq!(place(&[tensor(up, 0)]), Some(0));
    }
}
