//! Interoperation with `grpcio` for Python as client and server: calls of all four kinds through `grpc_pass`, a
//! deadline, and an error status.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tw_testkit::{Lacks, leave_out};

use crate::support::{server, start};

/// Server program, with messages of bytes only.
const SERVER: &str = r#"
import grpc, sys
from concurrent import futures

def say(request, context):
    context.set_trailing_metadata((("x-behind", "1"),))
    return request

def list(request, context):
    for nth in range(3):
        yield request + bytes(str(nth), "ascii")

def gather(requests, context):
    return b"".join(requests)

def talk(requests, context):
    for request in requests:
        yield request

def fail(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "nothing here: 100 %")

def wait(request, context):
    import threading
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait()
    return request

server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {
    "Say": grpc.unary_unary_rpc_method_handler(say),
    "List": grpc.unary_stream_rpc_method_handler(list),
    "Gather": grpc.stream_unary_rpc_method_handler(gather),
    "Talk": grpc.stream_stream_rpc_method_handler(talk),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Wait": grpc.unary_unary_rpc_method_handler(wait),
}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
server.stop(None)
"#;

const CLIENT: &str = r#"
import grpc, queue, sys

channel = grpc.insecure_channel(sys.argv[1])

call = channel.unary_unary("/echo.Echo/Say").with_call(b"hello")
assert call[0] == b"hello", call
assert ("x-behind", "1") in [tuple(one) for one in call[1].trailing_metadata()], call[1].trailing_metadata()
large = bytes(2 << 20)
assert channel.unary_unary("/echo.Echo/Say")(large) == large
assert [*channel.unary_stream("/echo.Echo/List")(b"a")] == [b"a0", b"a1", b"a2"]
assert channel.stream_unary("/echo.Echo/Gather")(iter([b"a", b"b", b"c"])) == b"abc"

# Each word is said after the one before came back.
words = queue.Queue()
talk = channel.stream_stream("/echo.Echo/Talk")(iter(words.get, None))
for word in (b"one", b"two", b"three"):
    words.put(word)
    assert next(talk) == word
words.put(None)
assert [*talk] == []

try:
    channel.unary_unary("/echo.Echo/Fail")(b"")
    raise AssertionError("it does not fail")
except grpc.RpcError as error:
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "nothing here: 100 %"), error
try:
    channel.unary_unary("/echo.Echo/Wait")(b"", timeout=0.3)
    raise AssertionError("it does not end")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error

many = [channel.unary_unary("/echo.Echo/Say").future(bytes([nth])) for nth in range(200)]
assert [one.result() for one in many] == [bytes([nth]) for nth in range(200)]
print("fine")
"#;

struct Application(Child);

impl Drop for Application {
    fn drop(&mut self) {
        // The application ends when its standard input is closed.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn calls_of_all_four_kinds_pass() {
    let can = Command::new("python3").args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        return leave_out(
            Lacks::Machine,
            "calls of a gRPC client that others have made: no grpcio for python3",
        );
    }
    let mut python = Command::new("python3");
    python.args(["-c", SERVER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut application = Application(python.spawn().unwrap());
    let mut port = String::new();
    BufReader::new(application.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let server = start(
        server(),
        &format!(
            "upstream u {{ server 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:{{port}}; http2 on; client_max_body_size 0; location / {{ grpc_pass u; }} }}",
            port.trim()
        ),
    );
    let client = Command::new("python3").args(["-c", CLIENT, &server.addr().to_string()]).output().unwrap();
    let said = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success() && client.stdout == b"fine\n", "{said}\n{}", server.error_log());
}
