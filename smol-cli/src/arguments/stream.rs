//! Weights that are read from the file each time they are used.

use smolmaxxing::{ByteSize, StreamSize, StreamStatistics, WeightStream};

/// Settings of the weight stream.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StreamArgs {
    /// Read matrices from the file for each token, even if they fit into memory; with --ram only
    /// those for which it has no room
    #[arg(long)]
    stream: bool,
    /// Memory for matrices that are being read, as 64MiB [default: that of the two largest ones, at
    /// least 32MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    stream_zone: Option<ByteSize>,
    /// Read streamed matrices twice and compare, and once more after their use
    #[arg(long)]
    stream_verify: bool,
}

impl StreamArgs {
    /// The stream, if anything about it was said. With nothing but --ram the library decides whether one is needed.
    pub fn stream(&self, readers: Option<u32>) -> Option<WeightStream> {
        let mut stream = WeightStream::default();
        if let Some(ByteSize(bytes)) = self.stream_zone {
            stream.zone = StreamSize::Bytes(bytes);
        }
        stream.verify = self.stream_verify;
        stream.readers = readers.map(|readers| readers as usize);
        let said = self.stream || self.stream_zone.is_some() || self.stream_verify;
        said.then_some(stream)
    }
}

/// What the weight stream has done, on one line.
pub fn stream_line(statistics: &StreamStatistics) -> String {
    format!(
        "streamed weights: {:.2} MB read and {:.1} ms waited a pass, of {} passes; {:.0} MB of memory, {} reads",
        statistics.mb_per_pass,
        statistics.wait_ms_per_pass,
        statistics.passes,
        statistics.zone_mb,
        statistics.io_mode,
    )
}
