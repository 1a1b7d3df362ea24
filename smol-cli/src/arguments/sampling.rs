//! How the next token is chosen.

use crate::arguments::read_text;
use crate::failure::Failure;
use anyhow::{Context as _, Result};
use smolmaxxing::grammar::Grammar;
use smolmaxxing::sampler::SamplerBuilder;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Settings of the sampler.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token [default: 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.0..=100.0))]
    temp: Option<f32>,
    /// Choose among the K likeliest tokens; 0 is all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Choose among the likeliest tokens that make up this probability; 1 is all [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.0..=1.0))]
    top_p: Option<f32>,
    /// Leave out tokens below this part of the likeliest one's probability [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.0..=1.0))]
    min_p: Option<f32>,
    /// Make tokens that were there less likely; 1 is off
    /// [default: 1, but 1.15 for models of less than 3 bits unless --temp is 0]
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = |text: &str| number(text, 0.01..=100.0))]
    repeat_penalty: Option<f32>,
    /// How many of the last tokens count for --repeat-penalty [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    repeat_last_n: Option<u32>,
    /// Seed of the random numbers: the same seed gives the same text [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Files of an answer's form.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct GrammarArgs {
    /// Constrain the answer by a GBNF grammar
    #[arg(long, value_name = "FILE", conflicts_with = "json_schema")]
    grammar: Option<PathBuf>,
    /// Constrain the answer to JSON of a schema
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
}

impl SamplingArgs {
    /// Returns the sampler's settings.
    pub fn builder(&self, bits_per_weight: f64) -> SamplerBuilder {
        let mut builder = SamplerBuilder::new();
        builder = builder
            .repeat_penalty(self.penalty(bits_per_weight))
            .repeat_last_n(self.repeat_last_n.unwrap_or(256) as usize);
        if let Some(temp) = self.temp {
            builder = builder.temp(temp);
        }
        if let Some(k) = self.top_k {
            builder = builder.top_k(k as usize);
        }
        if let Some(p) = self.top_p {
            builder = builder.top_p(p);
        }
        if let Some(p) = self.min_p {
            builder = builder.min_p(p);
        }
        match self.seed {
            Some(seed) => builder.seed(seed),
            None => builder,
        }
    }

    /// Models of few bits fall into loops without a penalty. Greedy is to mean greedy, though.
    fn penalty(&self, bits_per_weight: f64) -> f32 {
        let by_default = if bits_per_weight < 3.0 && self.temp != Some(0.0) { 1.15 } else { 1.0 };
        self.repeat_penalty.unwrap_or(by_default)
    }
}

impl GrammarArgs {
    /// Reads and compiles the grammar, if there is one.
    pub fn read(&self) -> Result<Option<Grammar>> {
        if let Some(path) = &self.grammar {
            let text = read_text(path)?;
            let grammar = Grammar::gbnf(&text)
                .with_context(|| Failure::new(format!("{}: invalid grammar", path.display())))?;
            return Ok(Some(grammar));
        }
        let Some(path) = &self.json_schema else { return Ok(None) };
        let text = read_text(path)?;
        let failed = || Failure::new(format!("{}: invalid JSON schema", path.display()));
        let schema = serde_json::from_str(&text).with_context(failed)?;
        Ok(Some(Grammar::json_schema(&schema).with_context(failed)?))
    }
}

/// Parses a finite number within a range.
pub(super) fn number(text: &str, range: RangeInclusive<f32>) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    if range.contains(&number) {
        return Ok(number);
    }
    Err(format!("allowed are {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::{SamplingArgs, number};
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    #[test]
    fn low_bit_models_get_a_penalty_unless_greedy_or_told_otherwise() {
        let penalty = |args: &[&str], bits| {
            let args = [&["smol"], args].concat();
            Command::parse_from(args).sampling.penalty(bits)
        };
        assert_eq!(penalty(&[], 4.5), 1.0);
        assert_eq!(penalty(&[], 2.1), 1.15);
        assert_eq!(penalty(&["--temp", "0"], 2.1), 1.0);
        assert_eq!(penalty(&["--repeat-penalty", "1.3"], 2.1), 1.3);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(number("0.5", 0.0..=1.0), Ok(0.5));
        for text in ["nan", "inf", "-inf", "-0.1", "1.1", "1e99", "", "x"] {
            assert!(number(text, 0.0..=1.0).is_err(), "{text}");
        }
    }
}
