//! Scrapes a page as Prometheus does, with gzip where the exporter has it.

use flate2::read::GzDecoder;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// What Prometheus asks for, but for the version that ends the answer with the connection.
const REQUEST: &str = "GET /metrics HTTP/1.0\r\n\
    Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1\r\n\
    Accept-Encoding: gzip\r\n\
    User-Agent: Prometheus/3.0.0\r\n";

/// Prometheus' own default.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The page of a server, if it has one now.
pub(super) fn scrape(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.write_all(format!("{REQUEST}Host: {address}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    page(&answer)
}

fn page(answer: &[u8]) -> io::Result<String> {
    let strange = || io::Error::other("no page");
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n").ok_or_else(strange)?;
    let (head, body) = answer.split_at(end + 4);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    if !head.lines().next().is_some_and(|line| line.contains(" 200 ")) {
        return Err(strange());
    }
    let mut text = String::new();
    if head.contains("content-encoding: gzip") {
        GzDecoder::new(body).read_to_string(&mut text)?;
    } else {
        let mut body = body;
        body.read_to_string(&mut text)?;
    }
    Ok(text)
}

/// How many series a page has.
pub(super) fn series(page: &str) -> usize {
    page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    #[test]
    fn a_page_is_read_with_and_without_gzip() {
        let text = "# HELP a b\na{x=\"1\"} 1\na{x=\"2\"} 2\n# EOF\n";
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        let head = "HTTP/1.0 200 OK\r\n";
        let packed =
            [format!("{head}Content-Encoding: gzip\r\n\r\n").as_bytes(), &packed.finish().unwrap()]
                .concat();
        let pages = [packed, format!("{head}\r\n{text}").into_bytes()];
        let pages = pages.map(|answer| page(&answer).unwrap());
        assert_eq!(pages, [text, text]);
        assert_eq!(series(text), 2);
        assert!(page(b"HTTP/1.0 404 Not Found\r\n\r\n").is_err());
    }
}
