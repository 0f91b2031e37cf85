//! Scripts in `stream`: access, preread, variables, and the filter of bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use tw_testkit::server::Builder;
use tw_testkit::{Client, Server, Signal, wait};

use super::scripted;
use crate::support::process::{children, kill};

/// Upstream server that sends back what comes until the client closes its side.
fn echo() -> SocketAddr {
    upstream(|mut stream| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    })
}

fn upstream(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    addr
}

fn start_stream(builder: Builder, servers: &str) -> Server {
    let conf = format!(
        "stream {{ js_import main.js; error_log logs/error.log info; \
         log_format end '$server_port $status $bytes_received/$bytes_sent'; access_log logs/end.log end; {servers} }}"
    );
    builder.start(&conf).unwrap()
}

/// Answer to a client that sends `bytes` and closes its side.
fn answer(addr: SocketAddr, bytes: &str) -> String {
    let mut client = Client::connect(addr).unwrap();
    // A session that was refused may be closed already.
    let _ = client.send(bytes).and_then(|()| client.finish_sending());
    String::from_utf8_lossy(&client.read_until_close().unwrap_or_default()).into_owned()
}

#[test]
fn access_is_granted_declined_and_refused_by_functions() {
    let script = "
        function allow(s) { s.allow(); }
        function decline(s) { s.decline(); }
        function deny(s) { s.deny(); }
        function code(s) { s.done(502); }
        function nothing(s) {}
        function throws(s) { throw new Error('no access'); }
        function late(s) { setTimeout(() => s.remoteAddress === '127.0.0.1' ? s.allow() : s.deny(), 5); }
        export default {allow, decline, deny, code, nothing, throws, late};";
    let Some(builder) = scripted(script) else { return };
    let names = ["allow", "decline", "deny", "code", "nothing", "throws", "late"];
    let server_of = |(at, name): (usize, &&str)| {
        let port = if at == 0 { "{port}".to_owned() } else { format!("{{port{at}}}") };
        format!("server {{ listen 127.0.0.1:{port}; js_access main.{name}; deny all; return {name}; }} ")
    };
    let servers: String = names.iter().enumerate().map(server_of).collect();
    let server = start_stream(builder, &servers);
    let mut ends = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let addr = server.addr_of(at);
        let text = answer(addr, "");
        // `s.allow()` ends the phase, `s.decline()` leaves the decision to `deny`.
        let (expected, status) = match *name {
            "allow" | "late" => (*name, 200),
            "decline" | "deny" => ("", 403),
            "code" => ("", 502),
            _ => ("", 500),
        };
        assert_eq!(text, expected, "{name}");
        ends.push(format!("{} {status}", addr.port()));
    }
    let lines = server.log("logs/end.log", names.len()).unwrap();
    for end in ends {
        assert!(lines.iter().any(|line| line.starts_with(&end)), "{end} in {lines:?}");
    }
    server.wait_error_log("no access").unwrap();
    server.wait_error_log("\"main.nothing\" has decided nothing").unwrap();
}

#[test]
fn exit_hook_runs_at_the_end_of_the_session() {
    let script = "
        const hook = (s, name) => njs.on('exit', () => ngx.log(ngx.WARN, `exit of ${name}: ${s.variables.status} ${s.variables.bytes_sent}`));
        function access(s) { hook(s, 'access'); s.allow(); }
        function fails(s) { njs.on('exit', () => { throw new Error('exit fails'); }); s.deny(); }
        export default {access, fails};";
    let Some(builder) = scripted(script) else { return };
    let server = start_stream(
        builder,
        "server { listen 127.0.0.1:{port}; js_access main.access; return hello; } \
         server { listen 127.0.0.1:{port1}; js_access main.fails; return hello; }",
    );
    assert_eq!(answer(server.addr(), ""), "hello");
    let line = server.wait_error_log("exit of access: 200 5").unwrap();
    assert!(line.contains("[warn]") && line.contains("client: 127.0.0.1"), "{line}");
    assert_eq!(answer(server.addr_of(1), ""), "");
    server.wait_error_log("js exception: Error: exit fails").unwrap();
}

#[test]
fn preread_sees_all_bytes_so_far_and_leaves_them_to_the_content() {
    let script = "
        let seen = [];
        function preread(s) {
            s.on('upload', (data, flags) => { seen.push(data.length); s.warn(`${data.length} bytes`); if (data.includes('!')) { s.variables.kind = data[0]; s.done(); } });
        }
        function sizes(s) { return seen.join(','); }
        function names(s) { return s.jsVarNames('k').join(); }
        export default {preread, sizes, names};";
    let Some(builder) = scripted(script) else { return };
    let addr = echo();
    let server = start_stream(
        builder,
        &format!(
            "js_set $sizes main.sizes; js_set $names main.names; js_var $kind none; map $kind $mapped {{ default other; a 'of a'; }} \
             server {{ listen 127.0.0.1:{{port}}; js_preread main.preread; return '$names $kind $mapped $sizes'; }} \
             server {{ listen 127.0.0.1:{{port1}}; js_preread main.preread; proxy_half_close on; proxy_pass {addr}; }} \
             server {{ listen 127.0.0.1:{{port2}}; preread_buffer_size 10; js_preread main.preread; return full; }}"
        ),
    );
    let mut client = Client::connect(server.addr_of(0)).unwrap();
    client.send("ab").unwrap();
    server.wait_error_log("2 bytes").unwrap();
    client.send("c!").unwrap();
    let text = String::from_utf8(client.read_until_close().unwrap()).unwrap();
    let sizes = text.strip_prefix("kind a of a ").unwrap_or_else(|| panic!("{text}"));
    assert!(sizes.ends_with("2,4"), "the function sees all bytes each time: {sizes}");
    assert_eq!(answer(server.addr_of(1), "passed on!"), "passed on!");
    assert_eq!(answer(server.addr_of(2), "more than ten bytes"), "");
    server.wait_error_log("preread buffer full").unwrap();
}

const FILTER: &str = "
    function upper(s) {
        s.on('upload', (data, flags) => s.send(data.toUpperCase(), flags));
        s.on('download', (data, flags) => s.send(`<${data}>`, flags));
    }
    function none(s) {}
    function once(s) { s.on('upload', (data, flags) => { s.send('first ' + data, flags); s.off('upload'); }); }
    function buffers(s) { s.on('downstream', (data, flags) => s.send(Buffer.from(data).reverse(), flags)); }
    function swallow(s) { s.on('download', (data, flags) => { if (flags.last) { s.send('end', flags); } }); }
    function both(s) { s.on('upload', (data, flags) => { if (data) { s.sendDownstream('got ' + data); } s.sendUpstream(data, flags); }); }
    function throws(s) { s.on('upload', data => { if (data.length) { throw new Error('no filter'); } }); }
    function endless(s) { s.on('upload', data => { for (;;) { 'x'.repeat(1e6); } }); }
    async function fetched(s) {
        s.on('upload', async (data, flags) => {
            if (!data.length) { return; }
            const reply = await ngx.fetch(`http://127.0.0.1:${s.variables.answers}/`);
            s.send(await reply.text() + ' ' + data, { from_upstream: true });
        });
    }
    export default {upper, none, once, buffers, swallow, both, throws, endless, fetched};";

#[test]
fn filter_changes_both_directions() {
    let Some(builder) = scripted(FILTER) else { return };
    let addr = echo();
    let cases = [
        ("upper", "abc", "<ABC>"),
        ("none", "abc", "abc"),
        ("once", "abc", "first abc"),
        ("buffers", "abc", "cba"),
        ("swallow", "abc", "end"),
        ("both", "abc", "got abcabc"),
    ];
    let server_of = |(at, (name, ..)): (usize, &(&str, &str, &str))| {
        let port = if at == 0 { "{port}".to_owned() } else { format!("{{port{at}}}") };
        format!(
            "server {{ listen 127.0.0.1:{port}; js_filter main.{name}; proxy_half_close on; proxy_pass {addr}; }} "
        )
    };
    let servers: String = cases.iter().enumerate().map(server_of).collect();
    let server = start_stream(
        builder,
        &format!("{servers} server {{ listen 127.0.0.1:{{port6}}; js_filter main.upper; return text; }}"),
    );
    for (at, (name, bytes, expected)) in cases.iter().enumerate() {
        let text = answer(server.addr_of(at), bytes);
        // An end without bytes is a piece of its own, which the first function marks, too.
        let text = if *name == "upper" { text.replace("<>", "") } else { text };
        assert_eq!(text, *expected, "{name}");
    }
    assert_eq!(answer(server.addr_of(6), ""), "<text>");
}

#[test]
fn large_transfers_pass_a_filter_whole() {
    let Some(builder) = scripted(FILTER) else { return };
    let addr = echo();
    let server = start_stream(
        builder,
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; js_filter main.buffers; proxy_pass {addr}; proxy_half_close on; }}"
        ),
    );
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    let sent = vec![b'z'; 8 << 20];
    let mut writing = stream.try_clone().unwrap();
    let writer = thread::spawn(move || {
        writing.write_all(&sent).unwrap();
        writing.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert_eq!(received.len(), 8 << 20);
    assert!(received.iter().all(|byte| *byte == b'z'));
}

#[test]
fn failed_filter_ends_its_session_alone() {
    let Some(builder) = scripted(FILTER) else { return };
    let addr = echo();
    let server = start_stream(
        builder,
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; js_filter main.throws; proxy_pass {addr}; }} \
             server {{ listen 127.0.0.1:{{port1}}; js_filter main.endless; proxy_pass {addr}; }} \
             server {{ listen 127.0.0.1:{{port2}}; proxy_pass {addr}; proxy_half_close on; }}"
        ),
    );
    assert_eq!(answer(server.addr_of(0), "a"), "");
    server.wait_error_log("no filter").unwrap();
    assert_eq!(answer(server.addr_of(1), "a"), "");
    server.wait_error_log("has exceeded js_timeout").unwrap();
    assert_eq!(answer(server.addr_of(2), "plain"), "plain");
    let lines = server.log("logs/end.log", 3).unwrap();
    for (at, status) in [(0, 500), (1, 500), (2, 200)] {
        let start = format!("{} {status} ", server.addr_of(at).port());
        assert!(lines.iter().any(|line| line.starts_with(&start)), "{start} in {lines:?}");
    }
}

#[test]
fn process_that_dies_ends_its_sessions_and_the_next_one_serves() {
    let Some(builder) = scripted(FILTER) else { return };
    let addr = echo();
    let server = start_stream(
        builder,
        &format!("server {{ listen 127.0.0.1:{{port}}; js_filter main.upper; proxy_pass {addr}; }}"),
    );
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("ab").unwrap();
    assert_eq!(client.read_bytes(4).unwrap(), b"<AB>");
    let is_script = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("tailwater-scripts")
    };
    let scripts: Vec<u32> = children(server.pid()).into_iter().filter(is_script).collect();
    scripts.iter().for_each(|pid| kill(*pid, Signal::KILL));
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    assert!(server.log("logs/end.log", 1).unwrap()[0].contains(" 500 "));
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("cd").unwrap();
    assert_eq!(client.read_bytes(4).unwrap(), b"<CD>");
}

#[test]
fn each_datagram_is_a_piece() {
    let Some(builder) = scripted(FILTER) else { return };
    let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = upstream.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 2000];
        while let Ok((len, from)) = upstream.recv_from(&mut buffer) {
            let _ = upstream.send_to(&buffer[..len], from);
        }
    });
    let server = start_stream(
        builder,
        &format!(
            "server {{ listen 127.0.0.1:{{port}} udp; js_filter main.upper; proxy_pass {addr}; }} \
             server {{ listen 127.0.0.1:{{port1}} udp; js_filter main.throws; proxy_pass {addr}; }}"
        ),
    );
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    let mut buffer = vec![0; 2000];
    for text in ["ab", "cd", "a third one"] {
        client.send_to(text.as_bytes(), server.addr_of(0)).unwrap();
        let (len, _) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(String::from_utf8_lossy(&buffer[..len]), format!("<{}>", text.to_uppercase()));
    }
    client.send_to(b"x", server.addr_of(1)).unwrap();
    server.wait_error_log("no filter").unwrap();
    assert!(server.log("logs/end.log", 1).unwrap()[0].contains(" 500 "));
}

#[test]
fn session_asks_other_servers() {
    let Some(builder) = scripted(FILTER) else { return };
    let addr = echo();
    let conf = format!(
        "stream {{ js_import main.js; error_log logs/error.log info; js_var $answers {{port1}}; \
           server {{ listen 127.0.0.1:{{port}}; js_filter main.fetched; proxy_pass {addr}; }} }} \
         http {{ server {{ listen 127.0.0.1:{{port1}}; location / {{ return 200 fetched; }} }} }}"
    );
    let server = builder.start(&conf).unwrap();
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("data").unwrap();
    assert_eq!(client.read_bytes(12).unwrap(), b"fetched data");
}

#[test]
fn directives_that_cannot_be_used_are_refused() {
    for (stream, servers, message) in [
        ("", "js_access main.f;", "no imports defined for \"js_access\" \"main.f\""),
        ("", "js_filter main.f;", "no imports defined for \"js_filter\" \"main.f\""),
        ("js_import main.js; js_content main.f;", "", "\"js_content\" directive is not allowed here"),
        ("js_import main.js;", "js_periodic main.f interval=0;", "invalid parameter \"interval=0\""),
        ("js_import main.js;", "js_periodic main.f every=1s;", "invalid parameter \"every=1s\""),
        (
            "js_import main.js;",
            "js_periodic main.f worker_affinity=101;",
            "is not equal to the size of \"worker_affinity\" mask",
        ),
        ("js_import main.js;", "js_periodic main.f worker_affinity=2;", "invalid character \"2\""),
    ] {
        let Some(builder) = scripted("export default {};") else { return };
        let conf =
            format!("stream {{ {stream} server {{ listen 127.0.0.1:{{port}}; {servers} return a; }} }}");
        let output = builder.arg("-t").run(&conf).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(message), "{stream} {servers}: {text}");
    }
}
