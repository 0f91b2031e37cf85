//! Health of a server by its page of metrics.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longest wait for the server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Largest page.
const SIZE_MAX: u64 = 16 << 20;

/// Numbers of a server since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ServerNumbers {
    pub(super) responses: u64,
    /// Responses 5xx.
    pub(super) errors: u64,
    /// Turns of event loops that took too long.
    pub(super) stalls: u64,
}

/// Reads the page; `None` if the server does not answer.
pub(super) fn read(url: &str) -> Option<ServerNumbers> {
    let rest = url.strip_prefix("http://")?;
    let (host, target) = rest.split_once('/').map_or((rest, ""), |(host, target)| (host, target));
    let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let address = with_port.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    write!(stream, "GET /{target} HTTP/1.0\r\nHost: {host}\r\n\r\n").ok()?;
    let mut page = Vec::new();
    stream.take(SIZE_MAX).read_to_end(&mut page).ok()?;
    parse(&String::from_utf8_lossy(&page))
}

fn parse(page: &str) -> Option<ServerNumbers> {
    let (head, body) = page.split_once("\r\n\r\n")?;
    if head.split(' ').nth(1)? != "200" {
        return None;
    }
    let mut numbers = ServerNumbers::default();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Some(value) = value.parse::<f64>().ok().filter(|value| *value >= 0.0) else { continue };
        let value = value as u64;
        if series.starts_with("tailwater_requests_total{") {
            numbers.responses += value;
            if series.contains("class=\"5xx\"") {
                numbers.errors += value;
            }
        } else if series.starts_with("tailwater_event_loop_stalls_total{") {
            numbers.stalls += value;
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_metrics_has_the_numbers() {
        let page = "HTTP/1.1 200 OK\r\nA: b\r\n\r\n# HELP x\ntailwater_requests_total{class=\"2xx\"} 7\n\
                    tailwater_requests_total{class=\"5xx\"} 2\nother 9\n\
                    tailwater_event_loop_stalls_total{worker=\"0\",cause=\"kernel\"} 1\n";
        assert_eq!(parse(page), Some(ServerNumbers { responses: 9, errors: 2, stalls: 1 }));
        assert_eq!(parse("HTTP/1.1 403 Forbidden\r\n\r\n"), None);
        assert_eq!(read("ftp://a"), None);
    }
}
