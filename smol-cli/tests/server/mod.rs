//! A web server with one file and chosen faults.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a request is answered.
#[derive(Clone, Copy)]
pub enum Answer {
    /// Properly.
    All,
    /// With the whole file, whatever the range.
    IgnoreRange,
    /// Properly, but the connection breaks after so many bytes.
    Cut(usize),
    /// Properly, but nothing comes after so many bytes.
    Stall(usize),
    /// Properly, after a while.
    Slow(Duration),
    /// With a status and nothing else.
    Status(u16),
}

/// The server; its threads end with the process.
pub struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Option<u64>>>>,
}

impl Server {
    /// Serves `content`; `answer` gets the number of the request.
    pub fn start(content: Vec<u8>, answer: impl Fn(usize) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        let content = Arc::new(content);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let from = read_request(&stream);
                let number = {
                    let mut log = log.lock().unwrap();
                    log.push(from);
                    log.len() - 1
                };
                let (content, answer) = (content.clone(), answer(number));
                // The client may hang up at any point.
                std::thread::spawn(move || drop(respond(stream, &content, from, answer)));
            }
        });
        Self { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}/model.gguf", self.address)
    }

    /// The first byte that each request so far asked for, if it asked for a range.
    pub fn requests(&self) -> Vec<Option<u64>> {
        self.requests.lock().unwrap().clone()
    }
}

/// Reads the request's head and returns the start of its range.
fn read_request(stream: &TcpStream) -> Option<u64> {
    let mut from = None;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().ok();
        }
    }
    from
}

fn respond(
    mut stream: TcpStream,
    content: &[u8],
    from: Option<u64>,
    answer: Answer,
) -> std::io::Result<()> {
    let total = content.len();
    let from = match answer {
        Answer::IgnoreRange => None,
        _ => from.map(|from| from as usize),
    };
    if let Answer::Status(code) = answer {
        return write!(
            stream,
            "HTTP/1.1 {code} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    if let Answer::Slow(delay) = answer {
        std::thread::sleep(delay);
    }
    let body = &content[from.unwrap_or(0).min(total)..];
    match from {
        Some(from) if from >= total => {
            write!(stream, "HTTP/1.1 416 Range\r\ncontent-range: bytes */{total}\r\n")?;
        }
        Some(from) => {
            let last = total - 1;
            write!(stream, "HTTP/1.1 206 Part\r\ncontent-range: bytes {from}-{last}/{total}\r\n")?;
        }
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(stream, "content-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    match answer {
        Answer::Cut(len) => stream.write_all(&body[..len]),
        Answer::Stall(len) => {
            stream.write_all(&body[..len])?;
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        _ => stream.write_all(body),
    }
}
