//! Load by `h2load`, and its results.

use std::path::PathBuf;

use crate::Outcome;
use crate::contestant::find_program;
use crate::exec::RunPlacement;

/// A load to put on a server.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) url: String,
    pub(super) connections: usize,
    /// Requests of each that are under way at the same time.
    pub(super) streams: usize,
    pub(super) amount: Amount,
    /// Body of each request, as a gRPC call.
    pub(super) message: Option<PathBuf>,
    pub(super) cpu: usize,
}

/// End of a load: a number of requests or a duration.
#[derive(Debug, Clone, Copy)]
pub(super) enum Amount {
    Seconds(u64),
    /// Of large responses, that share their connections, none may be whole after some seconds.
    Requests(u64),
}

/// Results of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LoadResult {
    /// Requests that were answered with 2xx.
    pub(super) requests: u64,
    /// Failed requests, including those with another status.
    pub(super) failed: u64,
    pub(super) per_second: f64,
    /// Bytes of content.
    pub(super) bytes: u64,
}

impl Load {
    /// Puts the load on and waits for its end.
    pub(super) fn run(&self) -> Outcome<LoadResult> {
        let program = find_program("h2load").ok_or("h2load is not on the PATH: it makes the load")?;
        let mut command = RunPlacement::on(self.cpu).command(&program);
        if let Some(message) = &self.message {
            command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]).arg(message);
        }
        let output = command
            .args(["-t1", &format!("-c{}", self.connections), &format!("-m{}", self.streams)])
            .arg(match self.amount {
                Amount::Seconds(seconds) => format!("-D{}", seconds.max(1)),
                Amount::Requests(count) => format!("-n{count}"),
            })
            .arg(&self.url)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        parse(&said).ok_or_else(|| {
            format!("h2load: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr)).into()
        })
    }
}

fn parse(said: &str) -> Option<LoadResult> {
    let line = |start: &str| said.lines().find_map(|line| line.strip_prefix(start));
    // finished in 2.00s, 155112.50 req/s, 162.44MB/s
    let per_second = line("finished in ")?.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()?;
    let number = |text: &str| text.trim().split(' ').next()?.parse::<u64>().ok();
    // requests: 310225 total, 311249 started, 310225 done, 310225 succeeded, 0 failed, 0 errored, 0 timeout
    let outcomes: Vec<_> = line("requests: ")?.split(", ").map(number).collect::<Option<_>>()?;
    let [_, _, _, succeeded, failed, errored, timeout] = outcomes[..] else { return None };
    // traffic: 324.88MB (340660430) total, … (…) headers (space savings 95.28%), 302.95MB (317670400) data
    let data = line("traffic: ")?.rsplit(", ").next()?;
    let bytes = data.split(['(', ')']).nth(1)?.parse().ok()?;
    Some(LoadResult { requests: succeeded, failed: failed + errored + timeout, per_second, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_read() {
        let said = "starting benchmark...\nfinished in 1.00s, 155112.50 req/s, 162.44MB/s\n\
            requests: 155112 total, 156136 started, 155112 done, 155100 succeeded, 12 failed, 1 errored, 2 timeout\n\
            status codes: 155112 2xx, 0 3xx, 0 4xx, 0 5xx\n\
            traffic: 162.44MB (170330215) total, 1.21MB (1272345) headers (space savings 95.28%), 151.48MB (158834688) data\n";
        let expected =
            LoadResult { requests: 155_100, failed: 15, per_second: 155_112.5, bytes: 158_834_688 };
        assert_eq!(parse(said), Some(expected));
        assert_eq!(parse("could not connect"), None);
    }
}
