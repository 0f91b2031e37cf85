//! `cargo xtask bench`: the measurements behind every number in the documentation.
//!
//! One server core against one load core, contestants in turn within each round, medians over the rounds, and a target
//! beside each number. Everything a measurement needs is made here or named in an error: files, configurations,
//! cgroups, load scripts. Results go to the terminal and to `target/bench/NAME.json`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "measurements speak to their terminal")]

mod accept;
mod all;
mod bare;
mod bulk;
mod cache;
mod cgroup;
mod conf;
mod connection_memory;
mod contestant;
mod data;
mod disk;
mod exec;
mod filters;
mod first_byte;
mod gateways;
mod grpc;
mod h2load;
mod hit_ratio;
mod http2;
mod http3;
mod idle;
mod instructions;
mod load;
mod loops;
mod machine;
mod mail;
mod open;
mod options;
mod paced_client;
mod plot;
mod pools;
mod prometheus;
mod proxy;
mod reload;
mod render;
mod report;
mod sampler;
mod sharding;
mod spans;
mod stalls;
mod static_files;
mod stream;
mod supervise;
mod targets;
mod tls;
mod turns;
mod usage;

use std::path::{Path, PathBuf};

use self::supervise::{End, Supervisor};

/// Result of a step of a measurement; the error is for the terminal.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Function of a word after `bench`, with the words that follow.
type Run = fn(&[String]) -> Outcome;

const MEASUREMENTS: &[(&str, Run)] = &[
    ("accept", accept::run),
    ("cache", cache::run),
    ("static", static_files::run),
    ("filters", filters::run),
    ("disk", disk::run),
    ("pools", pools::run),
    ("open", open::run),
    ("sharding", sharding::run),
    ("idle", idle::run),
    ("reload", reload::run),
    ("proxy", proxy::run),
    ("gateways", gateways::run),
    ("grpc", grpc::run),
    ("tls", tls::run),
    ("h2", http2::run),
    ("h3", http3::run),
    ("stream", stream::run),
    ("mail", mail::run),
    ("instructions", instructions::run),
];

/// Words that need no supervision; the last ones are started by the measurements themselves.
const OTHERS: &[(&str, Run)] = &[
    ("all", all::run),
    ("report", render::run),
    ("hit-ratio", hit_ratio::run),
    ("bare-loop", bare::run),
    ("origin", proxy::origin::run),
    ("relay", proxy::relay::run),
    ("stream-peer", stream::peer::run),
    ("responder", gateways::responder::run),
    ("echo", grpc::echo::run),
    ("exec", exec::run),
    (instructions::WORKER, instructions::work),
];

/// All measurements with their options.
pub const USAGE: &str = "usage: cargo xtask bench all | report | hit-ratio | pools | open | sharding | accept | static | filters | disk | idle | reload | proxy |
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

/// Runs one of the measurements, supervised: the words after `cargo xtask bench`.
///
/// # Errors
///
/// Says for the terminal why nothing was measured or which target was missed; empty if that was already printed.
pub fn run(args: &[String]) -> Result<(), String> {
    let Some((name, rest)) = args.split_first() else { return Err(USAGE.to_owned()) };
    let find = |list: &[(&str, Run)]| list.iter().find(|(other, _)| other == name).map(|(_, run)| *run);
    let outcome = if let Some(run) = find(MEASUREMENTS) {
        if supervise::is_supervised() {
            supervise::end_with_parent().and_then(|()| run(rest))
        } else {
            supervised(args)
        }
    } else if let Some(run) = find(OTHERS) {
        run(rest)
    } else {
        return Err(USAGE.to_owned());
    };
    outcome.map_err(|error| error.to_string())
}

/// Runs one measurement in a process of its own.
fn supervised(args: &[String]) -> Outcome {
    let keeps_data = args.iter().any(|arg| arg == "--keep-data");
    match Supervisor::new(keeps_data)?.run(args, &[], None)? {
        End::Succeeded => Ok(()),
        End::Interrupted => Err("interrupted".into()),
        // The process has printed the reason.
        End::Failed | End::TooLong => Err("".into()),
    }
}

/// Prints instructions per request and their changes, for `cargo xtask ci`: fewer requests than usual, and no failure
/// because of a change.
///
/// # Errors
///
/// Says why nothing could be measured.
pub fn compare_instructions() -> Result<(), String> {
    if let Some(missing) = instructions::lacks() {
        return Err(missing);
    }
    let measured = instructions::run(&["--quick".to_owned()]);
    measured.map_err(|_| "the measurement failed".to_owned())
}

/// The directory of results, data and running servers.
fn home() -> PathBuf {
    root().join("target/bench")
}

/// The directory of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
