//! A file on a web server, read once from its start, in ranges where something is passed by or a
//! connection breaks.

use super::http::{ATTEMPTS, agent, range_start};
use anyhow::{Context as _, Result, bail};
use smol_gguf::ByteStream;
use std::io::{self, Read};

/// Less than this is read and thrown away rather than asked for in another range.
const SHORT: u64 = 1 << 20;

/// The bytes of a URL.
pub struct HttpStream {
    agent: ureq::Agent,
    url: String,
    body: Option<Box<dyn Read + Send + Sync>>,
    position: u64,
    len: Option<u64>,
    /// What tells this file from a later one under the same URL.
    version: Option<String>,
    /// Attempts since bytes last came.
    attempts: u32,
}

impl HttpStream {
    /// Asks for the first bytes.
    pub fn open(url: &str) -> Result<Self> {
        let mut stream = Self {
            agent: agent(),
            url: url.to_owned(),
            body: None,
            position: 0,
            len: None,
            version: None,
            attempts: 0,
        };
        stream.connect().with_context(|| format!("cannot read {url}"))?;
        Ok(stream)
    }

    /// Asks for the bytes from the position on.
    fn connect(&mut self) -> Result<()> {
        let mut request = self.agent.get(&self.url);
        if self.position > 0 {
            request = request.header("range", format!("bytes={}-", self.position));
        }
        let response = request.call()?;
        let status = response.status().as_u16();
        if !matches!(status, 200 | 206) {
            bail!("it answers with HTTP status {status}");
        }
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
        let version = header("etag").or(header("last-modified")).map(str::to_owned);
        let start =
            if status == 206 { header("content-range").and_then(range_start) } else { Some(0) };
        let start = start.filter(|&start| start <= self.position);
        let Some(start) = start else { bail!("it answers with another range") };
        let rest: Option<u64> = header("content-length").and_then(|len| len.parse().ok());
        let len = rest.map(|rest| start + rest);
        if self.position == 0 {
            (self.len, self.version) = (len, version);
        } else if version != self.version || (len.is_some() && len != self.len) {
            bail!("it has another file than before");
        }
        let mut body: Box<dyn Read + Send + Sync> = Box::new(response.into_body().into_reader());
        // A server without ranges starts again.
        let again = self.position - start;
        if io::copy(&mut (&mut body).take(again), &mut io::sink())? < again {
            bail!("the connection broke");
        }
        self.body = Some(body);
        Ok(())
    }

    /// Reads what comes next; `None`: the connection has ended before the file.
    fn read_some(&mut self, buf: &mut [u8]) -> Result<Option<usize>> {
        let body = match &mut self.body {
            Some(body) => body,
            None => {
                self.connect()?;
                return Ok(None);
            }
        };
        let n = body.read(buf)?;
        if n == 0 && !buf.is_empty() && self.len.is_some_and(|len| self.position < len) {
            bail!("the connection ended early");
        }
        Ok(Some(n))
    }
}

impl Read for HttpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.read_some(buf) {
                Ok(Some(n)) => {
                    self.attempts = 0;
                    self.position += n as u64;
                    return Ok(n);
                }
                Ok(None) => {}
                Err(error) => {
                    self.body = None;
                    self.attempts += 1;
                    if self.attempts == ATTEMPTS {
                        return Err(io::Error::other(format!("{error:#}")));
                    }
                }
            }
        }
    }
}

impl ByteStream for HttpStream {
    fn total_len(&self) -> Option<u64> {
        self.len
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        if n < SHORT {
            let skipped = io::copy(&mut self.take(n), &mut io::sink())?;
            return if skipped == n { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        self.position += n;
        // Dropped, so that nothing of what is passed by comes.
        self.body = None;
        if self.len.is_some_and(|len| self.position >= len) {
            self.position = self.len.unwrap_or(self.position);
            self.body = Some(Box::new(io::empty()));
        }
        Ok(())
    }
}
