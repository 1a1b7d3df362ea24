//! Results of a simulation, as tables, as JSON and as a plot.

use crate::table::table;
use crate::units::bytes;
use serde::Serialize;
use smol_engine::expert::Scope;
use smol_engine::expert::plot::{Line, Plot, Point};
use smol_engine::expert::simulate::{Outcome, Speed, Strategy};
use smol_engine::expert::trace::Trace;
use std::fmt::Write as _;
use std::path::Path;

/// Everything that was simulated.
#[derive(Serialize)]
pub struct Report {
    pub file: String,
    pub model: String,
    /// What is wrong with the file behind the tokens that were used.
    pub damage: Option<String>,
    /// In graphs of one token, and in others.
    pub generated_tokens: u64,
    pub prompt_tokens: u64,
    /// With experts.
    pub layers: usize,
    /// Of a layer: the most of any.
    pub experts: u32,
    pub used: u32,
    pub scope: Scope,
    /// `null`: not known.
    pub flash_mb_s: Option<f64>,
    pub compute_ms: Option<f64>,
    #[serde(rename = "results")]
    pub rows: Vec<Row>,
}

/// One pool with one policy. Everything but `prompts` is about generated tokens.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Experts of each layer.
    pub pool: u32,
    pub pool_mb: f64,
    pub policy: &'static str,
    pub hits: u64,
    pub misses: u64,
    pub miss_rate: f64,
    pub mb_per_token: f64,
    /// If reads and computing take turns; `null` if one of the speeds is not known.
    pub tokens_s: Option<f64>,
    /// If they overlap all the time; `null` if the flash's speed is not known.
    pub most_tokens_s: Option<f64>,
    pub prompts: Prompts,
}

/// What batches of several tokens read.
#[derive(Debug, Clone, Serialize)]
pub struct Prompts {
    pub misses: u64,
    /// Those of them for which the pool had no room.
    pub streamed: u64,
    pub mb: f64,
}

impl Report {
    pub fn new(
        file: &Path,
        trace: &Trace,
        scope: Scope,
        flash: Option<f64>,
        compute: Option<f64>,
    ) -> Self {
        let layers = &trace.header.layers;
        let (mut generated_tokens, mut prompt_tokens) = (0, 0);
        for tokens in trace.graphs.iter().map(|graph| graph.tokens() as u64) {
            let sum = if tokens > 1 { &mut prompt_tokens } else { &mut generated_tokens };
            *sum += tokens;
        }
        Self {
            file: file.display().to_string(),
            model: trace.header.model.clone(),
            damage: trace.damage.as_ref().map(ToString::to_string),
            generated_tokens,
            prompt_tokens,
            layers: layers.len(),
            experts: layers.iter().map(|layer| layer.experts).max().unwrap_or(0),
            used: layers.iter().map(|layer| layer.used).max().unwrap_or(0),
            scope,
            flash_mb_s: flash.map(|speed| speed / 1e6),
            compute_ms: compute.map(|time| time * 1e3),
            rows: Vec::new(),
        }
    }

    pub fn row(&self, pool: u32, strategy: Strategy, memory: u64, outcome: &Outcome) -> Row {
        let Outcome { generation, prompts } = outcome;
        let speed = |compute: f64| {
            let flash = self.flash_mb_s.filter(|_| generation.tokens > 0)?;
            Some(Speed { flash: flash * 1e6, compute: compute / 1e3 })
        };
        let tokens_s =
            self.compute_ms.and_then(speed).map(|speed| speed.tokens_per_second(generation));
        let most = speed(self.compute_ms.unwrap_or(0.0));
        let most_tokens_s = most.map(|speed| speed.most_tokens_per_second(generation));
        Row {
            pool,
            pool_mb: memory as f64 / 1e6,
            policy: strategy.name(),
            hits: generation.choices - generation.misses,
            misses: generation.misses,
            miss_rate: generation.miss_rate(),
            mb_per_token: generation.bytes_per_token() / 1e6,
            // Without a byte to read and a moment to compute there is no speed.
            tokens_s: tokens_s.filter(|speed| speed.is_finite()),
            most_tokens_s: most_tokens_s.filter(|speed| speed.is_finite()),
            prompts: Prompts {
                misses: prompts.misses,
                streamed: prompts.streamed,
                mb: prompts.bytes as f64 / 1e6,
            },
        }
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let Self { layers, experts, used, scope, .. } = self;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}: {} tokens generated, {} of prompts",
            printable(&self.model),
            self.generated_tokens,
            self.prompt_tokens
        );
        let _ = write!(text, "{layers} layers of {experts} experts, {used} used; scope {scope}");
        if let Some(flash) = self.flash_mb_s {
            let _ = write!(text, "; flash {flash:.0} MB/s");
        }
        if let Some(compute) = self.compute_ms {
            let _ = write!(text, "; computing {compute:.1} ms a token");
        }
        text.push_str("\n\n");
        if self.generated_tokens > 0 {
            text.push_str(&self.generation_table());
        }
        if self.prompt_tokens > 0 {
            let cells = |row: &Row| {
                let Prompts { misses, streamed, mb } = row.prompts;
                let read = bytes((mb * 1e6) as u64);
                vec![
                    row.policy.to_owned(),
                    row.pool.to_string(),
                    bytes((row.pool_mb * 1e6) as u64),
                    misses.to_string(),
                    streamed.to_string(),
                    read,
                ]
            };
            let titles = ["prompts", "pool", "memory", "misses", "streamed", "read"];
            text.push_str(if self.generated_tokens > 0 { "\n" } else { "" });
            text.push_str(&table(&titles, 1, self.rows.iter().map(cells).collect()));
        }
        text
    }

    fn generation_table(&self) -> String {
        let mut titles = vec!["policy", "pool", "memory", "misses", "MB/token"];
        let has = |speed: fn(&Row) -> Option<f64>| self.rows.iter().any(|row| speed(row).is_some());
        let (speed, most) = (has(|row| row.tokens_s), has(|row| row.most_tokens_s));
        titles.extend(speed.then_some("tokens/s"));
        titles.extend(most.then_some("at most"));
        let shown =
            |speed: Option<f64>| speed.map_or_else(String::new, |speed| format!("{speed:.2}"));
        let cells = |row: &Row| {
            let mut cells = vec![
                row.policy.to_owned(),
                row.pool.to_string(),
                bytes((row.pool_mb * 1e6) as u64),
                format!("{:.1} %", row.miss_rate * 100.0),
                format!("{:.2}", row.mb_per_token),
            ];
            cells.extend(speed.then(|| shown(row.tokens_s)));
            cells.extend(most.then(|| shown(row.most_tokens_s)));
            cells
        };
        table(&titles, 1, self.rows.iter().map(cells).collect())
    }

    /// Draws a line for each strategy.
    pub fn plot(&self, strategies: &[Strategy]) -> Plot {
        let line = |strategy: &Strategy| {
            let rows = self.rows.iter().filter(|row| row.policy == strategy.name());
            let point = |row: &Row| Point {
                slots: row.pool,
                miss_rate: row.miss_rate,
                tokens_per_second: row.tokens_s.or(row.most_tokens_s),
            };
            Line {
                name: strategy.name().to_owned(),
                points: rows.map(point).collect(),
                bound: *strategy == Strategy::Optimum,
            }
        };
        let mut title = self.model.clone();
        if let Some(flash) = self.flash_mb_s {
            let _ = write!(title, ", flash {flash:.0} MB/s");
        }
        if let Some(compute) = self.compute_ms {
            let _ = write!(title, ", computing {compute:.1} ms a token");
        }
        Plot { title, experts: self.experts, lines: strategies.iter().map(line).collect() }
    }
}

/// A name from a file, without what could command the terminal.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol_engine::expert::Policy;
    use smol_engine::expert::simulate::Tally;

    fn report(flash_mb_s: Option<f64>, compute_ms: Option<f64>) -> Report {
        Report {
            file: "x.trace".into(),
            model: "m\u{1b}[2J".into(),
            damage: None,
            generated_tokens: 10,
            prompt_tokens: 20,
            layers: 2,
            experts: 8,
            used: 2,
            scope: Scope::Layer,
            flash_mb_s,
            compute_ms,
            rows: Vec::new(),
        }
    }

    fn outcome() -> Outcome {
        let generation =
            Tally { tokens: 10, choices: 40, misses: 10, streamed: 0, bytes: 100_000_000 };
        let prompts = Tally { tokens: 20, choices: 80, misses: 9, streamed: 3, bytes: 90_000_000 };
        Outcome { generation, prompts }
    }

    #[test]
    fn speeds_need_what_they_follow_from() {
        let strategy = Strategy::Policy(Policy::Lru);
        let speeds = |flash, compute| {
            let row = report(flash, compute).row(4, strategy, 1_000_000, &outcome());
            assert_eq!((row.hits, row.misses, row.miss_rate), (30, 10, 0.25));
            assert_eq!((row.mb_per_token, row.pool_mb, row.prompts.mb), (10.0, 1.0, 90.0));
            (row.tokens_s, row.most_tokens_s)
        };
        // 10 MB a token: 0.1 s.
        assert_eq!(speeds(None, Some(100.0)), (None, None));
        assert_eq!(speeds(Some(100.0), None), (None, Some(10.0)));
        assert_eq!(speeds(Some(100.0), Some(100.0)), (Some(5.0), Some(10.0)));
        let nothing = Outcome::default();
        let row = report(Some(100.0), Some(0.0)).row(4, strategy, 0, &nothing);
        assert_eq!((row.tokens_s, row.most_tokens_s), (None, None));
    }

    #[test]
    fn tables_have_the_columns_that_are_known() {
        let text = |flash, compute| {
            let mut report = report(flash, compute);
            report.rows = vec![report.row(4, Strategy::Optimum, 1_000_000, &outcome())];
            report.text()
        };
        let all = text(Some(100.0), Some(100.0));
        for part in ["25.0 %", "10.00", "5.00", "at most", "belady", "90.0 MB", "1.00 MB"] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(!all.contains('\u{1b}'));
        let none = text(None, None);
        assert!(!none.contains("tokens/s") && !none.contains("at most"), "{none}");
    }

    #[test]
    fn the_optimum_is_drawn_as_a_bound() {
        let mut report = report(Some(100.0), Some(100.0));
        let strategies = [Strategy::Policy(Policy::Lru), Strategy::Optimum];
        report.rows = [4, 8]
            .iter()
            .flat_map(|pool| strategies.map(|strategy| report.row(*pool, strategy, 1, &outcome())))
            .collect();
        let plot = report.plot(&strategies);
        assert_eq!(plot.lines.len(), 2);
        assert!(!plot.lines[0].bound && plot.lines[1].bound);
        assert_eq!(plot.lines[0].points.len(), 2);
        assert_eq!(plot.lines[1].points[1].tokens_per_second, Some(5.0));
    }
}
