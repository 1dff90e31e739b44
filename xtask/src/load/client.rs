//! Requests over one connection each, byte by byte.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Nothing takes longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection with a request on it.
#[derive(Debug)]
pub(crate) struct Asked {
    reader: BufReader<TcpStream>,
}

/// The bytes of a request.
pub(crate) fn request(path: &str, kind: &str, body: &str) -> String {
    let method = if body.is_empty() { "GET" } else { "POST" };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: \
         {}\r\n\r\n{body}",
        body.len()
    )
}

impl Asked {
    /// Sends bytes, which may be a part of a request.
    pub(crate) fn send(at: &str, bytes: &str) -> Result<Asked, String> {
        let mut stream = TcpStream::connect(at).map_err(|error| format!("connecting: {error}"))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        stream.write_all(bytes.as_bytes()).map_err(|error| format!("writing: {error}"))?;
        Ok(Asked { reader: BufReader::new(stream) })
    }

    /// The status and, of an answer that is not streamed, the body.
    pub(crate) fn whole(mut self) -> Result<(u16, Value), String> {
        let mut text = String::new();
        self.reader.read_to_string(&mut text).map_err(|error| format!("reading: {error}"))?;
        let status =
            text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(|| format!("no answer: {text:?}"))?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, serde_json::from_str(body).unwrap_or_else(|_| Value::from(body))))
    }

    /// The status of a stream, which then begins.
    pub(crate) fn begin(&mut self) -> Result<u16, String> {
        let mut first = String::new();
        self.line(&mut first)?;
        let status = first.get(9..12).and_then(|status| status.parse().ok());
        status.ok_or_else(|| format!("no answer: {first:?}"))
    }

    fn line(&mut self, line: &mut String) -> Result<usize, String> {
        line.clear();
        self.reader.read_line(line).map_err(|error| format!("reading: {error}"))
    }

    /// The next event of a stream: its data, or nothing at its end.
    pub(crate) fn event(&mut self) -> Result<Option<String>, String> {
        let mut line = String::new();
        // Heads of chunks, comments and empty lines are passed over; no chunk is cut within a line.
        while self.line(&mut line)? > 0 {
            if let Some(data) = line.strip_prefix("data: ") {
                return Ok(Some(data.trim_end().to_owned()));
            }
        }
        Ok(None)
    }
}

/// What the server has counted.
pub(crate) fn metrics(at: &str) -> Result<String, String> {
    let (status, body) = Asked::send(at, &request("/metrics", "text/plain", ""))?.whole()?;
    match body {
        Value::String(page) if status == 200 => Ok(page),
        other => Err(format!("/metrics: {status}: {other}")),
    }
}

/// One number of it.
pub(crate) fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}
