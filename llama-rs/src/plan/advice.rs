//! What would make a model faster that reads weights from the file.

use smol_gguf::{Metadata, Value};

use super::weights::Weights;
use super::{MemoryPlan, PlanMode, PlannedContext};
use crate::kv::KvType;

/// The least part of what is read that a change has to save to be worth a word.
const WORTH: f64 = 0.03;
/// Vocabularies from this size on have tokens that most uses can do without.
const LARGE_VOCABULARY: u64 = 65_536;
/// A context that is small but holds a conversation.
const SMALL_CONTEXT: u32 = 1024;
/// A batch whose activations take little memory.
const SMALL_BATCH: u32 = 128;

/// Returns advice for a plan; `read` tells the MB that a token would read with another context.
pub(crate) fn advice(
    plan: &MemoryPlan,
    planned: PlannedContext,
    metadata: &Metadata,
    weights: &Weights,
    read: &dyn Fn(PlannedContext) -> Option<f64>,
) -> Vec<String> {
    if matches!(plan.mode, PlanMode::Resident) {
        return Vec::new();
    }
    let now = plan.flash_mb_per_token;
    let worth = |read: f64| read <= now * (1.0 - WORTH);
    let mut found: Vec<(f64, String)> = Vec::new();
    if plan.n_ctx > SMALL_CONTEXT
        && let Some(less) = read(PlannedContext { n_ctx: Some(SMALL_CONTEXT), ..planned })
        && worth(less)
    {
        let text = format!(
            "a context of {SMALL_CONTEXT} tokens instead of {} leaves memory to weights: {less:.1} MB a token from \
             flash instead of {now:.1}",
            plan.n_ctx
        );
        found.push((less, text));
    }
    let quantized = PlannedContext { type_k: KvType::Q8_0, type_v: KvType::Q8_0, ..planned };
    if planned.type_k == KvType::F16
        && planned.type_v == KvType::F16
        && let Some(less) = read(quantized)
        && worth(less)
    {
        let text = format!(
            "a cache of type q8_0 instead of f16 leaves memory to weights: {less:.1} MB a token from flash instead of \
             {now:.1}"
        );
        found.push((less, text));
    }
    if plan.n_ubatch > SMALL_BATCH
        && let Some(less) = read(PlannedContext { n_batch: Some(SMALL_BATCH), ..planned })
        && worth(less)
    {
        let text = format!(
            "batches of {SMALL_BATCH} tokens (-b {SMALL_BATCH}) instead of {} leave memory to weights: {less:.1} MB a token \
             from flash instead of {now:.1}; long prompts take more time",
            plan.n_ubatch
        );
        found.push((less, text));
    }
    let (tokens, head) = (weights.head_rows, weights.head as f64 / 1e6);
    // Where embeddings that were the head too stay in memory, a head of its own comes on top.
    let saves = weights.rows.is_some() || matches!(plan.mode, PlanMode::Streamed { .. });
    if tokens > LARGE_VOCABULARY && head > WORTH * plan.ram_mb_per_token && saves {
        let saved = head * (1.0 - LARGE_VOCABULARY as f64 / tokens as f64);
        let text = format!(
            "a head with {LARGE_VOCABULARY} of the {tokens} tokens (`smol recut --head-from`) saves {saved:.1} MB of \
             memory and of what a token reads"
        );
        found.push(((now - saved).max(0.0), text));
    }
    let used = metadata.arch_get("expert_used_count").and_then(Value::as_u64).unwrap_or(0);
    if matches!(plan.mode, PlanMode::Paged { .. }) && used > 1 {
        let less = now * (used - 1) as f64 / used as f64;
        let text = format!(
            "{} experts a token instead of {used} read {less:.1} MB instead of {now:.1}, and answers get worse",
            used - 1
        );
        found.push((less, text));
    }
    found.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    found.into_iter().map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::super::MemoryParts;
    use super::super::context::tests::metadata;
    use super::super::weights::Rows;
    use super::*;

    fn plan(mode: PlanMode) -> MemoryPlan {
        MemoryPlan {
            ram: Some(1),
            mode,
            parts: MemoryParts::default(),
            n_ctx: 4096,
            n_ubatch: 512,
            flash_mb_per_token: 100.0,
            ram_mb_per_token: 500.0,
            advice: Vec::new(),
        }
    }

    fn head(bytes: u64, rows: u64) -> Weights {
        let table = Rows { name: "table".to_owned(), bytes: 1, row_bytes: 1 };
        Weights { head: bytes, head_rows: rows, rows: Some(table), ..Weights::default() }
    }

    fn paged() -> MemoryPlan {
        plan(PlanMode::Paged { pool: 1, slots: 1, experts: 2 })
    }

    #[test]
    fn the_most_useful_comes_first() {
        let mut metadata = metadata();
        metadata.set("llama.expert_used_count", 4u32);
        let read = |planned: PlannedContext| {
            Some(match planned {
                PlannedContext { n_ctx: Some(_), .. } => 80.0,
                PlannedContext { n_batch: Some(_), .. } => 95.0,
                _ => 90.0,
            })
        };
        let head = head(100_000_000, 131_072);
        let advice = advice(&paged(), PlannedContext::default(), &metadata, &head, &read);
        let starts = [
            "a head with",
            "3 experts",
            "a context of 1024",
            "a cache of type q8_0",
            "batches of 128 tokens (-b 128) instead of 512",
        ];
        assert_eq!(advice.len(), starts.len(), "{advice:?}");
        for (line, start) in advice.iter().zip(starts) {
            assert!(line.starts_with(start), "{advice:?}");
        }
    }

    #[test]
    fn what_brings_nothing_is_not_said() {
        let none = |_: PlannedContext| Some(99.0);
        let planned = PlannedContext::default();
        let small_head = head(1 << 30, 65_536);
        assert!(advice(&paged(), planned, &metadata(), &small_head, &none).is_empty());
        // One that is the table too would stay there as a table.
        let tied = Weights { rows: None, ..head(1 << 30, 1 << 20) };
        assert!(advice(&paged(), planned, &metadata(), &tied, &none).is_empty());
        let streamed = plan(PlanMode::Streamed { tensors: Vec::new(), table: false, zone: 1 });
        assert_eq!(advice(&streamed, planned, &metadata(), &tied, &none).len(), 1);
        let resident = plan(PlanMode::Resident);
        let much = |_: PlannedContext| Some(1.0);
        let large = head(1 << 30, 1 << 20);
        assert!(advice(&resident, planned, &metadata(), &large, &much).is_empty());
        let small = PlannedContext { type_k: KvType::Q8_0, ..planned };
        let short = MemoryPlan { n_ctx: 512, n_ubatch: 128, ..paged() };
        assert!(advice(&short, small, &metadata(), &head(0, 1), &much).is_empty());
    }
}
