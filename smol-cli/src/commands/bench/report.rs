//! Results of a benchmark, as a table and as JSON.

use super::clock;
use crate::arguments::EngineStatistics;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Times of a test's repetitions.
pub struct Samples {
    /// Tokens of one repetition.
    pub tokens: u32,
    pub times: Vec<Duration>,
    /// Bytes read from disk meanwhile.
    pub bytes_read: Option<u64>,
    /// What the engines did meanwhile.
    pub engines: EngineStatistics,
}

impl Samples {
    fn nanoseconds(&self) -> Vec<f64> {
        self.times.iter().map(|time| time.as_nanos() as f64).collect()
    }

    /// Tokens a second of each repetition.
    fn speeds(&self) -> Vec<f64> {
        let tokens = f64::from(self.tokens);
        self.times.iter().map(|time| tokens / time.as_secs_f64().max(1e-9)).collect()
    }

    fn mb_read_per_token(&self) -> Option<f64> {
        let tokens = f64::from(self.tokens) * self.times.len() as f64;
        self.bytes_read.map(|bytes| bytes as f64 / 1e6 / tokens)
    }
}

/// A test with its result and what it depends on.
pub struct Row {
    pub cpu: String,
    pub path: PathBuf,
    pub description: String,
    /// Bytes of the weights.
    pub size: u64,
    pub params: u64,
    pub n_batch: u32,
    pub n_ubatch: usize,
    pub threads: u32,
    pub n_prompt: u32,
    pub n_gen: u32,
    pub time: SystemTime,
    pub samples: Samples,
    pub load: Duration,
    pub peak_rss: Option<u64>,
}

/// The fields of llama-bench that mean something here, then our own.
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let build = smolmaxxing::build_info();
        let nanoseconds = self.samples.nanoseconds();
        let speeds = self.samples.speeds();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("build_commit", build.llama_commit)?;
        map.serialize_entry("cpu_info", &self.cpu)?;
        map.serialize_entry("gpu_info", "")?;
        map.serialize_entry("backends", "CPU")?;
        map.serialize_entry("model_filename", &self.path.to_string_lossy())?;
        map.serialize_entry("model_type", &self.description)?;
        map.serialize_entry("model_size", &self.size)?;
        map.serialize_entry("model_n_params", &self.params)?;
        map.serialize_entry("n_batch", &self.n_batch)?;
        map.serialize_entry("n_ubatch", &self.n_ubatch)?;
        map.serialize_entry("n_threads", &self.threads)?;
        map.serialize_entry("type_k", "f16")?;
        map.serialize_entry("type_v", "f16")?;
        map.serialize_entry("n_gpu_layers", &0)?;
        map.serialize_entry("n_prompt", &self.n_prompt)?;
        map.serialize_entry("n_gen", &self.n_gen)?;
        map.serialize_entry("n_depth", &0)?;
        map.serialize_entry("test_time", &clock::utc(self.time))?;
        map.serialize_entry("avg_ns", &(mean(&nanoseconds) as u64))?;
        map.serialize_entry("stddev_ns", &(deviation(&nanoseconds) as u64))?;
        map.serialize_entry("avg_ts", &mean(&speeds))?;
        map.serialize_entry("stddev_ts", &deviation(&speeds))?;
        map.serialize_entry("samples_ns", &integers(&nanoseconds))?;
        map.serialize_entry("samples_ts", &speeds)?;
        map.serialize_entry("load_s", &self.load.as_secs_f64())?;
        map.serialize_entry("peak_rss_mb", &self.peak_rss.map(|bytes| bytes as f64 / 1e6))?;
        map.serialize_entry("mb_read_per_token", &self.samples.mb_read_per_token())?;
        if let Some(statistics) = &self.samples.engines.pager {
            map.serialize_entry("pager", statistics)?;
        }
        if let Some(statistics) = &self.samples.engines.stream {
            map.serialize_entry("stream", statistics)?;
        }
        if let Some(statistics) = &self.samples.engines.cache {
            map.serialize_entry("cache", statistics)?;
        }
        map.end()
    }
}

fn integers(values: &[f64]) -> Vec<u64> {
    values.iter().map(|&value| value as u64).collect()
}

/// A Markdown table with llama-bench's columns, then what it does not measure.
pub fn table(rows: &[Row]) -> String {
    let cells: Vec<[String; 8]> = rows.iter().map(cells).collect();
    let titles = ["model", "size", "params", "backend", "threads", "test", "t/s", "MB read/t"];
    let widths: [usize; 8] = std::array::from_fn(|column| {
        let longest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        longest.max(titles[column].len())
    });
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |cells: &[String; 8]| {
        for (column, cell) in cells.iter().enumerate() {
            let width = widths[column];
            let _ = match column {
                0 | 3 => write!(text, "| {cell:width$} "),
                _ => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
    };
    line(&titles.map(str::to_owned));
    line(&std::array::from_fn(|column| match column {
        0 | 3 => "-".repeat(widths[column]),
        _ => format!("{}:", "-".repeat(widths[column] - 1)),
    }));
    cells.iter().for_each(line);
    if let Some(last) = rows.last() {
        let _ = write!(text, "\nload {:.2} s", last.load.as_secs_f64());
        if let Some(bytes) = last.peak_rss {
            let _ = write!(text, ", at most {:.0} MB of memory", bytes as f64 / 1e6);
        }
        let build = smolmaxxing::build_info();
        let level = smolmaxxing::cpu::selected().name;
        let _ = writeln!(text, ", llama.cpp {} ({level})", build.llama_version);
    }
    text
}

fn cells(row: &Row) -> [String; 8] {
    let speeds = row.samples.speeds();
    [
        row.description.clone(),
        format!("{:.2} MiB", row.size as f64 / f64::from(1 << 20)),
        format!("{:.2} M", row.params as f64 / 1e6),
        "CPU".to_owned(),
        row.threads.to_string(),
        if row.n_gen == 0 { format!("pp{}", row.n_prompt) } else { format!("tg{}", row.n_gen) },
        format!("{:.2} ± {:.2}", mean(&speeds), deviation(&speeds)),
        row.samples.mb_read_per_token().map_or("?".to_owned(), |mb| format!("{mb:.2}")),
    ]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Standard deviation of a sample.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_samples() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(deviation(&[1.0, 2.0, 6.0]), 7.0_f64.sqrt());
        assert_eq!(deviation(&[5.0]), 0.0);
        let samples = Samples {
            tokens: 10,
            times: vec![Duration::from_millis(100), Duration::from_millis(50)],
            bytes_read: Some(40_000_000),
            engines: EngineStatistics::default(),
        };
        assert_eq!(samples.speeds(), [100.0, 200.0]);
        assert_eq!(samples.mb_read_per_token(), Some(2.0));
    }
}
