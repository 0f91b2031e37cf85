//! Calls from `h2load`, and its numbers.

use std::path::PathBuf;

use crate::bench::Outcome;
use crate::bench::contestant::find_program;
use crate::bench::exec::Place;

/// Calls to put on a server.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) url: String,
    /// The message of each call.
    pub(super) message: PathBuf,
    pub(super) connections: usize,
    /// Calls of each that are under way at the same time.
    pub(super) streams: usize,
    pub(super) seconds: u64,
    pub(super) cpu: usize,
}

/// What came of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Served {
    /// Calls that were answered with 2xx.
    pub(super) calls: u64,
    /// Those that came to nothing, and those with another status.
    pub(super) failed: u64,
    pub(super) per_second: f64,
    /// Bytes of messages.
    pub(super) bytes: u64,
}

impl Load {
    /// Makes the calls and waits for their end.
    pub(super) fn run(&self) -> Outcome<Served> {
        let program = find_program("h2load").ok_or("h2load is not on the PATH: it makes the calls")?;
        let output = Place::on(self.cpu)
            .command(&program)
            .args(["-t1", &format!("-c{}", self.connections), &format!("-m{}", self.streams)])
            .args([&format!("-D{}", self.seconds.max(1)), "-H", "content-type: application/grpc"])
            .args(["-H", "te: trailers", "-d"])
            .arg(&self.message)
            .arg(&self.url)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        parse(&said).ok_or_else(|| {
            format!("h2load: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr)).into()
        })
    }
}

fn parse(said: &str) -> Option<Served> {
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
    Some(Served { calls: succeeded, failed: failed + errored + timeout, per_second, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_read() {
        let said = "starting benchmark...\nfinished in 1.00s, 155112.50 req/s, 162.44MB/s\n\
            requests: 155112 total, 156136 started, 155112 done, 155100 succeeded, 12 failed, 1 errored, 2 timeout\n\
            traffic: 162.44MB (170330215) total, 1.21MB (1272345) headers (space savings 95.28%), 151.48MB (158834688) data\n";
        let expected = Served { calls: 155_100, failed: 15, per_second: 155_112.5, bytes: 158_834_688 };
        assert_eq!(parse(said), Some(expected));
        assert_eq!(parse("could not connect"), None);
    }
}
