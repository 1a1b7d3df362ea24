//! Fetches a file from a web server, and goes on where an earlier transfer has stopped.

use super::{Error, PartFile};
use anyhow::anyhow;
use std::io::{self, Read};
use std::time::Duration;

/// Without a network the next source must get its turn soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest silence in the middle of a transfer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a transfer that has stopped is taken up again, if it has got on at all.
pub(super) const ATTEMPTS: u32 = 5;

/// Fetches `url` into `part`, from its end on if the server can do that.
pub(super) fn fetch(url: &str, part: &mut PartFile) -> Result<(), Error> {
    let agent = agent();
    let mut attempt = 1;
    while part.len() < part.size() {
        let before = part.len();
        match transfer(&agent, url, part) {
            Ok(()) if part.len() == part.size() => break,
            Err(Error::Local(error)) => return Err(Error::Local(error)),
            Err(Error::Source(error)) if part.len() <= before || attempt == ATTEMPTS => {
                return Err(Error::Source(error));
            }
            Ok(()) if part.len() <= before || attempt == ATTEMPTS => {
                let (len, size) = (part.len(), part.size());
                return Err(Error::Source(anyhow!("it gave {len} bytes instead of {size}")));
            }
            Ok(()) | Err(Error::Source(_)) => attempt += 1,
        }
    }
    Ok(())
}

/// Returns what asks servers.
pub(super) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(RESPONSE_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
        .http_status_as_error(false)
        .user_agent(concat!("smol/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}

fn transfer(agent: &ureq::Agent, url: &str, part: &mut PartFile) -> Result<(), Error> {
    let mut request = agent.get(url);
    if part.len() > 0 {
        request = request.header("range", format!("bytes={}-", part.len()));
    }
    let response = request.call().map_err(Error::source)?;
    match response.status().as_u16() {
        200 => part.restart().map_err(Error::Local)?,
        206 => {
            let range = response.headers().get("content-range").and_then(|v| v.to_str().ok());
            if range.and_then(range_start) != Some(part.len()) {
                return Err(Error::Source(anyhow!(
                    "it answers with the range `{}` instead of the one from byte {} on",
                    range.unwrap_or_default(),
                    part.len()
                )));
            }
        }
        416 => {
            // The remains are all it has, or of another file.
            let (len, size) = (part.len(), part.size());
            part.restart().map_err(Error::Local)?;
            return Err(Error::Source(anyhow!("it gave at most {len} bytes instead of {size}")));
        }
        code => return Err(Error::Source(anyhow!("it answers with HTTP status {code}"))),
    }
    copy(response.into_body().into_reader(), part)
}

/// Appends all that `reader` gives to `part`.
pub(super) fn copy(mut reader: impl Read, part: &mut PartFile) -> Result<(), Error> {
    let mut block = vec![0; 1 << 17];
    loop {
        match reader.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(read) => part.append(&block[..read])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::source(e)),
        }
    }
}

/// Parses the first byte's number out of `bytes 100-199/200`.
pub(super) fn range_start(content_range: &str) -> Option<u64> {
    content_range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::range_start;

    #[test]
    fn content_ranges() {
        assert_eq!(range_start("bytes 100-199/200"), Some(100));
        assert_eq!(range_start("bytes 0-1/*"), Some(0));
        assert_eq!(range_start("bytes */200"), None);
        assert_eq!(range_start("pages 1-2/3"), None);
    }
}
