//! Experts that are read from the file when they are needed: what can be chosen about that.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use smol_engine::expert::prefetch::Prefetch;
use smol_engine::expert::routing::CacheBias;
use smol_engine::expert::{PagerConfig, Policy, Scope};
use smol_engine::io::IoChoice;
use smol_gguf::{Metadata, Value};

use crate::byte_size::ByteSize;
use crate::engines;
use crate::error::{Error, Result};

/// Threads that read at once, at most: more do not make flash faster, and each has a buffer.
const MAX_READERS: usize = 64;
/// The largest bias: from there on it decides alone.
const MAX_BIAS: f32 = 16.0;

/// `[pager]`: how the experts of a mixture that is larger than memory are kept in a pool and read from the file.
///
/// Without [`bias`](Self::bias) and [`experts`](Self::experts), which are off by default, the model computes the same as
/// with all experts in memory.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use llama_rs::{ExpertPager, PoolBudget};
///
/// let mut pager = ExpertPager::default();
/// pager.budget = PoolBudget::Bytes(600 << 20);
/// let model = llama_rs::Model::builder("mixture.gguf").expert_pager(pager).load()?;
/// if let Some(statistics) = model.pager_statistics() {
///     println!("{} of {}", statistics.misses, statistics.hits + statistics.misses);
/// }
/// # Ok(())
/// # }
/// ```
/// The same for llama-tools and [`EngineOptions`](crate::EngineOptions):
/// ```
/// let options = llama_rs::EngineOptions::from_toml(
///     r#"
///     [pager]
///     budget = "600MiB"
///     policy = "slru"
///     readers = 4
///     "#,
/// )?;
/// let pager = options.pager.expect("there is such a table");
/// assert_eq!(pager.budget, llama_rs::PoolBudget::Bytes(600 << 20));
/// assert_eq!(pager.policy, llama_rs::Policy::Slru);
///
/// let error = llama_rs::EngineOptions::from_toml("[pager]\nbias = -1").unwrap_err();
/// assert_eq!(error.to_string(), "line 2: pager.bias: is -1 but must be 0 to 16");
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ExpertPager {
    /// `budget`: memory for experts.
    pub budget: PoolBudget,
    /// `policy`: which expert leaves the pool when another one needs its place.
    pub policy: Policy,
    /// `scope`: which layers' experts compete for the same places.
    pub scope: Scope,
    /// `readers`: threads that read, 1 to 64; by default what the budget allows, at most 4.
    #[serde(deserialize_with = "readers")]
    pub readers: Option<usize>,
    /// `io`: whether reads go past the page cache, by default where the file system lets that.
    pub io: IoChoice,
    /// `bias`: how much experts in memory are preferred, 0 to 16; a bias of `b` outweighs about `4 b` logits of the
    /// router. 0, the default, leaves the model's choice alone; 0.03 is little and 0.3 is much.
    #[serde(deserialize_with = "bias")]
    pub bias: f32,
    /// `keep_top`: experts with the best scores that are chosen whatever the bias, by default 1.
    pub keep_top: usize,
    /// `prefetch`: whether experts of the next layers are guessed and read ahead. By default that is tried, and goes on
    /// as long as it pays.
    pub prefetch: Prefetch,
    /// `warm`: a recorded trace whose most used experts are read when the model is loaded.
    #[serde(deserialize_with = "warm")]
    pub warm: Option<PathBuf>,
    /// `verify`: whether each read is done twice and compared. A difference ends the computation with an error.
    pub verify: bool,
    /// `experts`: experts that each token uses, at most as many as the file says; see
    /// [`ModelBuilder::experts_used`](crate::ModelBuilder::experts_used).
    #[serde(deserialize_with = "experts")]
    pub experts: Option<u32>,
}

/// Memory for experts; in TOML `"auto"`, a size such as `"600MiB"`, a number of bytes, or `{ slots = 32 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoolBudget {
    /// What weights, context and program leave of [`ModelBuilder::ram`](crate::ModelBuilder::ram), or of the memory that
    /// is available.
    #[default]
    Auto,
    /// Bytes, with the buffers of the readers.
    Bytes(u64),
    /// Experts of each layer. Where layers share a pool, it has as many places as that makes for all of them.
    Slots(u32),
}

impl Default for ExpertPager {
    /// The memory that there is, the decayed frequency of uses in each layer, and reading ahead while that pays.
    fn default() -> Self {
        Self {
            budget: PoolBudget::default(),
            policy: Policy::default(),
            scope: Scope::default(),
            readers: None,
            io: IoChoice::default(),
            bias: 0.0,
            keep_top: 1,
            prefetch: Prefetch::default(),
            warm: None,
            verify: false,
            experts: None,
        }
    }
}

impl ExpertPager {
    /// The default with so many readers.
    pub(crate) fn read_by(readers: Option<usize>) -> Self {
        Self { readers, ..Self::default() }
    }

    /// Refuses values that TOML would not have let in.
    pub(crate) fn check(&self) -> Result<()> {
        let checks = [
            ("budget", checked_budget(self.budget).map(drop)),
            ("readers", self.readers.map_or(Ok(()), |readers| checked_readers(readers).map(drop))),
            ("bias", checked_bias(self.bias).map(drop)),
            ("warm", self.warm.clone().map_or(Ok(()), |warm| checked_warm(warm).map(drop))),
            ("experts", self.experts.map_or(Ok(()), |experts| checked_experts(experts).map(drop))),
        ];
        for (field, result) in checks {
            result.map_err(|fault| Error::invalid(format!("expert pager: {field} {fault}")))?;
        }
        Ok(())
    }

    /// The engine's options with a budget in bytes.
    pub(crate) fn config(&self, budget: u64) -> PagerConfig {
        PagerConfig {
            budget,
            policy: self.policy,
            scope: self.scope,
            readers: self.readers.unwrap_or(0),
            io: self.io,
            verify: self.verify,
        }
    }

    /// What the router is told.
    pub(crate) fn cache_bias(&self) -> CacheBias {
        CacheBias { bias: self.bias, keep_top: self.keep_top }
    }
}

/// Tells whether a file's layers have routed experts.
pub(crate) fn has_experts(metadata: &Metadata) -> bool {
    metadata.arch_get("expert_count").and_then(Value::as_u64).is_some_and(|count| count > 0)
}

/// The pager to load a model with: the one that was asked for, or that of the
/// [`EngineOptions`](crate::EngineOptions), which are for all models and leave those without experts alone. What is to be
/// recorded goes through a pager too.
pub(crate) fn wanted(
    asked: Option<&ExpertPager>,
    record: bool,
    metadata: &Metadata,
) -> Result<Option<ExpertPager>> {
    asked.map_or(Ok(()), ExpertPager::check)?;
    let pager = asked.cloned();
    if has_experts(metadata) {
        let pager = pager.or_else(engines::expert_pager);
        return Ok(pager.or_else(|| record.then(ExpertPager::default)));
    }
    let what = match (pager, record) {
        (Some(_), _) => "paged; its weights can be streamed",
        (None, true) => "recorded",
        (None, false) => return Ok(None),
    };
    let architecture = metadata.architecture().unwrap_or("unknown");
    Err(Error::invalid(format!("this {architecture} model has no experts that could be {what}")))
}

fn checked_budget(budget: PoolBudget) -> Result<PoolBudget, String> {
    match budget {
        PoolBudget::Bytes(0) | PoolBudget::Slots(0) => {
            Err("is 0, which holds no expert".to_owned())
        }
        _ => Ok(budget),
    }
}

pub(crate) fn checked_readers(readers: usize) -> Result<usize, String> {
    if (1..=MAX_READERS).contains(&readers) {
        return Ok(readers);
    }
    Err(format!("is {readers} but must be 1 to {MAX_READERS}"))
}

fn checked_bias(bias: f32) -> Result<f32, String> {
    if (0.0..=MAX_BIAS).contains(&bias) {
        return Ok(bias);
    }
    Err(format!("is {bias} but must be 0 to {MAX_BIAS}"))
}

fn checked_warm(path: PathBuf) -> Result<PathBuf, String> {
    if path.as_os_str().is_empty() {
        return Err("is empty; it is the path of a trace".to_owned());
    }
    Ok(path)
}

fn checked_experts(experts: u32) -> Result<u32, String> {
    if experts == 0 {
        return Err("is 0, but each token uses at least 1".to_owned());
    }
    Ok(experts)
}

pub(crate) fn readers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<usize>, D::Error> {
    let readers = usize::deserialize(deserializer)?;
    checked_readers(readers).map(Some).map_err(D::Error::custom)
}

fn bias<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    checked_bias(f32::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn warm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    checked_warm(PathBuf::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

fn experts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    checked_experts(u32::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

impl<'de> Deserialize<'de> for PoolBudget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let budget = deserializer.deserialize_any(BudgetVisitor)?;
        checked_budget(budget).map_err(D::Error::custom)
    }
}

/// `{ slots = 32 }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Slots {
    slots: u32,
}

struct BudgetVisitor;

impl<'de> Visitor<'de> for BudgetVisitor {
    type Value = PoolBudget;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "`\"auto\"`, a size such as `\"600MiB\"`, a number of bytes, or `{ slots = N }`",
        )
    }

    fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<PoolBudget, E> {
        Ok(PoolBudget::Bytes(bytes))
    }

    fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<PoolBudget, E> {
        u64::try_from(bytes).map(PoolBudget::Bytes).map_err(|_| E::custom("is negative"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PoolBudget, E> {
        match text {
            "auto" => Ok(PoolBudget::Auto),
            size => size.parse().map(|ByteSize(bytes)| PoolBudget::Bytes(bytes)).map_err(E::custom),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PoolBudget, A::Error> {
        let Slots { slots } = Slots::deserialize(MapAccessDeserializer::new(map))?;
        Ok(PoolBudget::Slots(slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::EngineOptions;

    fn read(table: &str) -> ExpertPager {
        EngineOptions::from_toml(&format!("[pager]\n{table}")).unwrap().pager.unwrap()
    }

    fn mixture() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.expert_count", 8u32);
        metadata
    }

    #[test]
    fn no_table_is_no_pager_and_an_empty_one_the_default() {
        assert_eq!(EngineOptions::from_toml("").unwrap().pager, None);
        assert_eq!(read(""), ExpertPager::default());
        assert!(ExpertPager::default().check().is_ok());
    }

    #[test]
    fn every_key_is_read() {
        let pager = read(
            "budget = \"1.5GiB\"\npolicy = \"lru\"\nscope = \"global\"\nreaders = 6\nio = \"buffered\"\nbias = 0.25\n\
             keep_top = 2\nprefetch = \"off\"\nwarm = \"a/b.trace\"\nverify = true\nexperts = 3",
        );
        let expected = ExpertPager {
            budget: PoolBudget::Bytes(3 << 29),
            policy: Policy::Lru,
            scope: Scope::Global,
            readers: Some(6),
            io: IoChoice::Buffered,
            bias: 0.25,
            keep_top: 2,
            prefetch: Prefetch::Off,
            warm: Some("a/b.trace".into()),
            verify: true,
            experts: Some(3),
        };
        assert_eq!(pager, expected);
        assert!(pager.check().is_ok());
        let config = pager.config(77);
        assert_eq!((config.budget, config.readers, config.verify), (77, 6, true));
        assert_eq!((config.policy, config.scope), (Policy::Lru, Scope::Global));
        assert_eq!(config.io, IoChoice::Buffered);
        assert_eq!(pager.cache_bias(), CacheBias { bias: 0.25, keep_top: 2 });
        assert_eq!(ExpertPager::default().config(1).readers, 0);
    }

    #[test]
    fn budgets_have_four_forms() {
        for (text, budget) in [
            ("\"auto\"", PoolBudget::Auto),
            ("\"600MiB\"", PoolBudget::Bytes(600 << 20)),
            ("1_000_000", PoolBudget::Bytes(1_000_000)),
            ("{ slots = 32 }", PoolBudget::Slots(32)),
        ] {
            assert_eq!(read(&format!("budget = {text}")).budget, budget);
        }
    }

    #[test]
    fn refusals_name_line_and_key() {
        for (line, words) in [
            ("bugdet = 1", "pager.bugdet: unknown field `bugdet`, expected one of `budget`"),
            ("budget = \"600\"", "pager.budget: `600` has no unit"),
            ("budget = \"lots\"", "pager.budget: `lots` is no size"),
            ("budget = -1", "pager.budget: is negative"),
            ("budget = 0", "pager.budget: is 0, which holds no expert"),
            ("budget = \"0B\"", "pager.budget: is 0"),
            ("budget = { slots = 0 }", "pager.budget: is 0"),
            ("budget = { slot = 3 }", "pager.budget.slot: unknown field"),
            ("budget = {}", "pager.budget: missing field `slots`"),
            (
                "budget = 1.5",
                "pager.budget: invalid type: floating point `1.5`, expected `\"auto\"`",
            ),
            ("policy = \"fifo\"", "pager.policy: unknown variant `fifo`, expected one of `lru`"),
            ("scope = \"model\"", "pager.scope: unknown variant `model`, expected `layer` or"),
            ("readers = 0", "pager.readers: is 0 but must be 1 to 64"),
            ("readers = 65", "pager.readers: is 65 but must be 1 to 64"),
            ("readers = -2", "pager.readers: invalid value: integer `-2`"),
            ("io = \"mmap\"", "pager.io: unknown variant `mmap`"),
            ("bias = nan", "pager.bias: is NaN but must be 0 to 16"),
            ("bias = inf", "pager.bias: is inf but must be 0 to 16"),
            ("bias = -0.1", "pager.bias: is -0.1 but must be 0 to 16"),
            ("bias = \"much\"", "pager.bias: invalid type: string \"much\""),
            ("keep_top = -1", "pager.keep_top: invalid value: integer `-1`"),
            ("prefetch = \"always\"", "pager.prefetch: unknown variant `always`"),
            ("warm = \"\"", "pager.warm: is empty; it is the path of a trace"),
            ("warm = true", "pager.warm: invalid type: boolean `true`"),
            ("verify = 1", "pager.verify: invalid type: integer `1`"),
            ("experts = 0", "pager.experts: is 0, but each token uses at least 1"),
        ] {
            let text = format!("[pager]\n# ...\n{line}");
            let error = EngineOptions::from_toml(&text).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Config);
            let message = error.to_string();
            assert!(message.starts_with(&format!("line 3: {words}")), "{line}: {message}");
        }
    }

    #[test]
    fn values_of_programs_are_checked_too() {
        for (change, words) in [
            ((|p| p.budget = PoolBudget::Bytes(0)) as fn(&mut ExpertPager), "budget is 0"),
            (|p| p.budget = PoolBudget::Slots(0), "budget is 0"),
            (|p| p.readers = Some(0), "readers is 0 but must be 1 to 64"),
            (|p| p.bias = f32::NAN, "bias is NaN"),
            (|p| p.bias = 16.5, "bias is 16.5 but must be 0 to 16"),
            (|p| p.warm = Some(PathBuf::new()), "warm is empty"),
            (|p| p.experts = Some(0), "experts is 0"),
        ] {
            let mut pager = ExpertPager::default();
            change(&mut pager);
            let error = wanted(Some(&pager), false, &mixture()).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
            assert!(error.to_string().starts_with(&format!("expert pager: {words}")), "{error}");
        }
    }

    #[test]
    fn models_without_experts_are_not_paged() {
        let pager = ExpertPager::default();
        assert_eq!(wanted(Some(&pager), false, &mixture()).unwrap(), Some(pager.clone()));
        assert_eq!(wanted(None, true, &mixture()).unwrap(), Some(pager.clone()));
        assert_eq!(wanted(None, false, &mixture()).unwrap(), None);
        let mut dense = Metadata::new();
        dense.set("general.architecture", "qwen3");
        let paged = "paged; its weights can be streamed";
        for (asked, record, what) in [(Some(&pager), true, paged), (None, true, "recorded")] {
            let error = wanted(asked, record, &dense).unwrap_err();
            let message = format!("this qwen3 model has no experts that could be {what}");
            assert_eq!(error.to_string(), message);
        }
        assert_eq!(wanted(None, false, &dense).unwrap(), None);
    }
}
