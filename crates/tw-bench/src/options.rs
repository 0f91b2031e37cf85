//! Options of the measurements: `--name value` and `--flag`, nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Outcome;

/// All measurements with their options.
pub const USAGE: &str = "usage: cargo xtask bench all | report | hit-ratio | pools | open | sharding | accept | static | filters | waf | scripts | disk | idle | reload | proxy |
       gateways | cache | tls | grpc | h2 | h3 | stream | mail | instructions [OPTIONS]

common   --ours PATH      server under test              target/release/tailwater
         --nginx PATH     nginx to compare with          $NGINX, or nginx on the PATH
         --server-cpu N   core of the server             0
         --load-cpu N     core of the load               1
         --only A,B       some of the cases
         --ours-http TEXT directives for http {} of ours
         --ours-main TEXT directives before http {} of ours
         --nginx-main TEXT directives before http {} of nginx (load_module)
         --quick          few and short rounds: shows that it works, not how fast
         --check          fail if a target is missed
         --keep-data      leave the files that were made for the next run

all      everything below except accept, mail and instructions, in less than 25 minutes, into target/bench/results.json and
         target/bench/report.html
         --parts A,B      only these; the results of the others stay · --haproxy PATH
         --distributed PATH  measures rows with a target for the binary of cargo xtask dist once more, with that binary

hit-ratio  share of hits by eviction policy, for generated traces; needs no server and no release build
         --requests N · --objects N

report   the page again from the last results
         --json FILE      results · --write (keeps them in crates/tw-bench/data/results.json, and writes the tables of the documents)

pools    nginx's article about thread pools: throughput over time of a hot file of 4 MiB while others read a cold set of ten times
         the memory, states of the loops (needs root and cgroups; otherwise a smaller run without limits)
         --memory SIZE 512m · --factor N 10 (cold set in memories) · --iops N 400 · --bandwidth SIZE 120m
         --seconds N 6 (before and after the cold load, which lasts four times as long) · --data DIR target/bench/data

open     opening of files beside many clients whose files are in directories that are not in memory, behind a cache: time to the
         first byte, states of the loop
         --memory SIZE 256m · --seconds N 5 · the others as of pools

sharding nginx's article about socket sharding: accept_mutex on, off, and reuseport, over HTTP and TCP: latency, deviation, CPU,
         shares of loops
         --rounds N 5 · --seconds N 4 · --connections N 64

accept   short connections beside long ones that do different things, two loops: connections/s, latency, shares of loops
         --rounds N 5 · --seconds N 4 · --connections N 64 · cases as they are printed

static   CPU per request, requests/s and latency for 1 KiB, 16 KiB, 32 KiB and 4 MiB files, and for 1 KiB with
         an access log
         --rounds N 5 · --seconds N 4 · --connections A,B 64,512 · cases 1k 16k 32k log 4m

filters  CPU per request and size of responses compressed with gzip, brotli and zstd: text of 10 and 100 KiB
         --rounds N 5 · --seconds N 2 · --connections A 32 · cases gzip-1-10k gzip-1 gzip-6 brotli zstd

waf      CPU per request under the Core Rule Set, beside nginx with ModSecurity; a neighbour beside slow bodies; load of 1 MB of rules
         --rules DIRECTORY · --rounds N 5 · --seconds N 2 · --connections A 8 · cases get bodies load

scripts  CPU per request and latency of js_content and js_set, beside nginx with njs ($NGINX_JS); a neighbour beside ten hostile scripts
         --rounds N 5 · --seconds N 4 · --connections A 8 · cases calls endless json regexp memory

disk     a hot file while the disk is busy with cold ones (needs root and cgroups), and while another disk stands still
         --memory SIZE 512m · --factor N 10 (cold set in memories) · --iops N 400 · --bandwidth SIZE 120m
         --seconds N 8 · --data DIR target/bench/data · --cold-names (the whole machine forgets all it has read)
         cases 32k 4m stalls

idle     memory of idle connections, time to the first byte, size of the binary
         --connections N 10000

reload   what clients notice of reloads and upgrades of the binary; time of a reload of 20,000 locations; time and memory to
         load 10,000 servers and 100,000 locations
         --connections N 64 · --idle N 100 · --reloads N 100 · --upgrades N 5 · --seconds N 5 (without either)
         cases small large servers locations

proxy    a proxy between the load and an origin, both on one core: CPU per request, throughput, memory, added time
         --rounds N 5 · --seconds N 4 · --connections A,B 64,512 · --haproxy PATH (haproxy on the PATH)
         --tunnels N 10000 · cases 1k 32k 1m post idle overhead

gateways FastCGI over a Unix socket to a fixed responder of our own: CPU per request with and without connections that stay,
         1 KiB and 1 MiB; pages from a cache beside those of proxy_cache
         --rounds N 5 · --seconds N 4 · --connections A 64 · cases 1k 1k-close 1m cached

cache    a caching proxy before the same origin: hot hits, hot beside cold ones on a slow disk (needs root and cgroups),
         fills beside hot hits, and many clients that ask at once for what is not there; hot hits also of varnishd and
         traffic_server, if they are there
         --rounds N 5 · --seconds N 4 · --connections A,B 64 · --fills N 10000 (of a round)
         --memory SIZE 512m · --factor N 10 · --iops N 400 · --bandwidth SIZE 120m · --data DIR target/bench/data
         --cold-names · --clients N 1000 · --object SIZE 100m · --objects N 100000 (at a restart)
         cases 1k 32k restart restart-log cold fills crowd, and if it is named: small
         --endurance: cases restart restart-log cold small fills hit-ratio with --cold-names, also of Varnish and Traffic Server with
         their storage on the disk; numbers in target/bench/cache-endurance.json

tls      TLS 1.3 with the same certificate and cipher: CPU per request, full and resumed handshakes with both kinds of keys,
         established connections beside handshakes of RSA, memory of idle connections
         --rounds N 5 · --seconds N 4 · --connections A 64 · --rate N 500 (handshakes/s beside established connections)
         --idle N 10000 · cases 1k 32k 4m handshakes beside idle

grpc     calls through a proxy to a server of our own that says what it is told (h2load): CPU per call, calls/s
         --rounds N 5 · --seconds N 4 · --connections N 64 · --streams N 16 · cases small large

h2       HTTP/2, plain and over TLS 1.3, many streams on each connection (h2load): CPU per request, throughput; the first byte of
         a small response beside a large download on its connection; memory of connections and of streams that wait
         --rounds N 5 · --seconds N 4 · --connections N 64 · --streams N 16 · --idle N 1000 · cases 1k 32k 1m beside idle

h3       HTTP/3 with clients of our own: CPU per request, throughput also with lost datagrams, full handshakes with both kinds of
         keys, the first byte of a small response beside a large download on its connection, established connections beside
         handshakes of RSA, memory of idle connections
         --rounds N 5 · --seconds N 4 · --connections N 64 · --streams N 16 · --rate N 500 (handshakes/s beside established
         connections) · --idle N 1000 · cases 1k 32k 1m loss handshakes beside storm idle

stream   relays of TCP and UDP before a server of our own: CPU per megabyte, connection, message and datagram, the same with TLS
         from the client, latency of messages beside transfers, memory of idle relays
         --rounds N 5 · --seconds N 4 · --haproxy PATH (haproxy on the PATH) · --relays N 100000
         cases transfer connect message udp tls tls-message tls-connect beside idle

mail     logins over IMAP, POP3 and SMTP before servers of our own: CPU and logins/s, memory of idle sessions
         --rounds N 5 · --seconds N 4 · --connections N 16 · --sessions N 2000 · cases imap pop3 smtp idle

instructions
         instructions and allocations of the server per request, counted by valgrind over a fixed script, without nginx:
         independent of the load of the machine; change against crates/tw-bench/data/instructions.json
         --requests N 1000 · --rounds N 5 · --save (writes that file) · --top N (the most expensive functions)
         --out DIR (all functions, one file a case) · --syscalls (system calls per request, by strace)
         cases static static-cached static-32k proxy proxy-32k cache-hit cache-fill fastcgi fastcgi-close h2 h3 log";

/// Options every measurement takes.
const COMMON: &[&str] =
    &["ours", "nginx", "server-cpu", "load-cpu", "only", "ours-http", "ours-main", "nginx-main"];
const COMMON_FLAGS: &[&str] = &["quick", "check", "keep-data"];

/// Options of the command line.
#[derive(Debug, Default)]
pub(super) struct Options {
    values: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Options {
    /// Reads the arguments; an option that is neither common nor listed is an error.
    pub(super) fn parse(args: &[String], names: &[&str], flags: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").unwrap_or_default();
            if names.contains(&name) || COMMON.contains(&name) {
                let value = args.next().ok_or_else(|| format!("--{name} needs a value"))?;
                options.values.insert(name.to_owned(), value.clone());
            } else if flags.contains(&name) || COMMON_FLAGS.contains(&name) {
                options.flags.push(name.to_owned());
            } else {
                return Err(format!("unknown option {arg:?}\n\n{}", USAGE).into());
            }
        }
        Ok(options)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A value of any type that reads itself, or the default.
    pub(super) fn number<T: FromStr<Err: fmt::Display>>(&self, name: &str, default: T) -> Outcome<T> {
        match self.text(name) {
            Some(text) => text.parse().map_err(|e| format!("--{name} {text}: {e}").into()),
            None => Ok(default),
        }
    }

    /// Numbers with commas between them.
    pub(super) fn numbers(&self, name: &str, default: &[usize]) -> Outcome<Vec<usize>> {
        match self.text(name) {
            Some(text) => text
                .split(',')
                .map(|part| part.parse().map_err(|e| format!("--{name} {text}: {e}").into()))
                .collect(),
            None => Ok(default.to_owned()),
        }
    }

    /// A size in bytes with nginx's suffixes `k`, `m`, `g`.
    pub(super) fn size(&self, name: &str, default: u64) -> Outcome<u64> {
        match self.text(name) {
            Some(text) => parse_size(text).ok_or_else(|| format!("--{name} {text}: not a size").into()),
            None => Ok(default),
        }
    }

    /// Returns `true` if a case is selected: no `--only`, or named there.
    pub(super) fn wants(&self, case: &str) -> bool {
        self.text("only").is_none_or(|only| only.split(',').any(|wanted_name| wanted_name == case))
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let (digits, unit) = match text.strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits, text.as_bytes().last()?),
        None => (text.as_str(), &b'b'),
    };
    let shift = match unit {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Outcome<Options> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Options::parse(&args, &["rounds", "memory"], &["cold-names"])
    }

    #[test]
    fn options_are_read_by_name() {
        let options =
            parse(&["--rounds", "3", "--quick", "--memory", "64M", "--cold-names", "--only", "1k,4m"])
                .unwrap();
        assert_eq!(options.number("rounds", 5).unwrap(), 3);
        assert_eq!(options.number("seconds", 4.0).unwrap(), 4.0);
        assert_eq!(options.size("memory", 1).unwrap(), 64 << 20);
        assert!(options.flag("quick") && options.flag("cold-names") && !options.flag("check"));
        assert!(options.wants("4m") && !options.wants("32k"));
    }

    #[test]
    fn unknown_options_are_refused() {
        for args in [&["--bogus"][..], &["rounds"], &["--rounds"], &["-r", "3"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
        assert!(parse(&["--rounds", "x"]).unwrap().number("rounds", 1).is_err());
    }

    #[test]
    fn sizes_have_the_suffixes_of_nginx() {
        for (text, expected) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("4k", Some(4096)),
            ("2G", Some(2 << 30)),
            ("m", None),
            ("1t", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }
}
